"""What nobody can use up: streams, changes of a day, the stack, ceremonies, other networks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from doors import House, log_key, opened
from rescind.cli.witness import open_witness
from rescind.ledger import accounts
from rescind.proof import reaching
from rescind.service import guard, limits, passkeys
from rescind.service.callers import new_secret
from streams import opened_stream

BEGIN = "/v1/session/begin"
DEEP = 50_000


@pytest.mark.parametrize("each", [3, 100])
def test_a_session_has_few_streams_of_events(house: House, each: int) -> None:
    """The control allows more than are asked for."""
    house.service.events.seats = seats = limits.Seats(5, each)
    person, other = house.person(), house.person()

    async def story() -> list[int]:
        async with AsyncStreams() as streams:
            statuses = [await streams.open(person) for _ in range(4)]
            statuses += [await streams.open(other) for _ in range(3)]
        return statuses

    expected = [200, 200, 200, 429, 200, 200, 429] if each == 3 else [200] * 5 + [429] * 2
    assert house.runner.run(story()) == expected
    assert seats.open == 0
    assert house.runner.run(story()) == expected  # those of before are free again


class AsyncStreams:
    """Streams that are open together."""

    def __init__(self) -> None:
        self._all = AsyncExitStack()

    async def __aenter__(self) -> AsyncStreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._all.aclose()

    async def open(self, caller: Any) -> int:
        """Open one more; return its status."""
        stream = await self._all.enter_async_context(opened_stream(caller, "/v1/events"))
        await stream.next()
        return stream.status


def test_a_person_changes_so_much_a_day(tmp_path: Path) -> None:
    """The control is the first part of the day, and the next one; erasing is never refused."""
    with opened(tmp_path / "state", limits=True, changes=3) as house:
        house.service.limits.clock = now = Ticks()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        house.service.limits.sleep = sleep
        person, other = house.person(), house.person()
        lend = [person.post("/v1/me/loans", {"items": [f"item-{n}"]}) for n in range(4)]
        assert [one.status_code for one in lend] == [201, 201, 201, 429]
        problem = lend[-1].json()
        assert problem["type"].endswith("day-spent")
        assert "3 changes" in problem["detail"]
        assert "24 h" in problem["next"]
        person.secret = second_session(house, person.id)
        assert person.post("/v1/me/loans", {"items": ["item-9"]}).status_code == 429
        for n in range(2):
            back = {"kind": "erase", "items": [f"item-{n}"]}
            assert person.post("/v1/me/requests", back).status_code == 202
        assert slept == [limits.TURN_SECONDS, 2 * limits.TURN_SECONDS]  # one after the other
        assert other.post("/v1/me/loans", {"items": ["item-9"]}).status_code == 201
        now.at += 24 * 3600.0
        assert person.post("/v1/me/loans", {"items": ["item-9"]}).status_code == 201


class Ticks:
    """A clock of seconds."""

    at = 1000.0

    def __call__(self) -> float:
        return self.at


def second_session(house: House, person: bytes) -> str:
    """Return the secret of one more session of somebody."""
    secret, digest = new_secret()
    house.do(accounts.NewSession(digest, "person", person=person))
    return secret


NESTED = {
    "lists": b"[" * DEEP,
    "lists that end": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"items":' * DEEP,
    "after texts": b'{"a": "]]\\"", "items": ' + b"[" * DEEP,
    "UTF-16": ("[" * DEEP).encode("utf-16"),
}
HOT = ("/v1/me/loans", "/v1/me/requests")
KEYED = {"content-type": "application/json", "idempotency-key": "k" * 20}


@pytest.mark.parametrize("guarded", [True, False])
def test_deep_json_is_told_on_every_route(house: House, monkeypatch: Any, guarded: bool) -> None:
    if not guarded:
        monkeypatch.setattr(guard, "DEEPEST", 10**9)
    person, operator = house.person((1, 2, 3)), house.operator()
    for path in HOT if not guarded else (*HOT, BEGIN, "/v1/me/recovery-codes", "/v1/me/codes"):
        for body in NESTED.values():
            answer = person.call("POST", path, content=body, headers=KEYED)
            assert answer.status_code == (422 if guarded else 500)
            assert answer.headers["content-type"] == "application/problem+json"
    if guarded:
        path = "/v1/operator/witnesses"
        answer = operator.call("POST", path, content=NESTED["lists"], headers=KEYED)
        assert "nested deeper than 32" in answer.json()["detail"]


def test_brackets_in_a_text_are_not_deep(house: House) -> None:
    body = json.dumps({"items": ['[{"\\' * 40]}).encode()
    answer = house.person().call("POST", HOT[0], content=body, headers=KEYED)
    assert "nested" not in answer.text
    assert answer.status_code == 422
    assert "catalogue" in answer.text
    guard.TEXT.sub(b"", b'"' + b'\\"' * 500_000)  # in no time, though the text never ends


@pytest.fixture
def inside() -> Iterator[tuple[str, list[str]]]:
    """A door of the operator's own network, and what was sent to it."""
    heard: list[str] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Door) as door:
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{door.server_port}", heard
        door.shutdown()
        thread.join()


