"""Records, the unit of consent, and the events that change them.

A record is one interaction (client, item, time), or one labelled node (client, node, 0). Events
are the only way to change data or consent; they are frozen and compared by digest.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index

import torch
from torch import Tensor

from rescind.core.jagged import Cut
from rescind.errors import DataError

_CLIENT_SHIFT = 31  # items < 2**31, clients < 2**32: a pair is one int64
_ITEMS, _CLIENTS = 2**31, 2**32
FEW = 64
"""Records of up to this many clients are looked up instead of searched for; speed only."""
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
    rating: Tensor | None = None
    """[n] int16: twice the rating, 0 for none; None if no record has one. Not in digests."""

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
            raise DataError(
                f"the columns of records must have the same length, got client {len(clients)}, "
                f"item {len(items)}, time {len(times)}. Give one entry per record."
            )
        if len(clients) and (int(clients.min()) < 0 or int(items.min()) < 0):
            raise DataError(
                "indices of clients and items start at 0, but a negative one was given. "
                "Convert original ids to indices first, with Federation.records."
            )
        if len(clients) and (int(items.max()) >= _ITEMS or int(clients.max()) >= _CLIENTS):
            raise DataError(
                f"items must be below {_ITEMS} and clients below {_CLIENTS}; the largest given are "
                f"{int(items.max())} and {int(clients.max())}. Renumber them from 0."
            )
        if rating is None:
            return cls(clients, items, times)
        halves = torch.as_tensor(rating).double().mul(2).round()
        if len(halves) != len(clients) or not bool((halves.abs() < 2**15).all()):
            raise DataError(
                f"{len(clients)} records have {len(halves)} ratings, or one that is not a number "
                f"below {2**14}. Give one rating per record, or none at all."
            )
        return cls(clients, items, times, halves.to(torch.int16))

    @classmethod
    def none(cls) -> Records:
        """Return an empty set of records."""
        return cls.of([], [])

    def __len__(self) -> int:
        return len(self.client)

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
        """Return twice each rating, 0 for none. [n] int16"""
        none = torch.zeros_like(self.item, dtype=torch.int16)
        return none if self.rating is None else self.rating

    def pairs(self) -> Tensor:
        """Return each record's (client, item) as one number; computed once. [n]"""
        return self._pairs

    @cached_property
    def _pairs(self) -> Tensor:
        return (self.client << _CLIENT_SHIFT) + self.item

    def among(self, other: Records) -> Tensor:
        """Return which records have a (client, item) pair that is in `other`. [n] bool"""
        found = torch.zeros_like(self.client, dtype=torch.bool)
        found[self.find(other)] = True
        return found

    def find(self, other: Records) -> Tensor:
        """Return where the records are whose (client, item) pair is in `other`. [k] sorted"""
        if other.client.device != self.client.device:
            other = other.to(self.client.device)
        if len(self) < len(other):
            other = other.of_clients(torch.unique(self.client), exactly=False)
        rows = self._rows_of(torch.unique(other.client)) if len(other) <= len(self) else None
        if rows is None:
            return torch.isin(self.pairs(), other.pairs()).nonzero().squeeze(1)
        return rows[torch.isin(self[rows].pairs(), other.pairs())]

    def rows_of(self, clients: Tensor) -> Tensor:
        """Return where the records of some clients are. [k] sorted"""
        rows = self._rows_of(clients)
        if rows is None:
            return torch.isin(self.client, clients.to(self.client)).nonzero().squeeze(1)
        return rows

    def of_clients(self, clients: Tensor, exactly: bool = True) -> Records:
        """Return the records of some clients. exactly: else all, if a search would take longer"""
        rows = self.rows_of(clients) if exactly else self._rows_of(clients)
        return self if rows is None else self[rows]

    def _rows_of(self, clients: Tensor) -> Tensor | None:
        """Look up the records of a few clients, sorted; None if they must be searched for."""
        if len(clients) > FEW or not self._by_client:
            return None
        edges = torch.stack([clients, clients + 1], 1).to(self.client)
        ranges = torch.searchsorted(self.client, edges).tolist()
        none = torch.zeros(0, dtype=torch.int64)
        return torch.cat([none, *(torch.arange(begin, end) for begin, end in ranges)])

    @cached_property
    def per_item(self) -> Tensor:
        """Return the number of records of each item, up to the largest. [items]"""
        return torch.bincount(self.item)

    @cached_property
    def _by_client(self) -> bool:
        """Return whether records are on the CPU and sorted by client."""
        on_cpu = self.client.device.type == "cpu"
        return on_cpu and bool((self.client[1:] >= self.client[:-1]).all())

    def without(self, cut: Cut) -> Records:
        """Return the records that stay. The same cut gives the same object while it is in use.

        So the devices and the past of a federation go on holding the same records in memory.
        """
        if not len(cut.kept):
            return self
        known, made = self.__dict__.get("_cut", (None, None))
        same = made() if known is not None and known.same(cut) else None
        if same is not None:
            return same
        rating = None if self.rating is None else cut(self.rating)
        left = Records(cut(self.client), cut(self.item), cut(self.time), rating)
        if self.__dict__.get("_by_client"):
            left.__dict__["_by_client"] = True
        if "per_item" in self.__dict__:
            gone = self.item[cut.begin : cut.begin + len(cut.kept)][~cut.kept]
            fewer = torch.bincount(gone, minlength=len(self.per_item))
            left.__dict__["per_item"] = self.per_item - fewer
        self.__dict__["_cut"] = (cut, weakref.ref(left))
        return left

    def sorted(self) -> Records:
        """Sort by client, then item, then time."""
        order = torch.argsort(self.time, stable=True)
        return self[order[torch.argsort(self.pairs()[order], stable=True)]]

    def to(self, device: str | torch.device) -> Records:
        """Copy the records to another device."""
        rating = None if self.rating is None else self.rating.to(device)
        return Records(self.client.to(device), self.item.to(device), self.time.to(device), rating)

    def digest(self, key: bytes = b"") -> str:
        """Return a digest that ignores order; with a key, only its holder can recompute it."""
        ordered = self.sorted()
        hasher = hashlib.blake2b(key=key, digest_size=32)
        for column in (ordered.client, ordered.item, ordered.time):
            hasher.update(column.cpu().numpy().astype("<i8").tobytes())
        return "blake2b:" + hasher.hexdigest()


def _column(values: Column) -> Tensor:
    column = torch.as_tensor(values)
    if column.numel() and (column.is_floating_point() or column.is_complex()):
        raise DataError(
            f"records must be integers, got {column.dtype}. Convert original ids to indices "
            f"first, with Federation.records."
        )
    return column.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Event:
    """A change of data or consent. Two events are equal if their digests are equal."""

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
    return torch.unique(event.records.client)
