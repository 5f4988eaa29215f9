"""Conversion between original ids and indices of users and items."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from shlex import quote
from typing import Any, Protocol, overload
from unicodedata import normalize

from rescind.errors import ConfigError, ConsentError, DataError, did_you_mean

GONE = "(left "
"""Prefix that replaces the id of a user who left."""


def left(client: int) -> str:
    """Return what stands for the id of a user who left."""
    return f"{GONE}{client})"


def removed(item: int) -> str:
    """Return what stands for the id of an item that only users who left had."""
    return f"(removed {item})"


_CHUNK = 1024  # names that are copied when one of them changes


class NameChunk:
    """Some names in order. Lists that have the same object have the same names there."""

    __slots__ = ("__weakref__", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names


class Names(Sequence[str]):
    """A long list of names, of which one can be replaced at little cost. A value."""

    def __init__(self, names: Sequence[str]) -> None:
        starts = range(0, len(names), _CHUNK)
        self._chunks = [NameChunk(tuple(names[start : start + _CHUNK])) for start in starts]
        self._length = len(names)

    @property
    def chunks(self) -> Sequence[NameChunk]:
        return self._chunks

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        index = range(self._length)[index]
        return self._chunks[index // _CHUNK].names[index % _CHUNK]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chunk.names for chunk in self._chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def replaced(self, index: int, name: str) -> Names:
        """Return the names with another one at an index."""
        at, place = divmod(index, _CHUNK)
        chunk = self._chunks[at].names
        after = Names(())
        after._chunks, after._length = list(self._chunks), self._length
        after._chunks[at] = NameChunk((*chunk[:place], name, *chunk[place + 1 :]))
        return after


class Named(Protocol):
    """Data with original ids of users and items."""

    @property
    def users(self) -> Any: ...
    @property
    def items(self) -> Any: ...
    @property
    def titles(self) -> Any: ...


@dataclass(frozen=True)
class Labels:
    """Original ids of users and items, titles and genres. Without ids, an index is its own id."""

    users: Sequence[str] = ()
    items: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    genres: tuple[str, ...] = ()
    """Words about each item, separated by "|". Public, like titles."""

    @classmethod
    def of(cls, dataset: Named) -> Labels:
        """Read the ids and titles of a dataset, and genres if it has any."""
        genres = getattr(dataset, "genres", None)
        columns = (dataset.users, dataset.items, dataset.titles, genres)
        return cls(*(() if column is None else tuple(map(str, column)) for column in columns))

    @cached_property
    def _clients(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.users)}

    @cached_property
    def _items(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.items)}

    @cached_property
    def removed_items(self) -> tuple[int, ...]:
        """Items without an id, because only users who left had them: nothing to recommend."""
        return tuple(i for i, name in enumerate(self.items) if name == removed(i))

    @cached_property
    def in_chunks(self) -> dict[str, Names]:
        """Each column as a list that shares what did not change with older labels."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: c if isinstance(c, Names) else Names(c) for n, c in columns.items()}

    def client(self, user: str | int, clients: int, alike: Alike | None = None) -> int:
        """Return the index of a user; raise `DataError` if unknown.

        alike: what to say of ids that may be meant. Default: that there is one, and where to look
        """
        return _find(str(user), self._clients, clients, "user", alike or told_to_look_up)

    def item(self, item: str | int, items: int) -> int:
        """Return the index of an item; raise `DataError` if unknown."""
        return _find(str(item), self._items, items, "item", told_alike)

    def user_id(self, client: int) -> str:
        return _name(self.users, client)

    def item_id(self, item: int) -> str:
        return _name(self.items, item)

    def without_user(self, client: int) -> Labels:
        """Return the labels without the id of a user who left."""
        if not self.users:
            return self
        after = replace(self, users=self.in_chunks["users"].replaced(client, left(client)))
        after.__dict__["in_chunks"] = {**self.in_chunks, "users": after.users}
        # The index goes with the newer labels, so that it forgets the id, too.
        if (known := self.__dict__.pop("_clients", None)) is not None:
            known.pop(self.users[client], None)
            known[left(client)] = client
            after.__dict__["_clients"] = known
        return after

    def without_items(self, items: Iterable[int]) -> Labels:
        """Return the labels without ids and titles of items that nobody has any more."""
        gone = set(items)
        if not gone or not self.items:
            return self
        ids = tuple(removed(i) if i in gone else name for i, name in enumerate(self.items))
        titles, genres = (
            tuple("" if i in gone else text for i, text in enumerate(column))
            for column in (self.titles, self.genres)
        )
        return Labels(self.in_chunks["users"], ids, titles, genres)

    def named(self, error: ConsentError) -> ConsentError:
        """Return the error with original ids instead of indices, where there are any."""
        users, items = self._are_named
        by_kind = {}
        if error.client is not None and users:
            by_kind["client"] = lambda number: f"user '{self.user_id(number)}'"
        if error.item is not None and items:
            by_kind["item"] = lambda number: f"item '{self.item_id(number)}'"
        if not by_kind:
            return error
        text = re.sub(  # in one go: an id may look like "item 7" itself
            rf"\b({'|'.join(by_kind)}) (\d+)\b",
            lambda one: by_kind[one[1]](int(one[2])),
            str(error),
        )
        return ConsentError(text, error.client, error.item)

    @property
    def _are_named(self) -> tuple[bool, bool]:
        """Whether users, and whether items have original ids here."""
        return bool(self.users), bool(self.items)

    def title(self, item: int) -> str:
        """Return the title of an item, '' if there is none."""
        return self.titles[item] if item < len(self.titles) else ""


