"""Compare silos with one process: seconds of a round, messages, bytes on the wire.

    python bench/silos.py [--users 6040] [--rounds 3] [--silos 1 2 10 50] [--large 200000]
                          [--deployed 2] [--write docs/results/speed.md]

ML-1M with plain averaging (all clients in every round), in this process and over a grid in memory
that converts messages to Flower's wire format: no network. Silos keep their state on disk. One node
per user is run for the first hundred users and extrapolated. `--large 200000` adds one silo with so
many people, 20 records each of 2,000 items. `--deployed` starts real servers and silos on this
machine, which takes minutes. `--write` puts the table at `<!-- bench/silos.py -->` in a page.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import torch
from flwr.app import Message

from flower.deployments import PATIENCE, Machines, until
from flower.grids import InMemory, silos_of
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.data import load
from rescind.flower.certificates import make_kit
from rescind.flower.run_request import LOG
from rescind.flower.wire.serde import written
from rescind.methods.baselines.fedavg import FedAvg
from rescind_papers.bench.scale import federation
from rescind_papers.pages import write_block

METHOD = replace(FedAvg(), clients_per_round=None)
FEW = 100
"""Number of users in the run with one node per user."""
RECIPE = """
[data]
name = "ml-1m"

[method]
name = "FedAvg"
clients_per_round = 1000000

[run]
rounds = {rounds}
evaluate_every = 1000
checkpoint_every = 1000
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    users: int
    silos: str
    where: str
    cpu: float
    wall: float
    messages: float
    back: float | None = None
    """Megabytes that silos send per round."""
    out: float | None = None
    """Megabytes that the server sends per round."""

    def __str__(self) -> str:
        out, back = ("" if x is None else f"{x:,.1f}" for x in (self.out, self.back))
        figures = f"{self.cpu:,.2f} | {self.wall:,.2f} | {self.messages:,.0f} | {out} | {back}"
        return f"| {self.users:,} | {self.silos} | {self.where} | {figures} |"


HEAD = (
    "| users | silos | where | CPU s a round | wall s a round | messages | MB out | MB back |\n"
    "|---:|---:|---|---:|---:|---:|---:|---:|"
)


def first(holdings: Holdings, users: int) -> Holdings:
    """Return the holdings of the first users."""
    mine = holdings.keep(holdings.records.client < users)
    return replace(mine, members=holdings.members[:users])


