"""What one change costs while a federation grows: CPU seconds, and exponents with their bounds.

People have 20 records each, of 2,000 items by a power law. An exponent is 0 if the cost follows the
change, 1 if it follows the federation.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.labels import Labels
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
LINEAR = ("start", "first loans", "first save", "load")
"""What has to read everything."""
SAVE = "save after one event"
"""Writes the pieces that changed, and the list of all pieces: 32 bytes for each 2,048 people."""
KINDS = ("Unshare", "Share", "Erase", "Withdraw")
COUNT = 7
"""Turns: each operation is timed so many times at each size, one size after another."""


def bound(name: str) -> float:
    """Return the largest growth exponent allowed."""
    if name == SAVE:
        return 0.4
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


class Sized:
    """Federations of one size, on which changes are timed one after another."""

    def __init__(self, people: int, folder: Path) -> None:
        """Start them. Times what is done once: start, first loans, first save, load."""
        self.taken: dict[str, list[float]] = {}
        self.folder, data = folder / str(people), federation(people)
        names = Labels(tuple(f"person {n}" for n in range(people)))
        start = partial(Federation.start, data, Gram(), seed=0, labels=names)
        fed = self._time("start", start)
        fed = self._time("first loans", partial(fed.apply, loans(data, people // 2)))
        self._time("first save", partial(save_federation, fed, self.folder))
        self._time("load", partial(load_federation, self.folder))
        self.fed, self.left = fed, {kind: events(fed, kind, COUNT) for kind in KINDS}
        self.now = dict.fromkeys(KINDS, fed)
        self.trained = fed.run(1)
        self.leaving = events(self.trained, "Withdraw", COUNT)
        few = Federation.start(data, FedShare(), seed=0).apply(loans(data, LENDERS))
        self.rounds = few.run(2)
        gc.collect()

    def _time(self, name: str, work: Callable[[], Any]) -> Any:
        seconds, made = clocked(work)
        self.taken.setdefault(name, []).append(seconds)
        return made

    def turn(self) -> None:
        """Time one change of every kind."""
        for kind in KINDS:
            event = next(self.left[kind])
            self.now[kind] = self._time(f"apply {kind}", partial(self.now[kind].apply, event))
        changed = self.fed.apply(next(events(self.fed, "Unshare", 1)))
        for fed in (self.fed, changed):  # each differs from what is in the folder
            self._time(SAVE, partial(save_federation, fed, self.folder))
        work = partial(forget, self.trained, next(self.leaving), audits="none")
        self.trained, _ = self._time("Gram forgets one person", work)
        self.taken.setdefault("its arithmetic", []).append(_arithmetic(self.trained))
        self.rounds = self._time("FedShare round of 256", partial(self.rounds.run, 1))

    def found(self) -> dict[str, float]:
        """Return CPU seconds of every operation: the least of its turns, as others disturb."""
        return {name: min(seconds) for name, seconds in self.taken.items()}


def measured(people: Sequence[int], count: int = COUNT) -> list[dict[str, float]]:
    """Return CPU seconds of every operation at each size, in turns through the sizes."""
    with TemporaryDirectory() as folder:
        sized = [Sized(size, Path(folder)) for size in people]
        for _ in range(count):
            for one in sized:
                one.turn()
        return [one.found() for one in sized]


def _arithmetic(fed: Federation) -> float:
    """Return the seconds of taking one person's kept pairs out of the sum and the weights."""
    method, now = fed.method, fed.now
    assert isinstance(method, Gram)
    who = (now.state.own["counted"] >= 0).nonzero().squeeze(1)[-1:]
    sums, _ = _answers(method, fed, now.vault, who, LEAVE)
    return clocked(lambda: method.server_absorb(now.state, sums, fed.world))[0]