def check_list(ids: object, write: str) -> None:
    """Raise `ConfigError` if one id was given where a list of ids is wanted.

    A text would be read as its letters. write: how to give it, with {} for the id
    """
    if isinstance(ids, str | int):
        raise ConfigError(f"give a list of ids; got {ids!r}. Write {write.format(f'[{ids!r}]')}.")


def _name(known: Sequence[str], index: int) -> str:
    """Return the original id, or "#" and the index if it was added later without an id."""
    if index < len(known):
        return known[index]
    return f"#{index}" if known else str(index)


def _find(name: str, known: dict[str, int], size: int, kind: str, alike: Alike) -> int:
    if name in known:
        return known[name]
    if not known and name.isdecimal() and int(name) < size:
        return int(name)
    later = name[1:]
    if name.startswith("#") and later.isdecimal() and len(known) <= int(later) < size:
        return int(later)
    if not known:
        raise DataError(f"there is no {kind} '{name}': {kind}s are numbered 0 to {size - 1} here.")
    if "," in name and any(one.strip() in known for one in name.split(",")):
        option = f"--{kind}"
        raise DataError(
            f"'{name}' names several {kind}s. Give them one by one: {option} A {option} B."
        )
    if kind == "user":  # who else is here is nobody's business, so no near id is named
        left = sum(k.startswith(GONE) for k in known)
        # Places, not people: who came back and left again has left two.
        gone = "1 place is empty" if left == 1 else f"{left:,} places are empty"
        more = f" {gone}: of users who left this run since, or had everything erased."
        raise DataError(
            f"there is no user '{name}' among {len(known) - left} users.{more if left else ''} "
            f"{alike(name, known)}Original ids are used: rescind data show NAME --user USER."
        )
    # What stands for an item that is gone is no id to give.
    known = {item: index for item, index in known.items() if item != removed(index)}
    hint = did_you_mean(name, known) if len(known) < 50_000 else ""
    hint += alike(name, known)
    raise DataError(
        f"there is no {kind} '{name}' among {len(known)} {kind}s. {hint[:1].upper()}{hint[1:]}"
        f"Original ids are used here, such as {', '.join(list(known)[:5])}."
    )


WORN = "capitals, blanks, zeros or signs"
"""What ids lose on their way through spreadsheets, letters and other machines."""
Alike = Callable[[str, Iterable[str]], str]
"""Says of an id that is not there, and of those that are, whether one of these may be meant."""


def told_alike(name: str, known: Iterable[str]) -> str:
    """Say if an id that is here may be meant; '' if none. It is not named: whose is it?"""
    return f"One whose id differs in {WORN} only is here. " if ids_alike(name, known) else ""


def told_to_look_up(name: str, known: Iterable[str], where: str = "NAME") -> str:
    """Say it of a user, and which command names the id. where: the data, if it is known"""
    told = told_alike(name, known)
    return told and f"{told}Look it up with: rescind data show {where} --user {quote(name)}. "


def named_alike(name: str, known: Iterable[str]) -> str:
    """Name the users who may be meant. Only for the command that shows what users have."""
    alike = ", ".join(f"'{one}'" for one in ids_alike(name, known))
    return alike and f"Ids here that look like it: {alike}. Each may be another person's. "


def ids_alike(name: str, known: Iterable[str]) -> list[str]:
    """Return the other ids that may be meant: the same but for what ids lose on their way."""
    written = _written(name)
    return [one for one in known if one != name and _written(one) == written]


def taken_for_new(some: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the ids that are not known, but would be if no id had lost anything on its way."""
    new = [one for one in some if one not in known]
    here = {_written(one) for one in known} if new else set()
    return [one for one in new if _written(one) in here]


_PARTS = re.compile(r"\d+|[^\W\d_]+")


def _written(name: str) -> str:
    """Return the words and numbers of a name in one Unicode form; all of it if it has none."""
    # Folded between: capitals of some letters fall apart into characters of another form.
    folded = normalize("NFKC", normalize("NFKC", name).casefold())
    return " ".join(one.lstrip("0") for one in _PARTS.findall(folded)) or folded


@dataclass(frozen=True)
class Recommendation:
    """One recommended item, under its original id."""

    item: str
    title: str
    score: float
    because: str
    """"taste" (what the user has) or "popularity" (nothing of theirs was learnt, or all get it)."""
