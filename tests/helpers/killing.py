"""Runs that are killed and resumed: how they are started, struck, and compared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.core import params
from rescind.errors import DataError
from rescind.storage.federations import load_federation

NURSE = Path(__file__).parents[1] / "slow" / "failpoint.py"
PATIENCE = 120.0  # seconds until a run that should go on is given up; a busy machine is slow

# Mini-batches, Adam at clients and server with moments that are kept, lending, and a rule that
# stops early: measured every 2 rounds, written every 3, so the two seldom coincide.
RECIPE = """
title = "A small table"
[data]
name = "synthetic"
users = 40
items = 30
interactions = 500
[sharing]
ratio = [1, 1, 1]
[method]
name = "FedAvg"
clients_per_round = 12
batch_size = 2
epochs = 2
optimiser = "adam"
keep_moments = true
rate = 0.1
private_rate = 0.1
server_optimiser = "adam"
server_rate = 0.3
[method.model]
name = "LightGCN"
dim = 8
[run]
rounds = 200
evaluate_every = 2
checkpoint_every = 3
patience = 12
"""
# Cheaper rounds, and the first disappointment is the end.
SHORT = (
    RECIPE.replace("batch_size = 2\nepochs = 2", "batch_size = 4")
    .replace("patience = 12", "patience = 2")
    .replace("rounds = 200", "rounds = 12")
)
# Seconds, for commands on a finished run.
TINY = """
title = "A small table"
[data]
name = "synthetic"
users = 30
items = 25
interactions = 300
[sharing]
ratio = [1, 1, 1]
[method]
name = "FedAvg"
clients_per_round = 10
[method.model]
name = "MF"
dim = 4
[run]
rounds = 4
evaluate_every = 2
checkpoint_every = 4
"""
TWO_CELLS = SHORT + "[axes]\nseed = [0, 1]\n"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
# Facts that differ between runs; privacy also counts rounds that may have been made twice.
TIDES = ("artefact", "seconds", "date", "peak_memory_bytes", "versions", "privacy")


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything it said."""
        return self.out + self.err


class Nursery:
    """Starts commands as children of one process that has the libraries loaded."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.process = subprocess.Popen(
            [sys.executable, str(NURSE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the nursery died"
        return json.loads(line)

    def order(self, words: list[str], at: int = 0, how: str = "none", book: str = "") -> int:
        """Start a command below `here`; returns its process id."""
        assert self.process.stdin is not None
        order = {
            "words": words,
            "at": at,
            "how": how,
            "book": book,
            "root": str(self.here),
            "here": str(self.here),
            "out": str(self.here / "stdout"),
            "err": str(self.here / "stderr"),
        }
        (self.here / "stderr").write_text("")
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self._hear()["pid"])

    def wait(self) -> Ended:
        """Wait until the command has ended."""
        code = int(self._hear()["code"])
        return Ended(code, *((self.here / n).read_text() for n in ("stdout", "stderr")))

    def run(self, *words: str, at: int = 0, how: str = "none", book: str = "") -> Ended:
        """Run a command to its end, whatever that is."""
        self.order(list(words), at, how, book)
        return self.wait()

    def close(self) -> None:
        """Send the nursery home."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)


@contextmanager
def nursery(here: Path) -> Iterator[Nursery]:
    """A nursery for the length of a block."""
    it = Nursery(here)
    try:
        yield it
    finally:
        it.close()


