"""Connections of strangers: how many, from where, and how long half a request is kept."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from browsing import Town, town
from rescind.errors import ConfigError
from rescind.service import connections, limits
from rescind.service.running import Doorway

SOON, LONG = 0.3, 1e6
"""Seconds that a request may take, in these tests and in their controls."""
PROXY = "lend.example.org"
BEGIN = "/v1/session/begin"


def head(path: str = BEGIN, length: int = 2, **more: str) -> bytes:
    """Return the head of a POST."""
    lines = {
        "host": "localhost",
        "sec-fetch-site": "same-origin",
        "content-type": "application/json",
        "content-length": str(length),
        **{name.replace("_", "-"): text for name, text in more.items()},
    }
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode()


def dialled(town: Town, source: str = "127.0.0.1") -> socket.socket:
    """Open a connection from one of the addresses of this machine."""
    return socket.create_connection(("127.0.0.1", town.port), 10, (source, 0))


def answered(link: socket.socket, text: bytes = b"") -> int:
    """Send something; return the status of the answer."""
    link.sendall(text or head() + b"{}")
    link.settimeout(10)
    return int(link.recv(4096).split(b" ")[1])


def ended(link: socket.socket, seconds: float) -> bool:
    """Whether the service ends a connection in so many seconds, whatever it says before."""
    link.settimeout(seconds)
    try:
        while link.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def comes_true(holds: Callable[[], object], seconds: float = 10) -> bool:
    """Whether something comes to hold in so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Town]]:
    """Run services with other bounds, on ports of this machine."""
    with ExitStack() as running:

        def run(**door: Any) -> Town:
            folder = tmp_path / secrets.token_hex(4)
            return running.enter_context(town(folder, lenders=0, door=Doorway(port=0, **door)))

        yield run


HALVES = {
    "nothing": b"",
    "empty lines": b"\r\n\r\n",
    "half a head": head()[:40],
    "half a body": head(length=100) + b"{",
    "half a body that is refused": head("/v1/me/loans", length=100) + b"{",
    "another half after a whole": head() + b"{}" + head(length=100) + b"{",
}


