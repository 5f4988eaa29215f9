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
    """Return how many answers there were, and those before which a write was not synced."""
    names: dict[str, str] = {}
    waiting: dict[str, str] = {}
    dirty: set[str] = set()
    answers, early = 0, []
    for line in lines:
        if found := OPENED.search(line):
            names[found[2]] = found[1]
        elif found := WRITTEN.search(line):
            if names.get(found[1], "").endswith(("keys.bin", "-wal")):
                dirty.add(found[1])
        elif found := SYNCED.search(line):
            if found[3] == ")":
                dirty.discard(found[2])
            else:
                waiting[found[1]] = found[2]
        elif found := RESUMED.search(line):
            dirty.discard(waiting.pop(found[1], ""))
        elif found := ANSWERED.search(line):
            answers += 1
            early += [found[1]] * bool(dirty)
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
    # Control: without the syncs of the keys the same lines accuse every answer.
    keys = next(m[1] for line in lines if (m := re.search(r"keys\.bin.* = (\d+)", line)))
    without = [line for line in lines if f"fdatasync({keys})" not in line]
    assert len(unsynced_answers(without)[1]) == 7
