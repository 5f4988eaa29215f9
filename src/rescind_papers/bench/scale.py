"""What one change costs while a federation grows: CPU seconds, and exponents with their bounds.

People have 20 records each, of 2,000 items by a power law. An exponent is 0 if the cost follows the
change, 1 if it follows the federation.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.forgetting.forget import forget
from rescind.methods.additive._additive import _answers
from rescind.methods.additive._exchange import LEAVE
from rescind.methods.additive.gram import Gram
from rescind.methods.sharing.fedshare import FedShare
from rescind.storage.federations import load_federation, save_federation

EACH = 20
"""Records of a person."""
ITEMS = 2000
LENDERS = 1000
"""People who lend in FedShare at every size: its server learns from all loans in every round."""
LINEAR = ("start", "first loans", "save", "load")
"""What has to read everything."""


def bound(name: str) -> float:
    """Return the largest growth exponent allowed."""
    return 1.1 if name in LINEAR else 0.2


def exponent(seconds: list[float], people: list[int]) -> float:
    """Return the growth between the smallest and the largest federation; below 0 it is noise."""
    return max(math.log(seconds[-1] / seconds[0]) / math.log(people[-1] / people[0]), 0.0)


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
                kept = fed.now.vault.holdings.of_clients("unshared", torch.tensor([client]))
                yield Share(Records.of([client], kept.item[:1]))
            case "Erase":
                yield Erase(held[:1])
            case "Withdraw":
                yield Withdraw(client)


def changes(fed: Federation, count: int) -> Iterator[tuple[str, float]]:
    """Time each kind of event, one after another on the same federation."""
    for kind in ("Unshare", "Share", "Erase", "Withdraw"):
        taken, now = [], fed
        for event in events(fed, kind, count):
            took, now = clocked(partial(now.apply, event))
            taken.append(took)
        yield f"apply {kind}", median(taken)


def measured(people: int, count: int = 7) -> dict[str, float]:
    """Return CPU seconds of every operation at one size."""
    took: dict[str, float] = {}
    data = federation(people)
    took["start"], fed = clocked(lambda: Federation.start(data, Gram(), seed=0))
    share = loans(data, people // 2)
    took["first loans"], fed = clocked(lambda: fed.apply(share))
    took |= changes(fed, count)
    with TemporaryDirectory() as folder:
        took["save"], _ = clocked(lambda: save_federation(fed, Path(folder) / "run"))
        took["load"], _ = clocked(lambda: load_federation(Path(folder) / "run"))
    fed = fed.run(1)
    taken, cost, now = [], [], fed
    for event in events(fed, "Withdraw", count):
        seconds, (now, seen) = clocked(partial(forget, now, event, audits="none"))
        taken.append(seconds)
        cost.append(_arithmetic(now))
    took["Gram forgets one person"], took["its arithmetic"] = median(taken), median(cost)
    del fed, now, seen
    gc.collect()
    fed = Federation.start(data, FedShare(), seed=0).apply(loans(data, LENDERS)).run(2)
    taken = []
    for _ in range(count):
        seconds, fed = clocked(partial(fed.run, 1))
        taken.append(seconds)
    took["FedShare round of 256"] = median(taken)
    return took


def _arithmetic(fed: Federation) -> float:
    """Return the seconds of taking one person's kept pairs out of the sum and the weights."""
    method, now = fed.method, fed.now
    assert isinstance(method, Gram)
    who = (now.state.own["counted"] >= 0).nonzero().squeeze(1)[-1:]
    sums, _ = _answers(method, fed, now.vault, who, LEAVE)
    return clocked(lambda: method.server_absorb(now.state, sums, fed.world))[0]
