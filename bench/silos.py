"""What silos cost beside one process: CPU seconds of a round, messages, bytes on the wire.

    python bench/silos.py [--users 6040] [--rounds 3]

ML-1M under plain averaging (everybody in every round), in this process and over a grid in memory
that carries Flower's messages through their wire format. Silos keep their state on disk. The last
line has one node per person for the first hundred people, from which 6,040 are extrapolated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.grids import InMemory, silos_of
from rescind.data import load
from rescind.federation import Federation, holdings_of
from rescind.flower.apps import written
from rescind.holdings import Holdings
from rescind.methods.fedavg import FedAvg

METHOD = replace(FedAvg(), clients_per_round=None)


def first(holdings: Holdings, users: int) -> Holdings:
    """The holdings of the first users alone."""
    mine = holdings.records.client < users
    return replace(
        holdings,
        records=holdings.records[mine],
        split=holdings.split[mine],
        block=holdings.block[mine],
        lent=holdings.lent[mine],
        members=holdings.members[:users],
    )


def per_round(fed: Federation, rounds: int) -> float:
    """CPU seconds of a round, after one that warms up."""
    fed = fed.run(1)
    began = time.process_time()
    fed.run(rounds)
    return (time.process_time() - began) / rounds


def over(holdings: Holdings, silos: int, rounds: int) -> tuple[float, float, float]:
    """CPU seconds, messages and megabytes that come back in a round."""
    with tempfile.TemporaryDirectory() as folder:
        executor, grid = silos_of(holdings, silos, Path(folder))
        fed = Federation.start(executor.gather(0), METHOD, 0, executor)
        before = executor.line.letters
        seconds = per_round(fed, rounds)
        letters = (executor.line.letters - before) / (rounds + 1)
        return seconds, letters, _returned(grid, silos)


def _returned(grid: InMemory, silos: int) -> float:
    last = [told for _, told in grid.said if told.facts["verb"] == "train"][-silos:]
    return sum(len(written(told.to_records())) for told in last) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    holdings = first(holdings_of(load("ml-1m"), 0), asked.users)
    alone = per_round(Federation.start(holdings, METHOD, 0), asked.rounds)
    print(f"{'users':>6} {'silos':>6} {'CPU s a round':>14} {'messages':>9} {'MB back':>8}")
    print(f"{asked.users:>6} {'none':>6} {alone:>14.3f} {0:>9} {0:>8.1f}")
    for silos in (1, 2, 10):
        seconds, letters, back = over(holdings, silos, asked.rounds)
        print(f"{asked.users:>6} {silos:>6} {seconds:>14.3f} {letters:>9.0f} {back:>8.1f}")
    few = first(holdings, 100)
    seconds, letters, back = over(few, 100, 1)
    print(f"{100:>6} {100:>6} {seconds:>14.3f} {letters:>9.0f} {back:>8.1f}")
    scale = asked.users / 100
    print(
        f"{asked.users:>6} {asked.users:>6} {seconds * scale:>14.3f} {letters * scale:>9.0f} "
        f"{back * scale:>8.1f}  extrapolated"
    )


if __name__ == "__main__":
    main()
