"""Records, the unit of consent, and the events that move them.

A record is one interaction (client, item, time), or one labelled node (client, node, 0). Events
are the only way data or consent changes; they are frozen and compared by digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rescind.errors import DataError

if TYPE_CHECKING:
    pass

_CLIENT_SHIFT = 31  # items < 2**31, clients < 2**32: a pair is one int64
_ITEMS, _CLIENTS = 2**31, 2**32


@dataclass(frozen=True, eq=False)
class Records:
    """A multiset of rows (Last.fm holds a pair twice); consent acts on all copies of a pair."""

    client: Tensor
    """[n] index of the client."""
    item: Tensor
    """[n] index of the item, or of the node."""
    time: Tensor
    """[n] seconds, 0 where the source has none."""

    @classmethod
    def of(
        cls,
        client: Tensor | Sequence[int],
        item: Tensor | Sequence[int],
        time: Tensor | Sequence[int] | None = None,
    ) -> Records:
        """Make records from columns of any integer kind."""
        who, what = _column(client), _column(item)
        when = torch.zeros_like(who) if time is None else _column(time)
        if not len(who) == len(what) == len(when):
            raise DataError(
                f"records need columns of one length, got client {len(who)}, "
                f"item {len(what)}, time {len(when)}. Give one entry per record."
            )
        if len(who) and (int(who.min()) < 0 or int(what.min()) < 0):
            raise DataError(
                "records hold indices from 0; a negative client or item was given. "
                "Look original ids up first (Federation.records does)."
            )
        if len(who) and (int(what.max()) >= _ITEMS or int(who.max()) >= _CLIENTS):
            raise DataError(
                f"items must be below {_ITEMS} and clients below {_CLIENTS}; the largest given are "
                f"{int(what.max())} and {int(who.max())}. Renumber them from 0."
            )
        return cls(who, what, when)

    @classmethod
    def none(cls) -> Records:
        """No records at all."""
        return cls.of([], [])

    def __len__(self) -> int:
        return len(self.client)

    def __getitem__(self, chosen: Tensor) -> Records:
        """The records at these places, or where this mask is true."""
        return Records(self.client[chosen], self.item[chosen], self.time[chosen])

    def __add__(self, other: Records) -> Records:
        return Records(
            torch.cat([self.client, other.client]),
            torch.cat([self.item, other.item]),
            torch.cat([self.time, other.time]),
        )

    def pairs(self) -> Tensor:
        """Each record's (client, item) as one number, worked out once. [n]"""
        return self._pairs

    @cached_property
    def _pairs(self) -> Tensor:
        return (self.client << _CLIENT_SHIFT) + self.item

    def among(self, other: Records) -> Tensor:
        """Which of these records have a pair that `other` holds. [n] bool"""
        return torch.isin(self.pairs(), other.pairs().to(self.client.device))

    def sorted(self) -> Records:
        """By client, then item, then time."""
        order = torch.argsort(self.time, stable=True)
        return self[order[torch.argsort(self.pairs()[order], stable=True)]]

    def to(self, device: str | torch.device) -> Records:
        """The same records on another device."""
        return Records(self.client.to(device), self.item.to(device), self.time.to(device))

    def digest(self, key: bytes = b"") -> str:
        """A digest whatever their order; with a key, nobody without the key can recompute it."""
        inside = self.sorted()
        seen = hashlib.blake2b(key=key, digest_size=32)
        for column in (inside.client, inside.item, inside.time):
            seen.update(column.cpu().numpy().astype("<i8").tobytes())
        return "blake2b:" + seen.hexdigest()


def _column(values: Tensor | Sequence[int]) -> Tensor:
    column = torch.as_tensor(values)
    if column.numel() and (column.is_floating_point() or column.is_complex()):
        raise DataError(
            f"records hold whole numbers, got {column.dtype}. Look original ids up first "
            f"(Federation.records does)."
        )
    return column.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened to data or consent. Two events are equal if their digests are."""

    def digest(self, key: bytes = b"") -> str:
        """What is kept of an event; for an erasure, keyed, so that it does not give data away."""
        seen = hashlib.blake2b(key=key, digest_size=32)
        seen.update(type(self).__name__.encode())
        for value in vars(self).values():
            part = value.digest(key) if hasattr(value, "digest") else str(index(value))
            seen.update(part.encode())
        return "blake2b:" + seen.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())


@dataclass(frozen=True, eq=False)
class Share(Event):
    """People lend records: the server gets a copy, the device keeps its own."""

    records: Records


@dataclass(frozen=True, eq=False)
class Unshare(Event):
    """People take a loan back: the server's copy goes, the device keeps its own."""

    records: Records


@dataclass(frozen=True, eq=False)
class Erase(Event):
    """Records are gone, from server and device."""

    records: Records


@dataclass(frozen=True, eq=False)
class Join(Event):
    """A client becomes a member (again). Its data comes with `Arrive`."""

    client: int


@dataclass(frozen=True, eq=False)
class Withdraw(Event):
    """A client leaves with everything it has."""

    client: int


@dataclass(frozen=True, eq=False)
class Arrive(Event):
    """Time moves: a new block of records, perhaps with new clients and items.

    Devices do not keep the training records of the block before (F3CRec's constraint).
    """

    records: Records
    split: Tensor
    """[n] int8: 0 train, 1 valid, 2 test."""
    clients: int
    """How many clients there are from now on (indices below this number)."""
    items: int
    """How many items there are from now on."""

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
    """The people a request is about. [n] sorted"""
    if isinstance(event, Withdraw):
        return torch.tensor([event.client])
    assert isinstance(event, Unshare | Erase)
    return torch.unique(event.records.client)