@pytest.mark.parametrize("guarded", [True, False])
def test_half_a_request_is_not_kept(served: Any, monkeypatch: Any, guarded: bool) -> None:
    """The control gives it all the time of the world."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS"):
        monkeypatch.setattr(connections, name, SOON if guarded else LONG)
    street, links = served(), {}
    with ExitStack() as open_now:
        for name, text in HALVES.items():
            for _ in range(5):
                link = open_now.enter_context(closing(dialled(street)))
                link.sendall(text)
                links[link] = name
        wrong = {
            name for link, name in links.items() if ended(link, 10 if guarded else 0.05) != guarded
        }
    assert not wrong
    with closing(dialled(street)) as link:
        assert answered(link) == 200


def test_a_slow_drip_of_empty_lines_gets_no_more_time(served: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", SOON)

    def drip() -> None:
        for _ in range(100):
            link.sendall(b"\r\n")
            time.sleep(SOON / 3)

    with closing(dialled(served())) as link:
        assert answered(link) == 200
        with pytest.raises(ConnectionError):
            drip()


@pytest.mark.parametrize("guarded", [True, False])
def test_an_answer_that_nobody_reads_is_given_up(
    served: Any, monkeypatch: Any, guarded: bool
) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", SOON if guarded else LONG)
    street = served()
    with closing(dialled(street)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.sendall(80 * b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        waiting = street.server.server_state.connections
        assert comes_true(lambda: waiting)
        assert comes_true(lambda: not waiting, 10 if guarded else 1) == guarded


class Pipe(asyncio.Transport):
    """A connection of which so many bytes are not read yet."""

    unread, ended = 1000, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.ended = True


def test_whoever_reads_on_is_not_cut_off(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.0)

    async def ended(reads: int) -> bool:
        connection = connections.Connection.__new__(connections.Connection)
        pipe = connection.transport = Pipe()
        connection.loop = asyncio.get_running_loop()
        connection._await_reader()
        for _ in range(5):
            pipe.unread -= reads
            await asyncio.sleep(0)
        assert connection._unread is not None
        connection._unread.cancel()
        return pipe.ended

    assert not asyncio.run(ended(100))
    assert asyncio.run(ended(0)), "control"


@pytest.mark.parametrize("most", [0, 65_536])
def test_the_last_part_of_an_answer_has_its_time_too(
    served: Any, monkeypatch: Any, most: int
) -> None:
    """With the buffer that a transport has by itself, nobody is told of a part that fits it."""
    monkeypatch.setattr(connections, "UNSENT", most)
    monkeypatch.setattr(connections, "BODY_SECONDS", SOON)
    street = served()
    with closing(dialled(street)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        waiting = street.server.server_state.connections
        for _ in range(2000):  # until a part of an answer stays with the server
            link.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            if any(each.transport.get_write_buffer_size() for each in [*waiting]):
                break
            time.sleep(0.001)
        assert comes_true(lambda: not waiting, 10 if most == 0 else 1) == (most == 0)


@pytest.mark.parametrize("guarded", [True, False])
def test_an_address_has_its_part_of_the_connections(
    served: Any, monkeypatch: Any, guarded: bool
) -> None:
    """The control is the server as it comes."""
    if not guarded:
        monkeypatch.setattr(connections, "Connection", HttpToolsProtocol)
    street = served(connections=16)
    with ExitStack() as open_now:

        def comes(source: str) -> int:
            return answered(open_now.enter_context(closing(dialled(street, source))))

        assert [comes("127.0.0.1") for _ in range(3)] == [200, 200, 503 if guarded else 200]
        others = [comes(f"127.0.0.{n}") for n in range(2, 9) for _ in range(2)]
        assert others == [200] * 14
        assert comes("127.0.0.9") == (503 if guarded else 200)  # 16 are all

    def free() -> bool:
        with closing(dialled(street)) as link:
            return answered(link) == 200

    assert comes_true(free)  # a moment after they ended


@pytest.mark.parametrize("guarded", [True, False])
def test_behind_a_proxy_an_address_has_its_part_of_the_requests(
    served: Any, monkeypatch: Any, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(connections, "ByAddress", lambda app, _: app)
    street = served(connections=16, behind_proxy=(PROXY,))
    with ExitStack() as open_now:

        def link_of(address: str, length: int) -> tuple[socket.socket, bytes]:
            link = open_now.enter_context(closing(dialled(street)))
            return link, head(length=length, host=PROXY, x_forwarded_for=address)

        for n in range(2):
            link, text = link_of(f"2001:db8::{n}", 100)
            link.sendall(text)
        assert not guarded or comes_true(lambda: street.server.config.app.seats.open == 2)
        link, text = link_of("2001:db8::77", 2)
        assert answered(link, text + b"{}") == (429 if guarded else 200)
        link, text = link_of("2001:db8:0:1::1", 2)
        assert answered(link, text + b"{}") == 200


def test_too_few_files_are_told_at_the_start(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (1024, 4096))
    with pytest.raises(ConfigError, match="4000 connections need 4200 open files"):
        connections._allow_files(4000)
    raised: list[Any] = []
    monkeypatch.setattr(connections.resource, "setrlimit", lambda _, pair: raised.append(pair))
    connections._allow_files(1000)
    connections._allow_files(800)
    assert raised == [(1200, 4096)]


@pytest.mark.parametrize(
    ("address", "network"),
    [("203.0.113.9", "203.0.113.9"), ("::ffff:203.0.113.9", "203.0.113.9"),
     ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"), ("2001:db8:1:2::2", "2001:db8:1:2::/64"),
     ("2001:db8:1:3::2", "2001:db8:1:3::/64"), ("fe80::1%eth0", "fe80::/64"),
     ("", ""), ("unix", "unix")],
)  # fmt: skip
def test_an_address_is_counted_by_its_network(address: str, network: str) -> None:
    assert limits.network_of(address) == network
