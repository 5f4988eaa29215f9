"""The server below the service: how many connections, from where, and how long for a request.

A slow request is seen here alone: the service hears of one when its head is complete.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rescind.errors import ConfigError
from rescind.service.limits import Seats, network_of
from rescind.service.policy import Settings

HEAD_SECONDS = 10.0
"""From the first byte of a request, or from the connection, to the end of its head."""
BODY_SECONDS = 30.0
"""From there to the end of its body: 1 MiB at 280 kbit/s."""
UNSENT = 0
"""Bytes of an answer that may wait for their reader without a time: none."""
PART = 8
"""One address may have this part of all connections; an office or a mobile network is one."""
FILES = 200
"""Open at most beside the connections: the ledger, its pool, what is handed out."""
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 10\r\n"
    b"connection: close\r\ncontent-length: 21\r\n\r\nToo many connections\n"
)
NOTHING, HEAD, BODY = 0.0, 1.0, 2.0


class Connection(HttpToolsProtocol):
    """A connection that has a seat, and a time for each request on it."""

    seats: Seats
    _seat: str | None = None
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unsent = 0
    _comes, _timed = HEAD, NOTHING
    """Which part of a request is awaited, and for which one the timer runs."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a seat, or end the connection."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT)  # whatever is not read at once has its time
        seat = network_of(self.client[0] if self.client else "")
        if not self.seats.take(seat):
            transport.write(REFUSED)
            transport.close()
            return
        self._seat = seat
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._comes = NOTHING
        self._time()
        if self._seat is not None:
            self.seats.give_back(self._seat)
            self._seat = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on. A request that came in one piece needs no timer."""
        super().data_received(data)
        if self._comes == NOTHING and (self.cycle is None or self.cycle.response_complete):
            self._comes = HEAD  # such as empty lines, which begin no request
        if self._comes != self._timed:
            self._time()

    def on_message_begin(self) -> None:
        self._comes = HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._comes = BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._comes = NOTHING
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _await_reader(self) -> None:
        """Give the reader some time for the next part of an answer."""
        self._unsent = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(BODY_SECONDS, self._unmoved)

    def _unmoved(self) -> None:
        """End a connection of which nothing was read."""
        if self.transport.get_write_buffer_size() < self._unsent:
            self._await_reader()
        else:
            self.transport.abort()

    def _time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = self._comes
        if self._comes != NOTHING:
            seconds = HEAD_SECONDS if self._comes == HEAD else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """End a connection whose request did not come; not while it is we who do not read on."""
        if self.flow.read_paused:
            self._time()
        else:
            self.transport.abort()


class ByAddress:
    """Counts requests of each address where a proxy holds the connections of all of them."""

    def __init__(self, app: ASGIApp, seats: Seats) -> None:
        self.app, self.seats = app, seats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in if its address has few others that are being answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        who = network_of((scope["client"] or ("", 0))[0])
        await self.seats.held(who, "requests", self.app, scope, receive, send)


def server(app: ASGIApp, settings: Settings, **more: Any) -> uvicorn.Server:
    """Return the server of a service. It needs a file for each connection.

    more: what else uvicorn shall know, such as a certificate
    """
    most, each = settings.connections, settings.connections // PART
    _allow_files(most)
    if settings.behind_proxy:
        app = ByAddress(app, Seats(most, each))
        each = most  # of the proxy
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=type("Bounded", (Connection,), {"seats": Seats(most, each)}),
            ws="none",
            log_level="warning",
            access_log=False,  # addresses of requests hold ids
            server_header=False,
            proxy_headers=settings.behind_proxy,
            **more,
        )
    )


def _allow_files(connections: int) -> None:
    """Have the system let this process open as many files as it needs, or say that it does not."""
    needed = connections + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{connections} connections need {needed} open files, and {hard} are allowed here. "
            f"Raise the limit (ulimit -n), or give fewer --connections."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