def per_round(fed: Federation, rounds: int) -> tuple[float, float, Federation]:
    """Measure CPU and wall seconds of a round, after a warm-up round."""
    fed = fed.run(1)
    cpu, wall = time.process_time(), time.perf_counter()
    fed = fed.run(rounds)
    return (time.process_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds, fed


def over(holdings: Holdings, silos: int, rounds: int) -> Row:
    """Measure silos on a grid in memory."""
    with tempfile.TemporaryDirectory() as folder:
        executor, grid = silos_of(holdings, silos, Path(folder))
        fed = Federation.start(executor.gather(0), METHOD, 0, executor)
        before = executor.line.letters
        cpu, wall, fed = per_round(fed, rounds)
        messages = (executor.line.letters - before) / (rounds + 1)
        out, back = _moved(fed, grid)
        return Row(holdings.clients, f"{silos:,}", "in memory", cpu, wall, messages, back, out)


def _moved(fed: Federation, grid: InMemory) -> tuple[float, float]:
    """Return the megabytes of one more round: from the server, and back."""
    sent, push = [], grid.push_messages

    def counted(messages: Iterable[Message]) -> Iterable[str]:
        every = list(messages)
        sent.extend(len(written(message.content)) for message in every)
        return push(every)

    grid.push_messages, grid.said = counted, []  # type: ignore[method-assign]
    fed.run(1)
    back = sum(len(written(reply.to_records())) for _, reply in grid.said)
    return sum(sent) / 1e6, back / 1e6


def deployed(silos: int, rounds: int, messages: float) -> Row:
    """Measure Flower's processes on this machine, with TLS and keys, after a warm-up round.

    CPU: of all processes together, from the end of the first round to the end of the last.
    messages: per round, as counted on the grid in memory, which sends the same ones
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Machines(folder, silos, recipe=RECIPE.format(rounds=1 + rounds)) as machines:
            kit = make_kit(folder / "kit", silos, ["127.0.0.1"])
            machines.up("--kit", f"{kit}/server")
            for silo in range(silos):
                machines.join(silo, "--kit", f"{kit}/silo-{silo}")
            machines.run("--kit", f"{kit}/operator", "--wait", f"{PATIENCE:g}")
            patience = silos * PATIENCE  # all silos share this machine
            until(lambda: len(_ended(folder)) > 0, "the first round", patience)
            before = _descendants()
            until(lambda: len(_ended(folder)) > rounds, "the last round", patience)
            spent, times = _descendants() - before, _ended(folder)
            machines.finished(patience)
    wall = (times[rounds] - times[0]) / rounds
    where = f"deployed: {os.cpu_count()} cores, {silos} node processes"
    return Row(6040, f"{silos}", where, spent / rounds, wall, messages)


def _descendants() -> float:
    """Return CPU seconds of all child processes, also ended ones (Linux)."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            spent[int(path.parent.name)] = sum(map(int, fields[11:15]))
    below = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= new
    return sum(spent[pid] for pid in below - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def _ended(folder: Path) -> list[float]:
    """Read from the log when each round ended."""
    path = folder / "out" / LOG
    log = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.findall(r"^(\S+ \S+),(\d+) round \d+:", log, re.MULTILINE)
    return [datetime.fromisoformat(day).timestamp() + int(ms) / 1000 for day, ms in found]


def rows(users: int, rounds: int, many: list[int], large: int, real: list[int]) -> Iterator[Row]:
    """Measure the table, row by row."""
    holdings = first(load("ml-1m").on_devices(0), users)
    yield here(holdings, rounds)
    messages = {}
    for silos in sorted({*many, *real}):
        row = over(holdings, silos, rounds)
        messages[silos] = row.messages
        yield row
    if large:
        people = federation(large)
        yield here(people, 1)
        yield over(people, 1, 1)
    one = over(first(holdings, FEW), FEW, 1)
    yield one
    by = users / FEW
    yield Row(
        users, f"{users:,}", f"extrapolated from {FEW}", one.cpu * by, one.wall * by,
        one.messages * by, (one.back or 0.0) * by, (one.out or 0.0) * by,
    )  # fmt: skip
    for silos in real:  # last, since they take longest and may fail on a busy machine
        yield deployed(silos, rounds, messages[silos])


def here(holdings: Holdings, rounds: int) -> Row:
    """Measure rounds in this process."""
    cpu, wall, _ = per_round(Federation.start(holdings, METHOD, 0), rounds)
    return Row(holdings.clients, "none", "one process", cpu, wall, 0, 0.0, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--silos", type=int, nargs="*", default=[1, 2, 10, 50])
    parser.add_argument("--large", type=int, default=0, help="people of one more silo")
    parser.add_argument("--deployed", type=int, nargs="*", default=[])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    lines = [HEAD]
    print(HEAD)
    torch.set_num_threads(1)
    for row in rows(given.users, given.rounds, given.silos, given.large, given.deployed):
        lines.append(str(row))
        print(row, flush=True)
        if given.write:  # after every row, so that a failure loses only one row
            block = "\n".join([*lines, "", _conditions(given.rounds)])
            write_block(given.write, "bench/silos.py", block)
    print(_conditions(given.rounds))


def _conditions(rounds: int) -> str:
    load_, cores = os.getloadavg()[1], os.cpu_count()
    return (
        f"Mean of {rounds} rounds after one that warms up (ML-1M; else of one); bench/silos.py, "
        f"{datetime.now(UTC):%Y-%m-%d}, {cores} cores, load {load_:.0f} while it ran."
    )


if __name__ == "__main__":
    main()
