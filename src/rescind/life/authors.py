"""Write a story: draw who lends, regrets, leaves and comes back. Everything follows from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from rescind.core.clock import Clock
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.data import Dataset
from rescind.data import arrays as columns
from rescind.data.blocks import arrange, block_split, chronological
from rescind.data.sequences import in_order
from rescind.errors import ConfigError
from rescind.life.ledger import TRAIN, VALID, Ledger, Pair
from rescind.life.story import Step, Story


@dataclass(frozen=True)
class Plot:
    """How much of everything happens. Shares are of the people concerned; at least one."""

    lend_all: float = 0.1
    lend_part: float = 0.2
    part: float = 0.3
    """Share of their records that the second kind of lenders lend."""
    unshare: float = 0.1
    """Lenders who take back all they lend, in each block."""
    erase: float = 0.05
    """People who erase half of their records, in each block."""
    withdraw: float = 0.03
    burst: float = 0.05
    """People who leave at once, in one block."""
    silos: int = 10
    """People belong to silos, of which one leaves."""


def write_story(
    dataset: Dataset,
    seed: int = 0,
    blocks: int = 12,
    task: str = "ranking",
    plot: Plot | None = None,
) -> Story:
    """Return the story of a dataset. task: "ranking", or "next" (the last item is held out)"""
    if task not in ("ranking", "next"):
        raise ConfigError(f"the task is 'ranking' or 'next' for items; got '{task}'.")
    data = in_blocks(dataset, max(blocks, 1))
    author = _Author(data, seed, blocks, task, plot or Plot())
    about: dict[str, Any] = {
        "dataset": dataset.name, "data": dataset.digest, "task": task, "seed": seed,
        "blocks": blocks, "users": len(data.users), "items": len(data.items),
    }  # fmt: skip
    return Story(about, tuple(author.steps()), Labels.of(data))


def in_blocks(dataset: Dataset, blocks: int) -> Dataset:
    """Return the first copy of each pair, in blocks of equal size by time.

    Rows without times only have an order for each person, so a person arrives whole, in one block.
    """
    timed = dataset.has_time
    if not timed:
        dataset = in_order(dataset)
    order = np.lexsort((np.arange(len(dataset)), dataset.time))
    key = dataset.user[order] * len(dataset.items) + dataset.item[order]
    _, first = np.unique(key, return_index=True)
    once = dataset.select(np.sort(order[first]))
    once = replace(once, split=None, block=None)
    if timed:
        return arrange(once, chronological(once, base=1 / blocks, parts=blocks - 1))
    people = torch.arange(len(once.users))
    joins = Clock(0).integers("life joins", people, 0, blocks).numpy().astype(np.int8)
    return arrange(once, joins[once.user])


class Author:
    """Writes step by step; every draw follows from the seed."""

    prefix = "life"

    def __init__(self, seed: int, blocks: int) -> None:
        if blocks < 4:
            raise ConfigError(f"a story needs 4 blocks or more, as some come back; got {blocks}.")
        self.clock, self.blocks, self.number = Clock(seed), blocks, 0

    def draw(self, why: str, people: Iterable[int], share: float) -> list[int]:
        """Return a share of the people, at least one if there are any, sorted."""
        ids = sorted(people)
        bits = self.clock.at(self.number).bits(f"{self.prefix} {why}", torch.tensor(ids).long())
        order = torch.argsort(bits, stable=True).tolist()
        return sorted(ids[n] for n in order[: max(1, round(share * len(ids)))])


class _Author(Author):
    """Keeps a ledger to know who could do what."""

    def __init__(self, data: Dataset, seed: int, blocks: int, task: str, plot: Plot) -> None:
        assert data.block is not None
        super().__init__(seed, blocks)
        self.plot, self.ledger = plot, Ledger()
        self.sizes = len(data.users), len(data.items)
        self.banned = set[int]()
        self.past: dict[int, dict[int, int]] = {}
        """Training items of who left, with their times: what they may bring back."""
        split = block_split(data, data.block, seed) if task == "ranking" else _last(data)
        rows = zip(*(c.tolist() for c in (data.user, data.item, data.time, split)), strict=True)
        self.rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(blocks)]
        for block, row in zip(data.block.tolist(), rows, strict=True):
            self.rows[block].append(row)

    def steps(self) -> Iterator[Step]:
        middle = {self.blocks * 5 // 12: ("burst", self._burst),
                  self.blocks * 8 // 12: ("silo", self._silo),
                  self.blocks * 10 // 12: ("item", self._item)}  # fmt: skip
        for number in range(self.blocks):
            self.number = number
            back = self._back()
            yield from self._happens("back", partial(_joins, back))
            yield from self._happens("arrive", partial(self._arrival, back))
            for why, what in (
                ("lend", self._lend), ("unshare", self._unshare), ("erase", self._erase),
                ("withdraw", self._withdraw),
            ):  # fmt: skip
                yield from self._happens(why, what)
            if self.number in middle:
                yield from self._happens(*middle[self.number])

    def _happens(self, why: str, what: Callable[[], list[Event]]) -> Iterator[Step]:
        events = what()
        for event in events:
            if isinstance(event, Withdraw):
                self.past[event.client] = self.ledger.trained(event.client)
            self.ledger.apply(event)
        if events:
            yield Step(self.number, why, tuple(events))

    # -- what happens ----------------------------------------------------------------------------

    def _back(self) -> list[int]:
        """One of those who left in an earlier block."""
        gone = [u for u, at in self.ledger.left.items() if at < self.number - 1 and self.past[u]]
        return self.draw("back", gone, 0.0) if gone else []

    def _arrival(self, back: list[int]) -> list[Event]:
        """The records of the block, and half of what those who come back had before."""
        rows = [r for r in self.rows[self.number] if r[0] not in self.ledger.left]
        for user in back:
            rows += [(user, i, t, TRAIN) for i, t in sorted(self.past[user].items())[::2]]
        rows = sorted({(r[0], r[1]): r for r in rows if r[1] not in self.banned}.values())
        users, items, times, split = zip(*rows, strict=True) if rows else ((), (), (), ())
        kinds = torch.tensor(split, dtype=torch.int8)
        return [Arrive(Records.of(users, items, times), kinds, *self.sizes)]

    def _lend(self) -> list[Event]:
        """Of the people of this block some lend all their new records, some a part."""
        new: dict[int, list[int]] = {}
        for user, mine in self.ledger.held.items():
            items = [i for i, (_, s, b) in mine.items() if s == TRAIN and b == self.number]
            if items and user in self.ledger.members:
                new[user] = sorted(items)
        if not new:
            return []
        plot = self.plot
        lenders = self.draw("lend", new, plot.lend_all + plot.lend_part)
        whole = set(
            self.draw("lend all", lenders, plot.lend_all / (plot.lend_all + plot.lend_part))
        )
        pairs = [(u, i) for u in lenders for i in (new[u] if u in whole else self._some(u, new[u]))]
        return [Share(_records(pairs))]

    def _some(self, user: int, items: list[int]) -> list[int]:
        many = max(1, round(self.plot.part * len(items)))
        bits = self.clock.at(self.number).bits(f"life part {user}", torch.tensor(items))
        return [items[n] for n in torch.argsort(bits, stable=True)[:many].tolist()]

    def _unshare(self) -> list[Event]:
        lenders = [u for u, items in self.ledger.lent.items() if items]
        if not lenders:
            return []
        chosen = self.draw("unshare", lenders, self.plot.unshare)
        return [Unshare(_records((u, i) for u in chosen for i in sorted(self.ledger.lent[u])))]

    def _erase(self) -> list[Event]:
        able = [u for u in self.ledger.members if len(self.ledger.trained(u)) >= 4]
        chosen = self.draw("erase", able, self.plot.erase) if able else []
        pairs = [(u, i) for u in chosen for i in sorted(self.ledger.trained(u))[::2]]
        return [Erase(_records(pairs))] if pairs else []

    def _withdraw(self) -> list[Event]:
        return [Withdraw(u) for u in self.draw("withdraw", self._able(), self.plot.withdraw)]

    def _burst(self) -> list[Event]:
        return [Withdraw(u) for u in self.draw("burst", self._able(), self.plot.burst)]

    def _silo(self) -> list[Event]:
        members = sorted(self._able())
        silo = self.clock.at(0).integers("life silo", torch.tensor(members), 0, self.plot.silos)
        home = silo.tolist()
        return [Withdraw(u) for u, at in zip(members, home, strict=True) if at == home[0]]

    def _able(self) -> list[int]:
        """Members whose leaving tells something: they have training records."""
        return [u for u in self.ledger.members if self.ledger.trained(u)]

    def _item(self) -> list[Event]:
        """One item, held by many but not by most, is erased for everybody, and never comes back."""
        owners: dict[int, list[int]] = {}
        for user, mine in self.ledger.held.items():
            for item in mine:
                owners.setdefault(item, []).append(user)
        ranked = sorted(owners, key=lambda item: (-len(owners[item]), item))
        chosen = ranked[len(ranked) // 20]
        self.banned.add(chosen)
        return [Erase(_records((user, chosen) for user in sorted(owners[chosen])))]


def _joins(people: list[int]) -> list[Event]:
    return [Join(user) for user in people]


def _records(pairs: Iterable[Pair]) -> Records:
    users, items = zip(*pairs, strict=True)
    return Records.of(list(users), list(items))


def _last(data: Dataset) -> columns.Labels:
    """Hold out the last item of each person in each block, and the one before for validation."""
    assert data.block is not None
    order = np.lexsort((np.arange(len(data)), data.time, data.user, data.block))
    group = data.block[order].astype(np.int64) * len(data.users) + data.user[order]
    end = np.searchsorted(group, group, side="right")
    begin = np.searchsorted(group, group, side="left")
    from_end, count = end - 1 - np.arange(len(group)), end - begin
    labels = np.zeros(len(data), dtype=np.int8)
    labels[order] = np.where(
        count < 3, TRAIN, np.where(from_end == 0, 2, np.where(from_end == 1, VALID, TRAIN))
    )
    return labels
