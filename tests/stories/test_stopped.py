"""SIGTERM and Ctrl-C end long commands in one way: no traceback, nothing left, how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import pytest

import rescind as rs
from killing import ENVIRONMENT, TINY
from rescind import cli
from rescind.cli.progress import Followed
from rescind.cli.stopping import INTERRUPTED, TERMINATED
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import read
from rescind.forgetting.parallel import worker_pool

PATIENCE = 300.0
PLACES = ("cache", "home")
NOISE = ("Traceback", "resource_tracker", "leaked", "Exception ignored", "KeyboardInterrupt")


def begin(here: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a group of its own, as a service manager does."""
    with open(here / "said", "w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "rescind.cli", *words],
            cwd=here,
            stdout=said,
            stderr=said,
            text=True,
            start_new_session=True,
            env={
                **ENVIRONMENT,
                "RESCIND_CACHE": str(here / "cache"),
                "RESCIND_HOME": str(here / "home"),
            },
        )


def group_of(pid: int) -> list[int]:
    """Return the processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def stopped(here: Path, process, sign, everybody=False) -> str:
    """Send SIGTERM when this is true of what was said; return all that was said."""
    end = time.monotonic() + PATIENCE
    while not sign(said := (here / "said").read_text()):
        assert process.poll() is None, f"it ended before: {said}"
        assert time.monotonic() < end, said
        time.sleep(0.02)  # polling, up to the deadline
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGTERM)
    code = process.wait(PATIENCE)
    said = (here / "said").read_text()
    assert code == TERMINATED, said
    while left := group_of(process.pid):
        assert time.monotonic() < end, f"left: {left}"
        time.sleep(0.02)
    assert not [word for word in NOISE if word in said], said
    assert said.count("stopped.") == 1, said
    return said


def test_an_import_stores_nothing(tmp_path):
    rows = "".join(f"u{n % 997},i{n % 911},{n}.5\n" for n in range(400_000))  # cell by cell
    (tmp_path / "a.csv").write_text("user,item,time\n" + rows)
    process = begin(tmp_path, "data", "import", "a.csv", "--name", "mine")
    maps = Path(f"/proc/{process.pid}/maps")
    said = stopped(tmp_path, process, lambda _: "pyarrow/_csv" in maps.read_text())
    assert "stopped. Nothing was stored. To begin again, give the same command." in said
    assert not list((tmp_path / "cache").rglob("*.parquet"))


def test_tuning_writes_no_recipe(tmp_path):
    process = begin(tmp_path, "tune", "synthetic", "--rounds", "1000")
    said = stopped(tmp_path, process, lambda said: "tuning FedShare on synthetic" in said)
    assert "stopped. Nothing was written. To begin again, give the same command." in said
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.data
@pytest.mark.slow
def test_a_lifecycle_keeps_the_cells_that_are_finished(tmp_path):
    words = ("life", "--method", "Gram", "--seeds", "2", "--blocks", "4", "--out", "life")
    process = begin(tmp_path, *words)
    said = stopped(tmp_path, process, lambda said: "Gram, seed 1" in said)
    assert "stopped. Finished cells are kept. To go on, give the same command." in said
    assert [path.name for path in tmp_path.rglob("*.json")] == ["gram-seed-0-of-4.json"]


@pytest.mark.slow
def test_a_request_that_is_answered_by_retraining_can_be_given_again(tmp_path):
    """Stopped beside workers of the audit."""
    recipe = TINY.replace("users = 30", "users = 80").replace("= 300", "= 900")  # to be audited
    (tmp_path / "recipe.toml").write_text(recipe)
    run_cell(read(tmp_path / "recipe.toml").cells[0], tmp_path / "run")
    before = contents(tmp_path / "run")
    words = ("forget", "run", "--draw", "0.9", "--audit", "standard")
    stopped(tmp_path, begin(tmp_path, *words), lambda said: " of 5 retrained models" in said)
    assert contents(tmp_path / "run") == before
    again = begin(tmp_path, *words)
    assert again.wait(PATIENCE) == 0, (tmp_path / "said").read_text()
    assert list((tmp_path / "home" / "answers").glob("*.zip"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("signal_", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)]
)
def test_a_command_that_has_not_begun_ends_in_the_same_way(monkeypatch, capsys, signal_, code):
    """While the command line is read, typer does not hear signals."""
    monkeypatch.setattr(cli, "_ask", lambda: signal.raise_signal(signal_))
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # `make test &` ignores it
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, heeded)
    assert stop.value.code == code
    assert capsys.readouterr().err == "\nstopped. Give the same command to begin again.\n"


def test_a_command_that_heeds_no_signal_is_noticed(tmp_path):
    code = "import time; print('begun', flush=True); time.sleep(600)"
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=said, start_new_session=True
        )
    with pytest.raises(AssertionError, match="begun"):
        stopped(tmp_path, process, lambda said: "begun" in said)
    assert process.returncode == -signal.SIGTERM


def interrupted(pool: ProcessPoolExecutor) -> None:
    """Interrupt a block while a worker of its pool is at work."""
    future = pool.submit(time.sleep, 5)
    while not future.running():
        time.sleep(0.02)
    raise Interrupted(future)


class Interrupted(KeyboardInterrupt):
    """Carries the work that was begun."""


def test_workers_end_with_an_interrupt_and_not_with_their_work():
    with pytest.raises(Interrupted) as stop, worker_pool(1, rs.methods.FedAvg()) as pool:
        interrupted(pool)
    assert isinstance(stop.value.args[0].exception(), BrokenProcessPool)
    with (
        pytest.raises(Interrupted) as stop,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):  # the control
        interrupted(pool)
    assert stop.value.args[0].exception() is None, "it was waited for"


def test_what_the_server_does_is_read_from_its_log(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("2026-01-01 10:00:00,000 round 99: of an earlier run\n")
    follow = Followed(log, 20)
    assert follow.told() == "waiting for the server"
    for line, told in (
        ("2026-01-01 10:00:01,000 waiting for 2 silos\n", "waiting for 2 silos"),
        ("2026-01-01 10:00:02,000 round 4: 30 clients, refused {}\n", "round 4 of 20"),
        ("2026-01-01 10:00:03,000 round 5: 30 cl", "round 4 of 20"),
        ("ients, refused {}\n  more of it\n", "round 5 of 20"),
        ("2026-01-01 10:00:04,000 round 23: of an unlearner\n", "round 23"),
    ):
        with log.open("a") as file:
            file.write(line)
        assert follow.told() == told
    with log.open("a") as file:
        file.write("2026-01-01 00:00:00,000 request 2 of 3\n2026-01-01 00:00:00,000 round 4: 9 c\n")
    assert follow.told() == "request 2 of 3, round 4 of 20"
    assert Followed(tmp_path / "none", 3).told() == "waiting for the server"