def test_a_token_sends_nothing_into_our_network(house: House, tmp_path: Path, inside: Any) -> None:
    url, heard = inside
    witnesses = house.service.log.witnesses
    key = open_witness(tmp_path / "w", "silo-0", [log_key(house)]).key
    script, admit = house.script("witnesses"), "/v1/operator/witnesses"
    answer = script.post(admit, {"key": str(key), "url": url})
    assert answer.status_code == 400
    assert "--witness URL=KEY" in answer.json()["detail"]
    witnesses.ask()
    assert heard == []
    witnesses.admit(key, url, by_name=True)  # the control: whoever starts the service names it
    assert script.post(admit, {"key": str(key), "url": url}).status_code == 200
    witnesses.ask()
    assert heard == ["/add-checkpoint"]


def test_a_name_that_moves_into_our_network_is_not_followed(
    house: House, tmp_path: Path, inside: Any, monkeypatch: Any
) -> None:
    """The name is public when it is admitted; the control names it at the start."""
    url, heard = inside
    port = int(url.rpartition(":")[2])
    moving = f"http://moving.example:{port}"
    resolved = ["93.184.215.14"]
    original = socket.getaddrinfo

    def resolving(host: str, *more: Any, **named: Any) -> Any:
        if host == "moving.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved[0], port))]
        return original(host, *more, **named)

    monkeypatch.setattr(reaching.socket, "getaddrinfo", resolving)
    witnesses = house.service.log.witnesses
    key = open_witness(tmp_path / "w", "silo-0", [log_key(house)]).key
    body = {"key": str(key), "url": moving}
    assert house.script("witnesses").post("/v1/operator/witnesses", body).status_code == 201
    resolved[0] = "127.0.0.1"
    witnesses.ask()
    assert (heard, "no public address" in witnesses.problems["silo-0"]) == ([], True)
    monkeypatch.setattr(witnesses, "_asked", -limits.CHANGES)
    witnesses.admit(key, moving, by_name=True)
    witnesses.ask()
    assert heard == ["/add-checkpoint"]


def test_the_address_that_was_checked_is_called(monkeypatch: Any) -> None:
    """Between the check and the call a name may get another address."""
    called = []

    def refused(where: Any, *_: Any) -> Any:
        called.append(where)
        raise OSError("refused")

    public = [(socket.AF_INET, 1, 6, "", ("93.184.215.14", 80))]
    monkeypatch.setattr(reaching.socket, "getaddrinfo", lambda *_, **__: public)
    monkeypatch.setattr(reaching.socket, "create_connection", refused)
    for anywhere in (False, True):
        with pytest.raises(reaching.DataError, match="cannot be reached"):
            reaching.post("http://witness.example/x", b"", {}, 1, anywhere=anywhere)
    assert called[0] == ("93.184.215.14", 80)


@pytest.mark.parametrize(
    ("origin", "insists"),
    [("https://lend.example.org", True), ("http://lend.example.org", False),
     ("https://localhost:8443", False)],
)  # fmt: skip
def test_browsers_stay_with_https(tmp_path: Path, origin: str, insists: bool) -> None:
    with opened(tmp_path / "state", origin=origin) as house:
        for path in ("/", "/healthz", "/nowhere"):
            told = house.caller().get(path).headers.get("strict-transport-security")
            assert (told == "max-age=31536000") == insists


@pytest.mark.parametrize("guarded", [True, False])
def test_ceremonies_push_out_only_those_of_the_same_network(
    house: House, monkeypatch: Any, guarded: bool
) -> None:
    """The control counts everybody as one network."""
    monkeypatch.setattr(passkeys, "MOST", 20)
    if not guarded:
        monkeypatch.setattr("rescind.service.entry.network_of", lambda _: "")
    honest = house.caller(address="203.0.113.9").post(BEGIN, {}, None).json()["ceremony"]
    for n in range(60):
        house.caller(address=f"2001:db8::{n:x}").post(BEGIN, {}, None)
    answer = house.caller().post(
        "/v1/session/finish", {"ceremony": honest, "credential": {"id": ""}}, None
    )
    assert answer.json()["type"].endswith("not-found" if guarded else "ceremony")
