"""A killed audit leaves no process, and the next command sweeps the records it left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import killing
from killing import PATIENCE, TINY, command


def wait_for(what: Callable[[], bool], said: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


def workers_of(parent: int) -> set[int]:
    """The processes below a process, by /proc."""
    below: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            below[int(path.parent.name)] = int(fields[1])
    found, new = set(), {parent}
    while new:
        new = {pid for pid, above in below.items() if above in new}
        found |= new
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc, to see processes")
def test_workers_end_and_records_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(TINY.replace("rounds = 4", "rounds = 400"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setitem(killing.ENVIRONMENT, "TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setitem(killing.ENVIRONMENT, "RESCIND_HOME", str(tmp_path / "home"))
    assert command(tmp_path, "run", "small.toml", "--out", "base").wait() == 0
    base = tmp_path / "base"
    process = command(tmp_path, "audit", "base", "--user", "7", "--workers", "2")
    wait_for(lambda: any(base.rglob("event.safetensors")), "the audit never began")
    wait_for(lambda: len(workers_of(process.pid)) >= 2, "no workers came")
    children = workers_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: all(map(_ended, children)), "workers outlived the audit")
    assert any(base.rglob("event.safetensors")), "the control: it lies there"
    assert command(tmp_path, "recommend", "base", "--user", "3").wait() == 0
    assert not any(base.rglob("event.safetensors"))
    assert not any(base.rglob("rescind-audit-*"))
    assert not any((tmp_path / "tmp").rglob("*.safetensors")), "nothing outside the run"


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
