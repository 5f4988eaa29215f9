"""Ledgers that serve: forty films, people who lend stretches of them, a clock that a test sets."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.options import Options

ITEMS = 40
CATALOGUE = Catalogue([f"film-{n}" for n in range(ITEMS)])
OPTIONS = Options(people=5, hours=24, neighbours=10, min_count=2)
START = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def opened(state: Path, clock: Any = None, **options: Any) -> Ledger:
    """Open a ledger with a live sum."""
    chosen = replace(OPTIONS, **options)
    return Ledger.open(state, catalogue=CATALOGUE, options=chosen, clock=clock or Hand())


def likes(person: int, items: int = ITEMS) -> list[int]:
    """Return what somebody lends: a stretch of the catalogue with gaps."""
    draws = hashlib.shake_256(f"person {person}".encode()).digest(items + 1)
    middle = draws[-1] * items // 256
    near = [abs(n - middle) < 8 for n in range(items)]
    return [n for n in range(items) if draws[n] < (192 if near[n] else 13)]


def rows(ledger: Ledger, table: Any) -> list[Any]:
    """Return all rows of a table."""
    with ledger.store.reading() as tx:
        return list(tx.execute(select(table)).all())
