"""Everything that is kept about a person, as plain values: what an export hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    requests: tuple[Any, ...]
    history: tuple[Any, ...]


def export_of(reading: Reading, catalogue: Catalogue, person: bytes) -> Export:
    """Read everything about somebody, or raise `NotThere`."""
    places = reading.loans(person).tolist()
    items = tuple({"id": catalogue.ids[n], "title": catalogue.titles[n]} for n in places)
    return Export(
        reading.me(person),
        items,
        tuple(reading.requests(person)),
        tuple(reading.events(person, most=MOST)),
    )
