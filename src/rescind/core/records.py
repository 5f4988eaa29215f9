"""Records, the unit of consent, and the events that change them.

A record is one interaction (client, item, time), or one labelled node (client, node, 0). Events
are the only way to change data or consent; they are frozen and compared by digest.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index

import torch
from torch import Tensor

from rescind.core.table import Columns, Table
from rescind.errors import DataError

_CLIENT_SHIFT = 31  # items < 2**31, clients < 2**32: a pair is one int64
_ITEMS, _CLIENTS = 2**31, 2**32
_COLUMNS = ("client", "item", "time")
LARGEST_RATING = 10**9
"""Twice a rating is an int32. Import refuses larger ones, so that what was imported can be run."""
Column = Tensor | Sequence[int]


@dataclass(frozen=True, eq=False)
class Records:
    """A multiset of records (Last.fm has duplicates); consent applies to all copies of a pair."""

    client: Tensor
    """[n] index of the client."""
    item: Tensor
    """[n] index of the item, or of the node."""
    time: Tensor
    """[n] seconds, 0 if the source has no times."""
    rating: Tensor | None = field(default_factory=lambda: None)  # no class attribute
    """[n] int32: twice the rating, 0 for none; None if no record has one. Not in digests."""

    @classmethod
    def of(
        cls,
        client: Column,
        item: Column,
        time: Column | None = None,
        rating: Tensor | None = None,
    ) -> Records:
        """Make records from columns of any integer type. rating: as people gave it, any number"""
        clients, items = _column(client), _column(item)
        times = torch.zeros_like(clients) if time is None else _column(time)
        if not len(clients) == len(items) == len(times):
            raise DataError("records need columns of one length.")
        for what, column, end in (("clients", clients, _CLIENTS), ("items", items, _ITEMS)):
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < end:
                raise DataError(
                    f"{what} are numbered 0 to {end - 1}; got {int(column.min())} to "
                    f"{int(column.max())}. Federation.records takes original ids."
                )
        if rating is None:
            return cls(clients, items, times)
        return cls(clients, items, times, _halves(torch.as_tensor(rating).double(), len(clients)))

    @classmethod
    def none(cls) -> Records:
        """Return an empty set of records."""
        return cls.of([], [])

    @classmethod
    def on(cls, table: Table) -> Records:
        """Return the records of a table; its columns are merged when they are first read."""
        records = object.__new__(cls)
        records.__dict__["table"] = table
        return records

    @classmethod
    def from_rows(cls, rows: Columns) -> Records:
        return cls(*(rows.get(name) for name in (*_COLUMNS, "rating")))  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Tensor:
        """Read a column of a table."""
        if name not in (*_COLUMNS, "rating") or "table" not in self.__dict__:
            raise AttributeError(name)
        columns = self.__dict__["table"].columns
        self.__dict__.update({n: columns.get(n) for n in (*_COLUMNS, "rating")})
        return self.__dict__[name]

    @cached_property
    def table(self) -> Table | None:
        """The records as a table, in which a change costs little; None if not sorted by client."""
        if not bool((self.client[1:] >= self.client[:-1]).all()):
            return None
        return Table(self.columns())

    def columns(self) -> dict[str, Tensor]:
        """Return the columns by name; ratings if there are any."""
        rated = {} if self.rating is None else {"rating": self.rating}
        return {name: getattr(self, name) for name in _COLUMNS} | rated

    @cached_property
    def clients(self) -> Tensor:
        """The clients that have records. [k] sorted"""
        if self.table is None:
            return torch.unique(self.client)
        found: Tensor = torch.unique_consecutive(self.client)
        return found

    def __len__(self) -> int:
        return len(self.client) if "client" in self.__dict__ else len(self.__dict__["table"])

    def __getitem__(self, chosen: Tensor | slice) -> Records:
        """Select records by position, by mask or by slice."""
        rating = None if self.rating is None else self.rating[chosen]
        return Records(self.client[chosen], self.item[chosen], self.time[chosen], rating)

    def __add__(self, other: Records) -> Records:
        rating = None
        if self.rating is not None or other.rating is not None:
            rating = torch.cat([records._ratings() for records in (self, other)])
        return Records(
            torch.cat([self.client, other.client]),
            torch.cat([self.item, other.item]),
            torch.cat([self.time, other.time]),
            rating,
        )

    def _ratings(self) -> Tensor:
        """Return twice each rating, 0 for none. [n] int32"""
        none = torch.zeros_like(self.item, dtype=torch.int32)
        return none if self.rating is None else self.rating

    def pairs(self) -> Tensor:
        """Return each record's (client, item) as one number; computed once. [n]"""
        return self._pairs

    @cached_property
    def _pairs(self) -> Tensor:
        return (self.client << _CLIENT_SHIFT) + self.item

    def among(self, other: Records) -> Tensor:
        """Return which records have a (client, item) pair that is in `other`. [n] bool"""
        other = other.to(self.client.device)
        if len(self) < len(other):
            other = other.of_clients(self.clients)
        return _isin(self.pairs(), other.pairs())

    def matching(self, other: Records) -> Records:
        """Return the records whose (client, item) pair is in `other`."""
        mine = self.of_clients(other.clients)
        return mine[mine.among(other)]

    def of_clients(self, clients: Tensor) -> Records:
        """Return the records of some clients. clients: sorted"""
        if self.table is None:
            return self[torch.isin(self.client, clients.to(self.client))]
        return Records.from_rows(self.table.take(clients)[1])

    def without(self, other: Records) -> Records:
        """Return the records whose (client, item) pair is not in `other`."""
        if self.table is None:
            return self[~self.among(other)]
        clients = other.clients
        mine = self.of_clients(clients)
        gone = mine.among(other)
        return self.with_clients(clients, mine[~gone]) if bool(gone.any()) else self

    def without_client(self, client: int) -> Records:
        if self.table is None:
            return self[self.client != client]
        clients = torch.tensor([client])
        mine = self.of_clients(clients)
        return self.with_clients(clients, mine[:0]) if len(mine) else self

    def with_clients(self, clients: Tensor, records: Records) -> Records:
        """Return records sorted by client with other ones of some clients, likewise sorted.

        They have ratings if these have: the server, which begins without any, gets none.
        """
        assert self.table is not None
        rows = {**records.columns(), "rating": records._ratings()}
        after = Records.on(self.table.put(clients, rows))
        after.__dict__["_from"] = (weakref.ref(self), clients)
        return after

    @property
    def changed_from(self) -> tuple[Records | None, Tensor]:
        """Records that were the same but for some clients, while they are in use; and those."""
        before, clients = self.__dict__.get("_from", (lambda: None, torch.zeros(0)))
        return before(), clients

    @property
    def per_item(self) -> Tensor:
        """Return the number of records of each item, up to the largest. [items]"""
        return torch.bincount(self.item) if self.table is None else self.table.tally("item")

    def sorted(self) -> Records:
        """Sort by client, then item, then time."""
        if bool((self.pairs()[1:] > self.pairs()[:-1]).all()):
            return self
        order = torch.argsort(self.time, stable=True)
        return self[order[torch.argsort(self.pairs()[order], stable=True)]]

    def to(self, device: str | torch.device) -> Records:
        if self._device == torch.device(device):
            return self
        rating = None if self.rating is None else self.rating.to(device)
        return Records(self.client.to(device), self.item.to(device), self.time.to(device), rating)

    @property
    def _device(self) -> torch.device:
        table = self.__dict__.get("table")
        return self.client.device if table is None else table.device

    def digest(self, key: bytes = b"") -> str:
        """Return a digest that ignores order; with a key, only its holder can recompute it."""
        ordered = self.sorted()
        hasher = hashlib.blake2b(key=key, digest_size=32)
        for column in (ordered.client, ordered.item, ordered.time):
            hasher.update(column.cpu().numpy().astype("<i8").tobytes())
        return "blake2b:" + hasher.hexdigest()


