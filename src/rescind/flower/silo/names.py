"""Who and what a silo's numbers stand for: keys of original ids, kept with what was numbered.

The server knows users and items by number. Data that grows may number them anew: a filter (`core`,
`min_user`) lets somebody in, or blocks begin elsewhere. So every saved state of a silo goes with
the numbering that it was made with, and lists of who left go by key, not by number. A key is a
digest of an id under a secret of this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rescind.core.labels import Labels
from rescind.home.ledger import keyed_digest
from rescind.privacy.keys import erasure_key
from rescind.storage.packing import Facts

NOT_HERE = -1
"""Stands for an id that this silo does not know."""
USER, ITEM = "user", "item"


def key_of(kind: str, name: str) -> str:
    """Return the key of the original id of a user or an item: 32 hexadecimal digits."""
    return keyed_digest(erasure_key(), kind, name)


@dataclass(frozen=True)
class Numbering:
    """The key of the user, and of the item, with each number."""

    users: tuple[str, ...]
    items: tuple[str, ...]

    @classmethod
    def of(cls, labels: Labels, clients: int, items: int) -> Numbering:
        """Return the numbering of data. Without ids, a number is its own."""
        users = [labels.user_id(n) for n in range(max(clients, len(labels.users)))]
        things = [labels.item_id(n) for n in range(max(items, len(labels.items)))]
        key = erasure_key()
        return cls(
            tuple(keyed_digest(key, USER, name) for name in users),
            tuple(keyed_digest(key, ITEM, name) for name in things),
        )

    @cached_property
    def digest(self) -> str:
        """Return 32 hexadecimal digits that differ for another numbering."""
        text = ",".join(self.users) + "/" + ",".join(self.items)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def _users(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.users)}

    @cached_property
    def _items(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.items)}

    def user(self, name: str) -> int:
        """Return the number of a user, given by original id; `NOT_HERE` if there is none."""
        return self._users.get(key_of(USER, name), NOT_HERE)

    def item(self, name: str) -> int:
        """Return the number of an item, given by original id; `NOT_HERE` if there is none."""
        return self._items.get(key_of(ITEM, name), NOT_HERE)

    def with_room(self, clients: int, items: int) -> Numbering:
        """Return a numbering of at least so many. What has no id is named by its number."""
        if clients <= len(self.users) and items <= len(self.items):
            return self
        more = Numbering.of(Labels(), clients, items)
        users = self.users + more.users[len(self.users) :]
        return Numbering(users, self.items + more.items[len(self.items) :])

    def continues(self, earlier: Numbering) -> bool:
        """Return whether all that had a number earlier has the same number here."""
        return _begins(self.users, earlier.users) and _begins(self.items, earlier.items)


def table_facts(labels: Labels, clients: int, items: int, own: bool = False) -> Facts:
    """Return what the server compares, to see that all silos number the same people and items.

    A digest is of all ids of a table in order, and so short that it says little about who is there.
    own: the table has one silo's people only, so nothing is said about them
    """
    users = [labels.user_id(n) for n in range(max(clients, len(labels.users)))] if not own else []
    things = [labels.item_id(n) for n in range(max(items, len(labels.items)))]
    return {
        "own": own, "users": len(users), "user_ids": _short_digest(users),
        "items": len(things), "item_ids": _short_digest(things),
    }  # fmt: skip


def _short_digest(names: Iterable[str]) -> str:
    """Return 8 hexadecimal digits that most likely differ for other names, or another order."""
    return hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=4).hexdigest()


def _begins(longer: Sequence[str], start: Sequence[str]) -> bool:
    return longer[: len(start)] == start
