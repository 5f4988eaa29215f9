"""Small ledgers for tests: a catalogue of twenty items, a clock and openings that repeat."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Once, Operation
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.contributing import Contribute, Part
from rescind.ledger.lending import Join, Lend, TakeBack
from rescind.methods.additive._live_sum import weight_of

CATALOGUE = Catalogue([f"item-{n}" for n in range(20)], [f"Title {n}" for n in range(20)])
START = datetime(2026, 11, 16, 12, tzinfo=UTC)
DEVICE = b"one browser only"
WAIT = 30
"""Seconds after which a test gives an answer up."""


class Loans:
    """A stand-in for the live sum: it keeps the loans, and refuses a change of other loans."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.loans: dict[bytes, tuple[int, ...]] = {}

    def change(self, person: bytes, old: Any, new: Any) -> None:
        assert self.loans.pop(person, ()) == tuple(map(int, old)), "the sum has other loans"
        if len(new):
            self.loans[person] = tuple(map(int, new))

    def load(self, loans: dict[bytes, Any]) -> None:
        for person, items in loans.items():
            self.change(person, (), items)

    def digest(self, items: int | None = None) -> str:
        return digest_of(self.loans)


def digest_of(loans: dict[bytes, tuple[int, ...]]) -> str:
    """Return a digest of everybody's loans."""
    return hashlib.sha256(repr(sorted(loans.items())).encode()).hexdigest()


def ticking(step: timedelta = timedelta(milliseconds=1)) -> Callable[[], datetime]:
    """Return a clock that repeats: each look is one step later."""
    looks = itertools.count()
    return lambda: START + next(looks) * step


def repeating() -> Callable[[int], bytes]:
    """Return entropy that repeats, so that two ledgers write the same log."""
    draws = itertools.count()
    return lambda n: hashlib.shake_256(f"draw {next(draws)}".encode()).digest(n)


def opened(state: Path, **more: Any) -> Ledger:
    """Open a small ledger with the stand-in for the sum."""
    return Ledger.open(state, **{"catalogue": CATALOGUE, "live": Loans, **more})


def done(ledger: Ledger, operation: Operation, key: str | None = None, body: bytes = b"") -> Answer:
    """Submit an operation and wait for its answer."""
    once = Once(key, body) if key else None
    return ledger.submit(operation, once).result(WAIT)


def joined(ledger: Ledger, *items: int) -> bytes:
    """Make a person who lends these items."""
    person = bytes.fromhex(done(ledger, Join()).body["person"])
    if items:
        done(ledger, Lend(person, items))
    return person


def lent(ledger: Ledger, person: bytes) -> list[int]:
    """Return what the ledger says a person lends."""
    return [int(item) for item in ledger.reading.loans(person)]


def take_back(person: bytes, kind: str = "unshare", *items: int) -> TakeBack:
    """Return a take-back of these items, or of everything."""
    return TakeBack(person, kind, items or None)


def difference(person: bytes, old: Iterable[int], new: Iterable[int]) -> Contribute:
    """Return what a browser sends that has counted `old` and keeps `new` now."""
    minus, plus = (Part(tuple(sorted(one)), weight_of(len(set(one)))) for one in (old, new))
    return Contribute(person, DEVICE, minus, plus)


def kept(ledger: Ledger, person: bytes) -> list[int]:
    """Return what the ledger says that a person's browser sent to the sum."""
    return [int(item) for item in ledger.reading.kept_part(person).items]


def array(*items: int) -> Any:
    """Return items as the ledger's operations see them."""
    return np.array(items, np.int32)


def unmapped_files(state: Path) -> list[str]:
    """Return files of a state folder that no pattern of the map fits."""
    names = [str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()]
    return [name for name in names if not any(fnmatch(name, rule) for rule in tables.PATHS)]