def _isin(values: Tensor, known: Tensor) -> Tensor:
    """Return which values are known; of many faster than `torch.isin`, which sorts them all."""
    if len(known) < 1000:
        return torch.isin(values, known)
    if not bool((known[1:] >= known[:-1]).all()):
        known = known.sort().values
    at = torch.searchsorted(known, values).clamp_(max=len(known) - 1)
    return known[at] == values


def _halves(rating: Tensor, records: int) -> Tensor:
    """Return twice each rating, rounded. [n] int32"""
    if len(rating) != records:
        raise DataError(f"{records} records have {len(rating)} ratings. Give one for each.")
    halves = rating.mul(2).round()
    wrong = (~(halves.abs() <= 2 * LARGEST_RATING)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(f"record {first + 1} has the rating {float(rating[first]):g}: too large.")
    return halves.to(torch.int32)


def _column(values: Column) -> Tensor:
    column = torch.as_tensor(values)
    if column.numel() and (column.is_floating_point() or column.is_complex()):
        raise DataError(
            f"records must be integers, got {column.dtype}. Federation.records takes original ids."
        )
    return column.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Event:
    """A change of data or consent. Two events are equal if their digests are equal."""

    def __post_init__(self) -> None:
        given = vars(self).get("records")
        if given is not None and not isinstance(given, Records):
            raise DataError(
                f"{type(self).__name__} takes records, not a {type(given).__name__}: "
                f"fed.records(user, items), or fed.lent(user). Add those of several users with +."
            )

    def digest(self, key: bytes = b"") -> str:
        """Return the digest that is stored; for an erasure use a key, so it reveals no data."""
        hasher = hashlib.blake2b(key=key, digest_size=32)
        hasher.update(type(self).__name__.encode())
        for value in vars(self).values():
            part = value.digest(key) if hasattr(value, "digest") else str(index(value))
            hasher.update(part.encode())
        return "blake2b:" + hasher.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())


