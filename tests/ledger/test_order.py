"""Answered means synced: every answer comes after the syncs of what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledgers import opened

STORY = Path(__file__).parents[1] / "helpers" / "ledger_story.py"
STRACE = shutil.which("strace")
OPENED = re.compile(r'openat\(.*?"([^"]*)".*= (\d+)$')
WRITTEN = re.compile(r"pwrite64\((\d+),")
SYNCED = re.compile(r"^(\d+) +(?:fdatasync|fsync)\((\d+)(\)| <unfinished)")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (?:fdatasync|fsync) resumed>")
ANSWERED = re.compile(r'write\(1, "([a-z]+-\d)')


def unsynced_answers(lines: list[str]) -> tuple[int, list[str]]:
    """Return how many answers there were, and those before which a write was not synced.

    The keys are synced last. What is written to the log of the database after that belongs to the
    pause after an answer, which the writer does not wait with.
    """
    names: dict[str, str] = {}
    waiting: dict[str, str] = {}
    dirty: dict[str, int] = {}
    answers, early, keys_synced = 0, [], 0
    for place, line in enumerate(lines):
        synced = None
        if found := OPENED.search(line):
            names[found[2]] = found[1]
        elif found := WRITTEN.search(line):
            if names.get(found[1], "").endswith(("keys.bin", "-wal")):
                dirty.setdefault(found[1], place)
        elif found := SYNCED.search(line):
            if found[3] == ")":
                synced = found[2]
            else:
                waiting[found[1]] = found[2]
        elif found := RESUMED.search(line):
            synced = waiting.pop(found[1], None)
        elif found := ANSWERED.search(line):
            answers += 1
            of_keys = [fd for fd in dirty if names[fd].endswith("keys.bin")]
            older = [fd for fd, since in dirty.items() if since < keys_synced]
            early += [found[1]] * bool(of_keys or older)
        if synced is not None:
            dirty.pop(synced, None)
            keys_synced = place if names.get(synced, "").endswith("keys.bin") else keys_synced
    return answers, early


@pytest.mark.service
@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_every_answer_comes_after_its_syncs(tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    opened(state).close()
    traced = [str(STRACE), "-f", "-qq", "-o", str(log), "-e"]
    traced += ["trace=openat,pwrite64,write,fdatasync,fsync"]
    subprocess.run([*traced, sys.executable, str(STORY), str(state)], check=True, timeout=300)
    lines = log.read_text(errors="replace").splitlines()
    assert unsynced_answers(lines) == (7, [])
    # Control: without the syncs of either file the same lines accuse every answer.
    for name in (r"keys\.bin", r"ledger\.db-wal"):
        number = next(m[1] for line in lines if (m := re.search(rf"{name}\".* = (\d+)$", line)))
        without = [line for line in lines if f"fdatasync({number}" not in line]
        assert len(unsynced_answers(without)[1]) == 7, name
