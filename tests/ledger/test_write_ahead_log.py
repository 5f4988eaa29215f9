"""The write-ahead log of a running ledger stays under its name, whoever reads the files.

A process that closes any descriptor of a file loses all its locks on it, also those of SQLite. The
next process that reads the ledger then takes itself for the last one, and removes the log.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fabricated import made
from ledger_killing import Server
from ledgers import done, joined, lent, opened
from rescind.errors import DataError
from rescind.ledger.canary import story
from rescind.ledger.errors import DiskFull
from rescind.ledger.lending import Lend
from rescind.ledger.scanner import Canary, scan
from rescind.ledger.worker_io import read_apart

PRIVATE = ("ledger.db", "ledger.db-wal", "ledger.db-shm")
"""Files whose locks are SQLite's: no code of ours opens them in the process of a ledger."""
watching: list[list[str]] = []
"""Lists that get what this process opens by Python. The hook stays: it cannot be taken away."""


def _note(event: str, words: tuple[Any, ...]) -> None:
    if watching and event == "open" and not (words[2] or 0) & os.O_EXCL:  # of a new file: no locks
        watching[-1].append(str(words[0]))


sys.addaudithook(_note)


@pytest.fixture
def opens() -> Iterator[list[str]]:
    watching.append([])
    yield watching[-1]
    watching.pop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "state")
    yield server
    server.close()


def look(state: Path) -> None:
    """Read the ledger in another process, as an operator does beside a service."""
    words = [sys.executable, "-m", "rescind.cli", "requests", "--state", str(state)]
    looked = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert looked.returncode == 0, looked.stderr


def inodes(pid: int, state: Path) -> tuple[set[int], int | None]:
    """Return the write-ahead logs that a process has open, and the one that has the name."""
    log = state / "ledger.db-wal"
    handles = Path(f"/proc/{pid}/fd").iterdir()
    held = {os.stat(one).st_ino for one in handles if os.readlink(one).startswith(str(log))}
    return held, log.stat().st_ino if log.exists() else None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has open")
def test_after_a_scan_and_a_look_what_is_acknowledged_is_on_the_disk(
    server: Server, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    server.start()
    person = server.ask(do="join", key="join-0123456789abcdef")["body"]["person"]
    server.ask(do="lend", person=person, items=[1, 2], key="lend-0123456789abcdef")
    assert server.ask(do="scan")["body"] == {"found": 0}
    look(state)
    held, named = inodes(server.pid, state)
    assert held == {named}
    again = server.ask(do="lend", person=person, items=[3], key="more-0123456789abcdef")
    assert again["status"] < 300
    look(state)
    server.kill()
    server.start()
    assert server.ask(do="loans", person=person)["body"]["items"] == [1, 2, 3]
    server.kill()


def test_control_a_file_opened_by_hand_ends_the_locks(tmp_path: Path) -> None:
    """What the scanner must not do, done on a database of this test."""
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path)) as here:
        here.execute("PRAGMA journal_mode=WAL")
        here.execute("CREATE TABLE t (x)")
        there = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        there += "c.execute('SELECT * FROM t').fetchall(); c.close()"
        subprocess.run([sys.executable, "-c", there, str(path)], check=True)
        assert path.with_name("some.db-wal").exists()
        with read_apart() as read:
            assert read(path) == path.with_name("some.db").read_bytes()  # the plain open
        subprocess.run([sys.executable, "-c", there, str(path)], check=True)
        assert not path.with_name("some.db-wal").exists()


def test_no_file_of_sqlite_is_opened_in_the_process_of_a_ledger(
    tmp_path: Path, opens: list[str]
) -> None:
    ledger = opened(tmp_path / "state")
    joined(ledger, 1, 2)
    (tmp_path / "state" / "other-name").symlink_to(tmp_path / "state" / "ledger.db")
    assert scan([tmp_path], [Canary("some text", b"some text of nobody")]).found == []
    ledger.close()
    play = tmp_path / "life"
    story(play, learnt=lambda ledger: made(ledger, sorted(ledger.live.loans)))
    wrong = {one for one in opens if Path(one).name in (*PRIVATE, "other-name")}
    assert wrong <= {str(play / "crash" / name) for name in PRIVATE}  # written as plain copies
    assert any(one.endswith("catalogue.json") for one in opens), "control: the hook sees files"


def test_files_are_read_whole_and_errors_are_told(tmp_path: Path) -> None:
    large, odd = tmp_path / "large", tmp_path / "odd\nname-\udcff"
    large.write_bytes(bytes(range(256)) * 5000)
    odd.write_bytes(b"")
    with read_apart() as read:
        assert read(large) == large.read_bytes()
        assert read(odd) == b""
        with pytest.raises(DataError, match=r"cannot read .*nothing: No such file"):
            read(tmp_path / "nothing")
        assert read(large) == large.read_bytes(), "it goes on"


def test_a_log_that_was_removed_refuses_changes_and_a_stop_saves_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    person = joined(ledger, 1, 2)
    (state / "ledger.db-wal").unlink()
    with pytest.raises(DiskFull, match=r"ledger\.db-wal was removed.*nothing was written"):
        done(ledger, Lend(person, (3,)))
    assert ledger.writer.fault is not None, "a service says that it is not ready"
    assert "ledger.db-wal was removed" in caplog.text
    ledger.close()
    ledger = opened(state)
    assert lent(ledger, person) == [1, 2]
    done(ledger, Lend(person, (3,)))
    ledger.close()