def command(here: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command as a person does, in a process of its own."""
    with open(here / "stdout", "w") as out, open(here / "stderr", "w") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "rescind.cli", *words],
            cwd=here,
            stdout=out,
            stderr=err,
            text=True,
            env=ENVIRONMENT,
        )


def strike(
    here: Path, pid: int, moment: str, offset: float, alive: Any = None, said: Path | None = None
) -> None:
    """SIGKILL a process a little after a sign of progress below a folder.

    moment: "line 6" (stderr says so), "file 6" (the checkpoint of that round is there) or
    "begin 0" (the first word of the run)
    """
    kind, number = moment.split()
    said = said or here / "stderr"
    deadline = time.monotonic() + PATIENCE
    while not _there(here, said, kind, int(number)):
        if time.monotonic() > deadline or (alive is not None and not alive()):
            raise AssertionError(f"{moment} never came: {said.read_text()}")
        time.sleep(0.001)  # polling, up to the deadline
    time.sleep(offset)  # at most some hundredths: any place between two signs may be hit
    os.kill(pid, signal.SIGKILL)


def _there(here: Path, said: Path, kind: str, number: int) -> bool:
    if kind == "begin":
        return " rounds" in said.read_text()
    if kind == "line":
        return f"  round {number}:" in said.read_text()
    return any(here.rglob(f"round-{number:08d}.safetensors"))


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on having been killed: facts, and the model bit by bit."""
    facts = json.loads((folder / "run.json").read_text())
    tensors, notes = params.load(folder / "model" / "server.safetensors")
    model = {
        "server": {n: params.digest({n: v}) for n, v in tensors.items()},
        "notes": _lasting(json.loads(notes["facts"])),
        "files": files(folder / "model"),  # named by their content
    }
    return {"facts": {k: v for k, v in facts.items() if k not in TIDES}, "model": model}


def _lasting(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes without digests of events, keyed anew in every run."""
    kept = dict(notes)
    if "events" in kept:
        kept["events"] = [(kind, at) for kind, _, at in kept["events"]]
    return kept


def files(folder: Path) -> list[str]:
    """What lies below a folder, so that litter is seen."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def saved(folder: Path) -> dict[str, str] | None:
    """The digests of the model a person would load now; None: there is none, and it is said."""
    try:
        fed = load_federation(folder / "model")
    except DataError:
        return None
    return {
        "public": params.digest(fed.now.state.public),
        "private": params.digest(fed.now.vault.private),
    }


def touches(nurse: Nursery, words: list[str], out: str) -> list[tuple[str, str]]:
    """Run a command to its end; (kind, path) of every touch of the disk, in order."""
    book = nurse.here.with_name(f"{nurse.here.name}-book")
    book.unlink(missing_ok=True)
    ended = nurse.run(*words, "--out", out, how="never", book=str(book))
    assert ended.code == 0, ended.err
    return [tuple(line.split(" ", 1)) for line in book.read_text().splitlines()]


def lines(recipe: Path) -> list[tuple[str, int]]:
    """Which runs have a line in the results."""
    text = recipe.with_suffix(".jsonl").read_text()
    return [(x["cell"], x["seed"]) for x in map(json.loads, text.splitlines())]


@dataclass(frozen=True)
class Yardstick:
    """What an uninterrupted run left: every killed and resumed one is held against it."""

    folder: Path
    cells: tuple[str, ...]
    """Folders of the cells below it; "." where there is one cell only."""

    def same(self, other: Path) -> None:
        """Fail unless the other run came to the same bits and left nothing else behind."""
        for cell in self.cells:
            whole, found = outcome(self.folder / cell), outcome(other / cell)
            for part, facts in whole.items():
                for name, value in facts.items():
                    assert found[part][name] == value, f"{cell}: {part} {name}"
        assert files(other) == files(self.folder)

    def never_mixed(self, other: Path) -> None:
        """Fail if something that can be read now is neither nothing nor the final thing."""
        for cell in self.cells:
            facts = json.loads((self.folder / cell / "run.json").read_text())
            assert saved(other / cell) in (None, facts["model"])
            if (other / cell / "run.json").exists():
                half = json.loads((other / cell / "run.json").read_text())
                assert half["model"] == facts["model"]
                assert saved(other / cell) == facts["model"]
        for path in other.rglob("round-*.safetensors"):
            params.load(path)


def die_and_resume(
    nurse: Nursery, yard: Yardstick, recipe: Path, at: int, how: str
) -> tuple[Ended, Ended]:
    """Strike a new run at one touch of the disk, look at what is left, resume, compare."""
    out = nurse.here / "cut"
    shutil.rmtree(out, ignore_errors=True)
    recipe.with_suffix(".jsonl").unlink(missing_ok=True)
    words = ["run", recipe.name, "--record", "--out", "cut"]
    struck = nurse.run(*words, at=at, how=how)
    yard.never_mixed(out)
    after = nurse.run(*words, "--resume")
    assert after.code == 0, f"touch {at} {how}: {after.err}"
    yard.same(out)
    seeds = range(len(yard.cells))
    assert lines(recipe) == [(recipe.stem, seed) for seed in seeds], f"touch {at} {how}"
    return struck, after
