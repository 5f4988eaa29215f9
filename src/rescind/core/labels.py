"""Original ids in and out: the names people know their data by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from rescind.errors import ConsentError, DataError, suggest

GONE = "(left "
"""What the name of a user who left begins with."""


class Named(Protocol):
    """Data that knows the original ids of its users and items."""

    @property
    def users(self) -> Any: ...
    @property
    def items(self) -> Any: ...
    @property
    def titles(self) -> Any: ...


@dataclass(frozen=True)
class Labels:
    """Original ids of users and items, and titles. Without ids, an index is its own name."""

    users: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: Named) -> Labels:
        """The names in a dataset."""
        titles = () if dataset.titles is None else tuple(map(str, dataset.titles))
        return cls(tuple(map(str, dataset.users)), tuple(map(str, dataset.items)), titles)

    @cached_property
    def _clients(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.users)}

    @cached_property
    def _items(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.items)}

    def client(self, user: str | int, clients: int) -> int:
        """The index of a user, or a clear answer."""
        return _find(str(user), self._clients, clients, "user")

    def item(self, item: str | int, items: int) -> int:
        """The index of an item, or a clear answer."""
        return _find(str(item), self._items, items, "item")

    def user_id(self, client: int) -> str:
        """The original id of a user."""
        return _name(self.users, client)

    def item_id(self, item: int) -> str:
        """The original id of an item."""
        return _name(self.items, item)

    def without_user(self, client: int) -> Labels:
        """The same names without that of one who left."""
        if not self.users:
            return self
        gone = f"{GONE}{client})"
        return Labels(
            (*self.users[:client], gone, *self.users[client + 1 :]), self.items, self.titles
        )

    def named(self, error: ConsentError) -> ConsentError:
        """The same refusal with original ids, where they are not the indices it speaks of."""
        said = []
        if error.client is not None and self.users:
            said.append(_said("client", self.user_id(error.client), error.client))
        if error.item is not None and self.items:
            said.append(_said("item", self.item_id(error.item), error.item))
        extra = f" In original ids: {', '.join(said)}." if said else ""
        return ConsentError(f"{error}{extra}", error.client, error.item)

    def title(self, item: int) -> str:
        """The title of an item, '' where there is none."""
        return self.titles[item] if item < len(self.titles) else ""


def _said(kind: str, name: str, index: int) -> str:
    return f"{kind} {index} is '{name}'"


def _name(known: tuple[str, ...], index: int) -> str:
    """The original id; one that came later and has none is "#" and its index."""
    if index < len(known):
        return known[index]
    return f"#{index}" if known else str(index)


def _find(name: str, known: dict[str, int], size: int, kind: str) -> int:
    if name in known:
        return known[name]
    if not known and name.isdecimal() and int(name) < size:
        return int(name)
    later = name[1:]
    if name.startswith("#") and later.isdecimal() and len(known) <= int(later) < size:
        return int(later)
    if not known:
        raise DataError(f"there is no {kind} '{name}': {kind}s are numbered 0 to {size - 1} here.")
    left = sum(k.startswith(GONE) for k in known)
    if left:  # a name near that of somebody who left would be taken for theirs
        raise DataError(
            f"there is no {kind} '{name}' among {len(known) - left} {kind}s. Of {left} more who "
            f"left no name is kept: if '{name}' was one of them, nothing of theirs is here."
        )
    few = list(known)[:5]
    hint = suggest(name, known).split("? ")[0] + "? " if len(known) < 50_000 else ""
    hint = hint if hint.startswith("did you") else ""
    raise DataError(
        f"there is no {kind} '{name}' among {len(known)} {kind}s. {hint}"
        f"Original ids are used here, such as {', '.join(few)}."
    )


@dataclass(frozen=True)
class Recommendation:
    """One recommended item, under its original id."""

    item: str
    title: str
    score: float
    because: str
    """"taste" (the model) or "popularity" (the person has no data)."""
