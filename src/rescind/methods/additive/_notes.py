"""What a device notes about the items it has counted, so that it can take them back later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core.cohort import Lot


class Notes(ABC):
    """A table with a row per client, 0 where an item is not counted."""

    @abstractmethod
    def of(self, lot: Lot, items: int) -> Tensor:
        """Write down each owner's items."""

    @abstractmethod
    def read(self, table: Tensor) -> Lot:
        """Return the items of a table."""

    @abstractmethod
    def without(self, table: Tensor, lot: Lot) -> Tensor:
        """Return a table in which these items are not counted. Items it has no room for are not."""

    @abstractmethod
    def fit(self, table: Tensor, items: int) -> bool:
        """Return whether a table of a file, of the right width or less, has only these items."""


class Bits(Notes):
    """One bit per item: which items."""

    def of(self, lot: Lot, items: int) -> Tensor:
        return to_bits(lot, items)

    def read(self, table: Tensor) -> Lot:
        return from_bits(table)

    def without(self, table: Tensor, lot: Lot) -> Tensor:
        inside = lot.item < table.shape[1] * 8
        lot = Lot(lot.owner[inside], lot.item[inside], lot.clients)
        return table & ~to_bits(lot, table.shape[1] * 8)

    def fit(self, table: Tensor, items: int) -> bool:
        return not bool((table[:, items // 8 :] >> (items % 8)).any())


class Order(Notes):
    """Two bytes per item: which items, and in which order they came. Times are not kept.

    The first item of a client has number 1; items of the same time have the same number. After an
    erasure numbers are missing, which changes no order.
    """

    most = 2**15 - 1
    """Items from here on count as of one time."""

    def of(self, lot: Lot, items: int) -> Tensor:
        table = torch.zeros(lot.clients, items, dtype=torch.int16, device=lot.item.device)
        table[lot.owner, lot.item] = (steps(lot) + 1).clamp(max=self.most).to(torch.int16)
        return table

    def read(self, table: Tensor) -> Lot:
        owner, item = table.nonzero().unbind(1)
        return Lot(owner, item, len(table), table[owner, item].long())

    def without(self, table: Tensor, lot: Lot) -> Tensor:
        inside, left = lot.item < table.shape[1], table.clone()
        left[lot.owner[inside], lot.item[inside]] = 0
        return left

    def fit(self, table: Tensor, items: int) -> bool:
        return table.shape[1] <= items


class Rated(Order):
    """Four bytes per item: its place in the order, as `Order`, and twice its rating."""

    def of(self, lot: Lot, items: int) -> Tensor:
        table = super().of(lot, items).int() << 16
        if lot.rating is not None:
            table[lot.owner, lot.item] |= lot.rating.int() & 0xFFFF
        return table

    def read(self, table: Tensor) -> Lot:
        lot = super().read(table)
        assert lot.time is not None
        return replace(lot, time=lot.time >> 16, rating=(lot.time & 0xFFFF).short().long())


@dataclass(frozen=True)
class Listed(Notes):
    """The last items in their order, eight bytes each: for catalogues much longer than histories.

    A row holds the items plus 1, oldest first, then as many numbers of their order (as `Order`).
    """

    longest: int

    def of(self, lot: Lot, items: int) -> Tensor:
        order, _ = _by_time(lot)
        owner, step = lot.owner[order], steps(lot)[order]
        skipped = (lot.count - self.longest).clamp(min=0)
        place = torch.arange(len(lot), device=owner.device) - lot.first[owner] - skipped[owner]
        some = place >= 0
        table = torch.zeros(lot.clients, 2 * self.longest, dtype=torch.int32, device=owner.device)
        table[owner[some], place[some]] = (lot.item[order][some] + 1).int()
        table[owner[some], self.longest + place[some]] = (step[some] + 1).int()
        return table

    def read(self, table: Tensor) -> Lot:
        owner, place = table[:, : self.longest].nonzero().unbind(1)
        item, time = table[owner, place].long() - 1, table[owner, self.longest + place].long()
        order = torch.argsort(item, stable=True)
        order = order[torch.argsort(owner[order], stable=True)]
        return Lot(owner[order], item[order], len(table), time[order])

    def without(self, table: Tensor, lot: Lot) -> Tensor:
        pair = (torch.arange(len(table), device=table.device).unsqueeze(1) << 32) + table.long()
        gone = torch.isin(pair[:, : self.longest], (lot.owner << 32) + lot.item + 1)
        return torch.where(torch.cat([gone, gone], 1), 0, table)

    def fit(self, table: Tensor, items: int) -> bool:
        listed = table[:, : self.longest]
        return bool(((listed >= 0) & (listed <= items)).all())


BITS, ORDER, RATED = Bits(), Order(), Rated()


def steps(lot: Lot) -> Tensor:
    """Return how many different earlier times each item's owner has. [n]"""
    order, new = _by_time(lot)
    step = torch.cumsum(new, 0)
    out = torch.empty_like(lot.item)
    out[order] = step - step[lot.first[lot.owner[order]]]
    return out


def ranks(lot: Lot) -> Tensor:
    """Return twice the place in time of each item among its owner's; equal times share it. [n]"""
    order, new = _by_time(lot)
    first = new.nonzero().squeeze(1)
    size = torch.diff(first, append=first.new_tensor([len(lot)]))
    group = torch.cumsum(new, 0) - 1
    out = torch.empty_like(lot.item)
    out[order] = (2 * (first - lot.first[lot.owner[order[first]]]) + size - 1)[group]
    return out


def _by_time(lot: Lot) -> tuple[Tensor, Tensor]:
    """Return the order by owner and time, and where a new owner or time begins. [n], [n] bool"""
    time = torch.zeros_like(lot.item) if lot.time is None else lot.time
    order = torch.argsort(time, stable=True)
    order = order[torch.argsort(lot.owner[order], stable=True)]
    owner, time = lot.owner[order], time[order]
    new = torch.ones_like(owner, dtype=torch.bool)
    new[1:] = (owner[1:] != owner[:-1]) | (time[1:] != time[:-1])
    return order, new


def to_bits(lot: Lot, items: int) -> Tensor:
    """Encode each owner's items as one bit per item. [C, ceil(I / 8)] uint8"""
    wide = -(-items // 8)
    bits = torch.zeros(lot.clients * wide, dtype=torch.int64, device=lot.item.device)
    cell = lot.owner * wide + torch.div(lot.item, 8, rounding_mode="floor")
    bits.index_add_(0, cell, torch.ones_like(lot.item) << (lot.item % 8))
    return bits.to(torch.uint8).view(lot.clients, wide)


def from_bits(bits: Tensor) -> Lot:
    owner, byte = bits.nonzero().unbind(1)
    each = torch.arange(8, device=bits.device)
    there = (bits[owner, byte].long().unsqueeze(1) >> each) & 1 == 1
    item = (byte.unsqueeze(1) * 8 + each)[there]
    return Lot(owner.unsqueeze(1).expand(-1, 8)[there], item, len(bits))
