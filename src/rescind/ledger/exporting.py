"""Everything that is kept about a person, as plain values: what an export hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescind.ledger.batch import Items
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.reading import Reading

MOST = 100_000
"""Lines of history in an export."""


@dataclass(frozen=True)
class Export:
    """What the ledger has about one person."""

    account: dict[str, Any]
    items: tuple[dict[str, str], ...]
    """Original ids and titles of what they lend."""
    kept: tuple[dict[str, str], ...]
    """The same of what their browser keeps and has sent to the sum."""
    requests: tuple[Any, ...]
    history: tuple[Any, ...]


def export_of(reading: Reading, catalogue: Catalogue, person: bytes) -> Export:
    """Read everything about somebody, or raise `NotThere`."""
    return Export(
        reading.me(person),
        _named(catalogue, reading.loans(person)),
        _named(catalogue, reading.kept_part(person).items),
        tuple(reading.requests(person)),
        tuple(reading.events(person, most=MOST)),
    )


def _named(catalogue: Catalogue, items: Items) -> tuple[dict[str, str], ...]:
    return tuple({"id": catalogue.ids[n], "title": catalogue.titles[n]} for n in items.tolist())
