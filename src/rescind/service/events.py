"""Server-sent events: who listens, and what they are told.

Events say that something changed and what its state is now, never which items. A listener that
does not read loses its oldest events; the page reads the ledger again in any case.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rescind.service.limits import Seats
from rescind.service.policy import CONNECTIONS

OPERATORS = b"operators"
"""The channel of operators; people have their own, by their 16 bytes."""
EVERYBODY = b"everybody"
STREAMS = 10
"""Of one person, operator or token: a page has one in each of its tabs."""
WAITING = 100
BEAT_SECONDS = 15.0


class Events:
    """Hands events from the writer's thread to whoever listens."""

    def __init__(self, most: int = CONNECTIONS // 2, beat: float = BEAT_SECONDS) -> None:
        self.beat, self.seats = beat, Seats(most, STREAMS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[bytes, set[asyncio.Queue[bytes | None]]] = {}
        self._number = 0

    def start(self) -> None:
        """Bind to the running loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """End every stream, so that the service can stop."""
        for queue in [one for some in self._listeners.values() for one in some]:
            self._put(queue, None)

    def heard(self, *channels: bytes) -> bool:
        return any(one in self._listeners for one in channels)

    def publish(self, channel: bytes, name: str, data: Mapping[str, Any]) -> None:
        """Tell a channel. May be called from any thread."""
        if channel != EVERYBODY and channel not in self._listeners:
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens any more
                self._loop.call_soon_threadsafe(self._hand_out, channel, name, dict(data))

    def _hand_out(self, channel: bytes, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        text = f"id: {self._number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()
        channels = self._listeners if channel == EVERYBODY else [channel]
        for one in channels:
            for queue in self._listeners.get(one, ()):
                self._put(queue, text)

    @staticmethod
    def _put(queue: asyncio.Queue[bytes | None], text: bytes | None) -> None:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(text)

    async def stream(self, channel: bytes) -> AsyncIterator[bytes]:
        """Yield events of a channel until the caller goes away."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
        self._listeners.setdefault(channel, set()).add(queue)
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    text = await asyncio.wait_for(queue.get(), self.beat)
                except TimeoutError:
                    text = b": still here\n\n"
                if text is None:
                    return
                yield text
        finally:
            self._listeners[channel].discard(queue)
            if not self._listeners[channel]:
                del self._listeners[channel]

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))


class Listening(StreamingResponse):
    """A stream of events. It holds a seat while it is open, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: Events, channel: bytes, who: bytes) -> None:
        super().__init__(events.stream(channel))
        self.seats, self.who = events.seats, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the caller goes away, or say that too many streams are open."""
        app = super().__call__
        await self.seats.held(self.who, "streams of events", app, scope, receive, send)
