"""What servers of strangers send is answered with a sentence: no traceback, and no end of requests.

A service asks witnesses, a witness reads a log, anybody fetches a roster: each from somebody else.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.cli.witness import open_witness
from rescind.errors import DataError
from rescind.proof import fetching, pulling
from rescind.proof.log_folder import CHANGE, LogFolder, entry_of
from rescind.proof.notes import Checkpoint, Key, signed
from rescind.proof.pulling import Pulling
from rescind.proof.roster import Stated
from rescind.proof.signed_lines import read
from rescind.proof.witness_http import Cosigning

PRIVATE = Ed25519PrivateKey.from_private_bytes(b"l" * 32)
NAME = "example.org/log"
LOG = Key(NAME, PRIVATE.public_key().public_bytes_raw())
HUGE = signed(Checkpoint(NAME, 10**17, bytes(32)), PRIVATE).encode()
STATED = Stated(1, 3, 3, "", "", "").to_bytes()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(body: bytes, status: int = 200, kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


BROKEN = {
    "no answer": b"",
    "no HTTP": b"\xff\x00\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "a long line": b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "a bad chunk": CHUNKED + b"zz\r\nabc",
    "a cut chunk": CHUNKED + b"10\r\nabc",
    "a cut refusal": CHUNKED.replace(b"200", b"409") + b"zz",
    "a number of 5,000 digits": answer(b"9" * 5_000, 409, "text/x.tlog.size"),
    "a loop": b"HTTP/1.1 302 X\r\nLocation: /\r\n\r\n",
    "a file": b"HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\n\r\n",
    "no text": answer(b"\xff" * 100),
}
Answers = Sequence[bytes]
Serve = Callable[[Answers], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer with these bytes in turn, the last one again and again; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        waiting: list[bytes] = []

        def talk() -> None:
            while True:
                try:
                    caller, _ = door.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(65_536)
                    caller.sendall(waiting.pop(0) if len(waiting) > 1 else waiting[0])

        def begin(answers: Answers) -> str:
            waiting[:] = answers
            return f"http://127.0.0.1:{door.getsockname()[1]}"

        threading.Thread(target=talk, daemon=True).start()
        yield begin
        door.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def log(tmp_path: Path) -> LogFolder:
    log = LogFolder.make(tmp_path / "log", NAME, PRIVATE)
    log.append([entry_of(CHANGE, bytes([n])) for n in range(3)], PRIVATE)
    return log


def ask_witness(url: str, log: LogFolder, folder: Path) -> None:
    witness = open_witness(folder, "silo-0", [LOG]).key
    if wrong := Cosigning({url: witness}, lambda: log.note, log.tree, {url}).ask_all():
        raise DataError(wrong[url])


def pull(url: str, _: LogFolder, folder: Path) -> None:
    Pulling(url, LOG, open_witness(folder, "silo-0", [LOG]), folder).once()


def fetch(url: str, _: LogFolder, folder: Path) -> None:
    fetching.fetch(url, folder)


CALLERS = (ask_witness, pull, fetch)


@pytest.mark.parametrize("caller", CALLERS)
def test_broken_answers_are_told_in_a_sentence(
    caller: Callable[..., None], serve: Serve, log: LogFolder, tmp_path: Path
) -> None:
    for bytes_sent in BROKEN.values():
        with pytest.raises(DataError):
            caller(serve([bytes_sent]), log, tmp_path / "out")


def test_control_without_the_guard_they_end_the_process(
    serve: Serve, log: LogFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "HTTPException", OSError)  # the form of before
    monkeypatch.setattr("http.client.HTTPException", OSError)
    for caller in CALLERS:
        with pytest.raises(HTTPException):
            caller(serve([BROKEN["no status"]]), log, tmp_path / "out")


@pytest.mark.parametrize(
    ("caller", "before", "said"),
    [
        (pull, [answer(HUGE)], "the tiles"),
        (fetch, [answer(STATED), answer(bytes(8192)), answer(b""), answer(HUGE)], "the entries"),
    ],
)
def test_a_log_that_claims_more_than_it_sends_is_left(
    caller: Callable[..., None], before: list[bytes], said: str, serve: Serve, log: LogFolder,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It claims 10**17 entries, and each part of them is empty: they were asked for for ever."""
    asked = list[str]()
    sent = pulling.sent

    def counted(request: object, most: int = 1 << 16) -> bytes:
        asked.append(request.full_url)  # type: ignore[attr-defined]
        assert len(asked) < 50, "it goes on and on"
        return sent(request, most)  # type: ignore[arg-type]

    monkeypatch.setattr(pulling, "sent", counted)
    monkeypatch.setattr(fetching, "sent", counted)
    with pytest.raises(DataError, match=said):
        caller(serve([*before, answer(b"")]), log, tmp_path / "out")
    assert len(asked) == len(before) + 1
    asked.clear()
    full = 8192 if caller is pull else 256 * 35
    with pytest.raises(AssertionError, match="on and on"):  # control: what has the right length
        caller(serve([*before, answer(bytes(full))]), log, tmp_path / "out")


@pytest.mark.parametrize("number", [-1, 10**30])
def test_no_more_lines_are_asked_for_than_a_roster_has(number: int) -> None:
    """A negative number of bytes is read to the end, however far that is."""
    assert Stated.parse(Stated(1, 3, 3, "", "", "").to_bytes()).lines == 3
    with pytest.raises(DataError, match="not a release"):
        Stated.parse(Stated(1, number, 3, "", "", "").to_bytes())


@pytest.mark.parametrize("data", [b"[" * 100_000, b'[{"silo": 1e999}]', b"[3]", b"\xff"])
def test_hostile_signed_lines_are_told_in_a_sentence(data: bytes) -> None:
    with pytest.raises(DataError, match="who signed which lines"):
        read(data)
