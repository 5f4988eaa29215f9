"""Time commands of a first hour, and first calls of kernels, in CPU seconds of one thread.

    python bench/commands.py [--turns 3] [--write]    writes a table of docs/performance.md

Each figure is that of a process of its own: its least over the turns, imports included. `recommend`
is given a run of each kind on ML-100K; `run` trains FedShare on ML-1M for 150 rounds, with
evaluation, checkpoints and final measurements, its kernels compiled before. Python's bytecode is
kept in a folder of its own from the first turn on, as an installer writes it: without it, half of
the time of a run is spent on compiling the source of torch.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import rescind as rs
from rescind_papers.bench.speed import in_child
from rescind_papers.pages import write_block

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RUNS = {"Gram": 1, "LocalGram": 1, "FedShare": 5}
"""Rounds of each method whose lists are timed."""


def cpu_seconds(*words: str) -> float:
    """Return the CPU seconds of a command of `rescind`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "rescind.cli", *words]
    subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def saved_runs(folder: Path) -> None:
    """Save a federation of each method."""
    data = rs.load("ml-100k")
    for name, rounds in RUNS.items():
        method = getattr(rs.methods, name)()
        fed = rs.simulate_lending(rs.Federation.start(data, method, seed=0)).run(rounds=rounds)
        rs.save_federation(fed, folder / name)


def first_call(kernel: str) -> float:
    """Return the CPU seconds of a kernel's first call, without a cache of compiled code."""
    with tempfile.TemporaryDirectory() as empty:
        return in_child("first_call", kernel, NUMBA_CACHE_DIR=empty)


def figures(folder: Path) -> dict[str, tuple[Callable[[], float], float]]:
    """Return what is timed, and its bound in CPU seconds."""
    long = ("run", "fedshare/table3", "--cell", "ml-1m/FedShare", "--seeds", "1", "--out")
    found: dict[str, tuple[Callable[[], float], float]] = {
        "`rescind --help`": (partial(cpu_seconds, "--help"), 1),
        "`rescind table fedshare/table3`": (partial(cpu_seconds, "table", "fedshare/table3"), 1),
    }
    for name in RUNS:
        words = ("recommend", str(folder / name), "--user", "1")
        found[f"`rescind recommend`, a run of {name}"] = (partial(cpu_seconds, *words), 1)
    for kernel, name in (("mf", "FedMF"), ("ego", "ego-LightGCN")):
        found[f"first call of {name}, empty cache"] = (partial(first_call, kernel), 3)

    def train() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            return cpu_seconds(*long, out)

    rounds = partial(in_child, "fedshare_rounds", 150, 10)
    found["150 rounds of FedShare on ML-1M with 15 evaluations, once imported"] = (rounds, 8)
    found["`rescind run` of them: imports, data, checkpoints, final measurements"] = (train, 8)
    return found


def main() -> None:
    """Measure in turn, and print the table."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--turns", type=int, default=3)
    words.add_argument("--write", action="store_true", help="write the table of the page")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the processes that are timed
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        folder = Path(scratch)
        saved_runs(folder)
        timed = figures(folder)
        taken: dict[str, list[float]] = {name: [] for name in timed}
        for turn in range(given.turns):  # in turn: other load on the machine affects all of them
            for name, (call, _) in timed.items():
                taken[name].append(call())
                print(f"turn {turn + 1}: {name} {taken[name][-1]:.2f} CPU s", flush=True)
    lines = ["| what | CPU s | at most |", "|---|---|---|"]
    lines += [f"| {n} | {min(taken[n]):.2f} | {most:g} |" for n, (_, most) in timed.items()]
    lines += ["", f"Least of {given.turns} turns; load {os.getloadavg()[1]:.0f} while they ran."]
    print("\n".join(lines))
    if given.write:
        write_block(PAGE, "bench/commands.py", "\n".join(lines))


if __name__ == "__main__":
    main()
