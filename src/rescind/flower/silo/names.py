"""Look original ids up on a silo: the server knows users and items by number only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rescind.core.labels import Labels
from rescind.errors import DataError
from rescind.flower.wire.messages import Letter

NOT_HERE = -1
"""Stands for an id that this silo does not know."""


class Named(Protocol):
    """Data with original ids."""

    def labels(self) -> Labels:
        """Return the original ids of users and items."""
        ...

    def sizes(self) -> tuple[int, int]:
        """Return the number of users and of items."""
        ...


def find(source: Named, request: Letter) -> Letter:
    """Reply with the numbers of users and items that the server asks for by original id."""
    labels, (clients, items) = source.labels(), source.sizes()
    users = [_number(labels.client, user, clients) for user in request.facts["users"]]
    found = [_number(labels.item, item, items) for item in request.facts["items"]]
    return Letter({"found_users": users, "found_items": found}, {})


def _number(look_up: Callable[[str, int], int], name: str, size: int) -> int:
    try:
        return look_up(name, size)
    except DataError:
        return NOT_HERE
