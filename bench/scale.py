"""Time what one change costs while the federation grows: CPU seconds and growth exponents.

    python bench/scale.py --people 10000 100000        # 1000000 needs 6 GB

People have 20 records each, of items drawn by a power law. One line per operation: seconds at each
size, and the exponent of their growth between the first and the last size (0: the cost follows the
change, 1: it follows the federation), with its bound.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import rescind as rs
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.methods.additive.gram import Gram
from rescind.methods.sharing.fedshare import FedShare
from rescind.storage.federations import load_federation, save_federation

EACH = 20
"""Records of a person."""
ITEMS = 2000
LENDERS = 10_000
"""People who lend at every size, so that only the others grow in number."""
BOUNDS = {"save": 1.1, "load": 1.1, "first loans": 1.1, "start": 1.1}
"""Growth exponents of what must read everything; everything else: `SMALL`."""
SMALL = 0.2


def federation(people: int) -> Holdings:
    """Return people with distinct items by a power law; 18 of 20 records are for training."""
    chance = torch.Generator().manual_seed(people)
    shape = (people, EACH + 10)
    drawn = torch.rand(shape, generator=chance).pow_(3).mul_(ITEMS).long().sort(1).values
    new = torch.ones_like(drawn, dtype=torch.bool)
    new[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    new &= new.cumsum(1) <= EACH
    client, place = new.nonzero(as_tuple=True)
    records = Records.of(client, drawn[client, place], torch.arange(len(client)))
    split = torch.zeros(len(client), dtype=torch.int8)
    split[torch.rand(len(client), generator=chance) < 0.1] = 2
    return Holdings.of(records, split, people, ITEMS)


def loans(holdings: Holdings, people: int) -> Share:
    """Return half the training records of the first people."""
    rows = (holdings.split == TRAIN) & (holdings.records.client < people)
    rows &= holdings.records.time % 2 == 0
    return Share(holdings.records[rows])


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds, and the result."""
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def median(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


def events(fed: Federation, kind: str, count: int) -> Iterator[Event]:
    """Yield single events of different people: lenders come first."""
    for client in range(3, 3 + count):
        lent = fed.world.shared.of_clients(torch.tensor([client]))
        held = fed.now.vault.holdings.records.of_clients(torch.tensor([client]))
        match kind:
            case "Unshare":
                yield Unshare(lent[:1])
            case "Share":
                held = fed.now.vault.holdings.of_clients("unshared", torch.tensor([client])).item
                yield Share(Records.of([client], held[:1]))
            case "Erase":
                yield Erase(held[:1])
            case "Withdraw":
                yield Withdraw(client)


def changes(fed: Federation, count: int) -> Iterator[tuple[str, float]]:
    """Time each kind of event, one after another on the same federation."""
    for kind in ("Unshare", "Share", "Erase", "Withdraw"):
        taken, now = [], fed
        for event in events(fed, kind, count):
            took, now = clocked(lambda now=now, event=event: now.apply(event))
            taken.append(took)
        yield f"apply {kind}", median(taken)


def measured(people: int, count: int = 7) -> dict[str, float]:
    """Return CPU seconds of every operation at one size."""
    took: dict[str, float] = {}
    data = federation(people)
    took["start"], fed = clocked(lambda: Federation.start(data, Gram(), seed=0))
    share = loans(data, LENDERS)
    took["first loans"], fed = clocked(lambda: fed.apply(share))
    took |= changes(fed, count)
    with TemporaryDirectory() as folder:
        took["save"], _ = clocked(lambda: save_federation(fed, Path(folder) / "run"))
        took["load"], _ = clocked(lambda: load_federation(Path(folder) / "run"))
    fed = fed.run(1)
    taken, cost, now = [], [], fed
    for event in events(fed, "Withdraw", count):
        seconds, (now, seen) = clocked(
            lambda now=now, event=event: rs.forget(now, event, audits="none")
        )
        taken.append(seconds)
        cost.append(_arithmetic(now))
    took["Gram forgets one person"], took["its arithmetic"] = median(taken), median(cost)
    del fed, now, seen
    gc.collect()
    fed = Federation.start(data, FedShare(), seed=0).apply(share).run(2)
    taken = []
    for _ in range(count):
        seconds, fed = clocked(lambda fed=fed: fed.run(1))
        taken.append(seconds)
    took["FedShare round of 256"] = median(taken)
    return took


def _arithmetic(fed: Federation) -> float:
    """Return the seconds of adding one person's pairs to the sum and the weights again."""
    from rescind.methods.additive import _additive as additive

    method, now = fed.method, fed.now
    who = (now.state.own["counted"] >= 0).nonzero().squeeze(1)[-1:]
    sums, _ = additive._answers(method, fed, now.vault, who, additive.LEAVE)
    return clocked(lambda: method.server_absorb(now.state, sums, fed.world, who[:0]))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, nargs="+", default=[10_000, 100_000])
    people = parser.parse_args().people
    torch.set_num_threads(1)
    measured(1000)  # compile, and allocate once
    figures = [measured(size) for size in people]
    print("| CPU ms |", " | ".join(f"{size:,} people" for size in people), "| growth | at most |")
    print("|---|" + "---|" * (len(people) + 2))
    for name in figures[0]:
        row = [1000 * figure[name] for figure in figures]
        growth = math.log(row[-1] / row[0]) / math.log(people[-1] / people[0])
        cells = " | ".join(f"{value:,.2f}" for value in row)
        print(f"| {name} | {cells} | {growth:.2f} | {BOUNDS.get(name, SMALL)} |")


if __name__ == "__main__":
    main()
