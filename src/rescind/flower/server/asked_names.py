"""Original ids that requests name, kept until their receipts are complete.

The server knows users and items by number. Whoever asks is told by name what the receipt is about,
so the names of a request stay beside it as long as it is open, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rescind.core.labels import Labels
from rescind.core.records import Event, Withdraw
from rescind.flower.run_request import NamedRequest
from rescind.flower.server.naming import Numbers


@dataclass(frozen=True)
class AskedNames(Labels):
    """Original ids by number, of those named in open requests; "#" and the number of all others."""

    named_users: Mapping[int, str] = field(default_factory=dict)
    named_items: Mapping[int, str] = field(default_factory=dict)

    def user_id(self, client: int) -> str:
        """Return the original id of a user."""
        return self.named_users.get(client, f"#{client}")

    def item_id(self, item: int) -> str:
        """Return the original id of an item."""
        return self.named_items.get(item, f"#{item}")

    @property
    def _are_named(self) -> tuple[bool, bool]:
        return bool(self.named_users), bool(self.named_items)

    def also(self, one: NamedRequest, known: Numbers) -> AskedNames:
        """Return the names with those of a request."""
        client, items = known.of(one)
        return AskedNames(
            named_users={**self.named_users, client: one.user},
            named_items={**self.named_items, **dict(zip(items, one.items, strict=True))},
        )

    def only(self, events: Iterable[Event]) -> AskedNames:
        """Return the names in these events."""
        found = [_numbers(event) for event in events]
        users, items = ({n for one in found for n in one[at]} for at in (0, 1))
        return AskedNames(
            named_users={n: name for n, name in self.named_users.items() if n in users},
            named_items={n: name for n, name in self.named_items.items() if n in items},
        )

    def about(self, event: Event) -> Labels | None:
        """Return the names for the receipt of an event; None if nobody named its users."""
        return self if _numbers(event)[0] <= set(self.named_users) else None

    def table(self) -> dict[str, Any]:
        """Return the names as JSON can hold them."""
        return {"users": [*self.named_users.items()], "items": [*self.named_items.items()]}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> AskedNames:
        """Read what `table` returned."""
        users, items = (table.get(kind, ()) for kind in ("users", "items"))
        return cls(named_users=dict(map(tuple, users)), named_items=dict(map(tuple, items)))


def _numbers(event: Event) -> tuple[set[int], set[int]]:
    """Return the numbers of users and items of a request."""
    if isinstance(event, Withdraw):
        return {event.client}, set()
    records = getattr(event, "records", None)
    if records is None:
        return set(), set()
    return {*records.client.tolist()}, {*records.item.tolist()}