@dataclass(frozen=True, eq=False)
class Share(Event):
    """Users share records: the server gets a copy, the device keeps its own."""

    records: Records


@dataclass(frozen=True, eq=False)
class Unshare(Event):
    """Users revoke sharing: the server's copy is deleted, the device keeps its own."""

    records: Records


@dataclass(frozen=True, eq=False)
class Erase(Event):
    """Records are deleted on server and device."""

    records: Records


@dataclass(frozen=True, eq=False)
class EraseLabels(Erase):
    """Labels of nodes are deleted: the nodes stay, pass messages on, and are records no more."""


@dataclass(frozen=True, eq=False)
class EraseEdges(Erase):
    """Edges of a graph are deleted; the nodes stay. A record is (client, node, other node)."""

    @classmethod
    def of(cls, client: int, edges: Sequence[tuple[int, int]]) -> EraseEdges:
        """Make the event from pairs of nodes, in any order."""
        ends = [sorted(edge) for edge in edges]
        low, high = [one for one, _ in ends], [other for _, other in ends]
        return cls(Records.of([client] * len(ends), low, high))


@dataclass(frozen=True, eq=False)
class Join(Event):
    """A client becomes a member (again). Its data comes with `Arrive`."""

    client: int


@dataclass(frozen=True, eq=False)
class Withdraw(Event):
    """A client leaves with all its data."""

    client: int


@dataclass(frozen=True, eq=False)
class Arrive(Event):
    """A new block of records, possibly with new clients and items.

    Devices delete the training records of the previous block (F3CRec's constraint).
    """

    records: Records
    split: Tensor
    """[n] int8: 0 train, 1 valid, 2 test."""
    clients: int
    """Number of clients from now on (indices are below it)."""
    items: int
    """Number of items from now on."""

    def digest(self, key: bytes = b"") -> str:
        order = torch.argsort(self.split, stable=True)
        order = order[torch.argsort(self.records.time[order], stable=True)]
        order = order[torch.argsort(self.records.pairs()[order], stable=True)]
        labels = self.split[order].to(torch.int8).cpu().numpy().tobytes().hex()
        text = f"Arrive/{self.records.digest(key)}/{labels}/{self.clients}/{self.items}"
        return "blake2b:" + hashlib.blake2b(text.encode(), key=key, digest_size=32).hexdigest()


@dataclass(frozen=True, eq=False)
class Anew(Event):
    """Private values of people who erased something are reset to their first values."""

    records: Records


def concerned(event: Event) -> Tensor:
    """Return the clients that a request concerns. [n] sorted"""
    if isinstance(event, Withdraw):
        return torch.tensor([event.client])
    assert isinstance(event, Unshare | Erase)
    return event.records.clients
