"""The sum over what people lend, in whole numbers that are changed in place; loads no torch.

The same integers as `Gram` on the same loans, so the same digest and model. Loans stay in memory,
because a person's weight depends on how many items they lend.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.core.digests import array_digest
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _live_kernels as kernels
from rescind.methods.additive._kernels import add_pairs_by_item
from rescind.methods.additive._solving import UNIT, Floats, Ridge, half, inverted

Items = NDArray[np.int32]
Ints = NDArray[np.int64]
MOST_ITEMS = 20_000
"""Largest catalogue: every pair of items takes 2 bytes here, and 12 more while solving."""
MOST_PEOPLE = 2**31 // UNIT - 1
"""People whose sum fits into 4 bytes a pair: each adds 4096 at most. More take 8 bytes."""
NOBODY: Items = np.empty(0, np.int32)


def weight_of(count: int) -> int:
    """Return round(4096 / sqrt(n)), the weight of each pair of somebody who lends n items."""
    return round(UNIT / math.sqrt(count)) if count else 0  # half to even, as np.rint


@dataclass
class Totals:
    """A sum: the lower half of G, how many people lend each item, and how many lend anything."""

    total: NDArray[np.int32] | Ints
    """[I (I + 1) / 2]"""
    owners: Ints
    """[I]"""
    people: int = 0
    records: int = 0

    @property
    def items(self) -> int:
        return len(self.owners)

    def digest(self, min_count: int = 5) -> str:
        """Return the digest that `Gram` with this `min_count` states of the same loans."""
        named = {"gram/0000": self.total.astype(np.int64, copy=False)}
        return array_digest({**named, "owners": self.owners} if min_count else named)

    def of_first(self, items: int) -> Totals:
        """Return the sum of a catalogue that had only its first items, none of the others lent."""
        return replace(self, total=self.total[: half(items)], owners=self.owners[:items])

    def inverse(self, ridge: Ridge) -> Floats:
        """Compute the lower half of C = (G / 4096 + ridge)^-1, to the bits of `Gram`."""
        gram: Floats = np.multiply(self.total, 1.0 / UNIT, dtype=np.float64)
        own = half(np.arange(1, self.items + 1)) - 1  # the diagonal in the half
        gram[own] += ridge.of(gram[own])
        return inverted(gram, self.items)

    def copy(self) -> Totals:
        """Return a sum that does not change any more."""
        return Totals(self.total.copy(), self.owners.copy(), self.people, self.records)


@dataclass(frozen=True)
class Moved:
    """One change of a person: what left the sum, and what came into it."""

    old: Items
    new: Items

    @property
    def parts(self) -> list[tuple[Items, int]]:
        signed = ((self.old, -weight_of(len(self.old))), (self.new, weight_of(len(self.new))))
        return [(items, weight) for items, weight in signed if len(items)]


@dataclass
class LiveSum:
    """Everybody's loans and their sum. One thread changes it; any thread may take a copy."""

    items: int
    min_count: int = 5
    """Items that fewer people lend are hidden in a release; above 0, digests cover the counts."""
    sums: Totals = field(init=False)
    loans: dict[bytes, Items] = field(init=False, default_factory=dict)
    gone: dict[bytes, Items] = field(init=False, default_factory=dict)
    """What each person took back since `settle`: an audit of the next release asks for it. In
    memory only, so a start begins with nothing."""
    watch: list[Callable[[bytes, Items, Items], None]] = field(init=False, default_factory=list)
    """Called with a person, what they lent before and lend now, after every change."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.items <= MOST_ITEMS:
            raise ConfigError(
                f"a live catalogue has 1 to {MOST_ITEMS:,} items; got {self.items:,}."
            )
        self.sums = added_up((), self.items)

    @property
    def people(self) -> int:
        return len(self.loans)

    def of(self, person: bytes) -> Items:
        return self.loans.get(person, NOBODY)

    def change(self, person: bytes, old: Items, new: Items) -> None:
        """Replace a person's part: O(n^2) of their own items, whatever others lend.

        old: what the caller knows to be lent; another thing is an error, because the sum would
        no longer be that of the loans    new: sorted, each item once
        """
        known = self.of(person)
        if not kernels.same(known, old):
            raise DataError(
                f"the sum holds {len(known)} items of this user, and the change starts from "
                f"{len(old)} others. Start the service again: it adds the sum up from the ledger."
            )
        self._check(new)
        new = np.ascontiguousarray(new, np.int32)
        was, now = weight_of(len(known)), weight_of(len(new))
        with self._lock:
            if self.people >= MOST_PEOPLE:
                self.sums.total = self.sums.total.astype(np.int64, copy=False)
            kernels.replace_part(self.sums.total, self.sums.owners, known, new, was, now)
            self.sums.records += len(new) - len(known)
            if len(new):
                self.loans[person] = new
            else:
                self.loans.pop(person, None)
            self.sums.people = len(self.loans)
            self._note(person, known, new)
        for look in self.watch:
            look(person, known, new)

    def _note(self, person: bytes, old: Items, new: Items) -> None:
        """Remember what was taken back, and forget what was lent again."""
        back = kernels.without(old, new)
        if person in self.gone:
            back = kernels.without(kernels.merged(self.gone[person], back), new)
        if len(back):
            self.gone[person] = back
        else:
            self.gone.pop(person, None)

    def settle(self) -> tuple[Totals, dict[bytes, Items], dict[bytes, Items]]:
        """Return the sum, the loans and what was taken back since the last time, of one moment."""
        with self._lock:
            gone, self.gone = self.gone, {}
            return self.sums.copy(), dict(self.loans), gone

    def unsettle(self, gone: Mapping[bytes, Items]) -> None:
        """Know again what `settle` returned, less what was lent again: nothing came of it."""
        with self._lock:
            for person, items in gone.items():
                self._note(person, items, self.of(person))

    def load(self, loans: Mapping[bytes, Items]) -> None:
        """Add up the loans of many people at once, into a sum that is empty."""
        if self.loans:
            raise DataError(f"the sum holds {self.people:,} users already; load an empty one.")
        lending = {person: items for person, items in loans.items() if len(items)}
        sums = added_up(lending.values(), self.items)
        for items in lending.values():
            self._check(items)
        with self._lock:
            self.loans = {p: np.ascontiguousarray(i, np.int32) for p, i in lending.items()}
            self.sums = sums

    def copy(self) -> Totals:
        with self._lock:
            return self.sums.copy()

    def digest(self, items: int | None = None) -> str:
        """Return the digest that `Gram` states of the same loans (`claims.sum_digest`).

        items: as if the catalogue had only so many, and nobody lent the others
        """
        with self._lock:
            return self.sums.of_first(items or self.items).digest(self.min_count)

    def _check(self, items: Items) -> None:
        if not kernels.ascending(items, self.items):
            raise DataError(f"items must be sorted places from 0 to {self.items - 1}, each once.")


def added_up(loans: Iterable[Items], items: int) -> Totals:
    """Compute the sum over loans from zero, one row of the half after the other."""
    parts = [part for part in loans if len(part)]
    kind = np.dtype(np.int32 if len(parts) < MOST_PEOPLE else np.int64)
    total: Any = np.zeros(half(items), kind)
    sums = Totals(total, np.zeros(items, np.int64), len(parts))
    if not parts:
        return sums
    count = np.array([len(part) for part in parts])
    owner = np.repeat(np.arange(len(parts)), count)
    joined = np.concatenate(parts).astype(np.int64)
    weight = np.rint(UNIT / np.sqrt(count)).astype(np.int64)
    add_pairs_by_item(sums.total, sums.total[:0], owner, joined, weight, items)
    sums.owners += np.bincount(joined, minlength=items)
    sums.records = len(joined)
    return sums
