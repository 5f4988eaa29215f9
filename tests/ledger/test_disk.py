"""Faults of the disk: full, failing to sync, and the process killed at every sync."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from ledgers import done, joined, lent, opened
from rescind.ledger import keyslots, store, writer
from rescind.ledger.book import Ledger
from rescind.ledger.errors import Busy, DiskFull
from rescind.ledger.lending import Lend, TakeBack
from rescind.ledger.tables import named_slots
from rescind.ledger.writer import EXIT

CHANGES = 7
"""Of the story; each is one line of what it says."""
STORY = Path(__file__).parents[1] / "helpers" / "ledger_story.py"
STRACE = shutil.which("strace")
needs_strace = pytest.mark.skipif(STRACE is None, reason="strace is not installed")


@pytest.fixture
def ledger(tmp_path: Path):
    ledger = opened(tmp_path / "state")
    yield ledger
    ledger.close()


def test_a_full_disk_of_the_database_refuses_reads_on_and_recovers(ledger: Ledger) -> None:
    person = joined(ledger, 1)
    connection = ledger.store.writer().connection.driver_connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    keys = ledger.keys.ids
    refused = 0
    for number in range(300):
        try:
            done(ledger, Lend(person, (2 + number % 18,)), f"full-{number:012d}")
            done(ledger, TakeBack(person, "erase", (2 + number % 18,)), f"back-{number:012d}")
        except DiskFull:
            refused += 1
            assert lent(ledger, person)[0] == 1  # reading goes on
            break
    assert refused, "control: the disk was full"
    before = lent(ledger, person)
    with pytest.raises(DiskFull, match="nothing was written"):
        [done(ledger, TakeBack(joined(ledger, 3, 4), "leave")) for _ in range(300)]
    assert lent(ledger, person) == before
    with ledger.store.reading() as reading:
        assert not named_slots(reading) - ledger.keys.ids
        assert len(ledger.keys.ids - named_slots(reading)) <= 1
    connection.execute("PRAGMA max_page_count=1000000")
    done(ledger, Lend(person, (19,)), "recovered-0123456789")
    assert 19 in lent(ledger, person)
    assert len(ledger.keys.ids) > len(keys)


def test_a_full_disk_of_the_keys_refuses_and_recovers(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    person = joined(ledger, 1)
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(keyslots.os, "pwrite", _full_for_keys)
        with pytest.raises(DiskFull):
            done(ledger, Lend(person, (2,)), "full-keys-0123456789")
        assert lent(ledger, person) == [1]
    assert "the disk is full" in caplog.text
    assert "changes are refused" in caplog.text
    assert keyslots.os.pwrite is write
    assert done(ledger, Lend(person, (2,)), "full-keys-0123456789").status == 201
    assert lent(ledger, person) == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_database_that_another_program_locks_refuses_and_recovers(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup, or a look with a tool for databases, may hold the lock for longer than we wait."""
    monkeypatch.setattr(store, "TIMEOUT", 0.1)
    ended = list[int]()
    monkeypatch.setattr(writer.os, "_exit", lambda code: sys.exit(ended.append(code)))
    if not guarded:  # control: the form of before
        monkeypatch.setattr(store.sqlite3, "SQLITE_BUSY", -1)
    ledger = opened(tmp_path)
    person = joined(ledger, 1)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        answer = ledger.submit(Lend(person, (2,)))
        if not guarded:
            ledger.writer._thread.join(30)
            assert ended[0] == EXIT
            ledger.parts.resources.close()
            return
        with pytest.raises(Busy, match="locked by another program: nothing was acknowledged"):
            answer.result(30)
        assert lent(ledger, person) == [1], "reading goes on"
    done(ledger, Lend(person, (3,)))
    assert lent(ledger, person) == [1, 3]
    assert not ended
    ledger.close()


def _full_for_keys(file: int, data: bytes, at: int) -> int:
    if any(data):
        raise OSError(28, "No space left on device")
    return len(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_commit_whose_sync_failed_keeps_its_keys_until_a_start_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may be on the disk after all: then its box needs the new key."""
    ledger = opened(tmp_path)
    person = joined(ledger, 1)
    before, ended = set(ledger.keys.ids), []

    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        ended.append((code, before < ledger.keys.ids))
        raise Ended

    def fail(_: object) -> None:
        cause = sqlite3.OperationalError("disk I/O error")
        cause.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise DBAPIError("COMMIT", (), cause)

    monkeypatch.setattr(writer.os, "_exit", end)
    event.listen(ledger.store.writer(), "commit", fail)
    ledger.submit(Lend(person, (2,)))
    ledger.writer._thread.join(30)
    assert ended[0] == (EXIT, True)
    ledger.parts.resources.close()


def story(state: Path, *strace: str) -> tuple[list[str], int, str]:
    """Run the story of `ledger_story.py`; return what was acknowledged, exit code and errors."""
    traced = [STRACE, "-f", "-qq", "-o", "/dev/null", *strace] if strace else []
    ran = subprocess.run(
        [*traced, sys.executable, str(STORY), str(state)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.stdout.split(), ran.returncode, ran.stderr


def check(state: Path, acknowledged: list[str]) -> None:
    """What was acknowledged is there; at most one more; every box opens; no key is left."""
    if not (state / "ledger.db").exists():
        assert not acknowledged
        return
    ledger = opened(state)
    try:
        assert ledger.report.people_dropped == ledger.report.accounts_dropped == 0
        history = [f"{row.kind}-{row.n}" for row in ledger.reading.events(most=1000)]
        # The join before the story made the person; a line of the story is an event.
        assert history[: len(acknowledged)] == acknowledged
        assert len(history) <= len(acknowledged) + 1
        with ledger.store.reading() as reading:
            assert ledger.keys.ids == named_slots(reading)
        assert all(one.erased_at for one in ledger.reading.open_requests())
        held = sqlite3.connect(state / "ledger.db").execute("PRAGMA integrity_check").fetchone()
        assert held == ("ok",)
    finally:
        ledger.close()


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_killed_at_every_sync_nothing_is_lost(tmp_path: Path, call: str, fresh: bool) -> None:
    """strace counts per thread: the first start syncs in the main one, changes in the writer's."""
    killed = 0
    for number in range(1, 200):
        state = tmp_path / f"{number}"
        if not fresh:
            opened(state).close()
        acknowledged, code, _ = story(state, "-e", f"inject={call}:signal=SIGKILL:when={number}")
        check(state, acknowledged)
        shutil.rmtree(state)
        if code == 0:
            break
        killed += 1
    else:
        pytest.fail("there was no end of syncs")
    print(f"{call}, {'new' if fresh else 'old'} state: killed at {killed} syncs")
    assert killed or (call, fresh) == ("fsync", False)


def calls_of_one_thread(tmp_path: Path, call: str) -> int:
    """Count how often the busiest thread makes a system call in a story without faults."""
    state, log = tmp_path / "clean", tmp_path / "log"
    opened(state).close()
    traced = [str(STRACE), "-f", "-qq", "-o", str(log), "-e", f"trace={call}"]
    subprocess.run([*traced, sys.executable, str(STORY), str(state)], check=True, timeout=120)
    threads = Counter(line.split()[0] for line in log.read_text().splitlines() if call in line)
    return max(threads.values())


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_sync_ends_the_process_and_is_not_tried_again(tmp_path: Path, error: str) -> None:
    syncs = calls_of_one_thread(tmp_path, "fdatasync")
    assert syncs > 20
    for number in range(1, syncs + 1):
        state = tmp_path / f"{number}"
        opened(state).close()
        fault = f"inject=fdatasync:error={error}:when={number}"
        acknowledged, code, said = story(state, "-e", fault)
        if code == 1:
            assert said.startswith("refused: "), "it could not start"
        else:
            assert code == EXIT, (number, said)
            assert "does not try again" in said
        assert "Traceback" not in said
        check(state, acknowledged)


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("lasts", ["", "+"], ids=["once", "from then on"])
def test_every_full_disk_is_answered_with_507_and_nothing_half_done(
    tmp_path: Path, lasts: str
) -> None:
    """At the n-th write there is no space: no acknowledgement may be a lie.

    Where there is none from then on, not even for overwriting the keys of a change that was not
    written, the process ends.
    """
    writes, told = calls_of_one_thread(tmp_path, "pwrite64"), Counter[int]()
    for number in range(1, writes + 1, 1 if lasts else 3):
        state = tmp_path / f"{number}"
        opened(state).close()
        fault = f"inject=pwrite64:error=ENOSPC:when={number}{lasts}"
        acknowledged, code, said = story(state, "-e", fault)
        assert code in (0, 1, 7, EXIT), (number, said)  # written later, not started, 507, ended
        assert "Traceback" not in said
        assert code or len(acknowledged) == CHANGES, number
        told[code] += 1
        check(state, acknowledged)
    assert told[7] > (3 if lasts else told.total() / 2), told
    assert told[0] < told.total() / 4, told


def test_the_story_itself_is_right(tmp_path: Path) -> None:
    """Control: without an injected fault everything is acknowledged and found."""
    acknowledged, code, said = story(tmp_path / "state")
    assert (code, said) == (0, "")
    assert acknowledged[:3] == ["join-0", "lend-2", "lend-1"]
    check(tmp_path / "state", acknowledged)
    with pytest.raises(AssertionError):
        check(tmp_path / "state", [*acknowledged, "lend-1"])
