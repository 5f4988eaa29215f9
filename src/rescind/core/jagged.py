"""Rows of several owners in flat tensors, without padding.

`owner` is the owner of each row (0 .. owners-1); functions that need it sorted state this. A shelf
is the set of (owner, item) pairs of which a cohort keeps copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this number of (owner, item) cells, a lookup table replaces the binary search: at most
# 128 MB of int32. Changes speed only.
_TABLE_CELLS = 2**25


def counts(owner: Tensor, owners: int) -> Tensor:
    """Return the number of rows of each owner. [owners]"""
    return torch.bincount(owner, minlength=owners)


def starts(count: Tensor) -> Tensor:
    """Return the position of each owner's first row, given the counts. [owners]"""
    return torch.cumsum(count, 0) - count


def owners_of(count: Tensor) -> Tensor:
    """Return the sorted owner of every row, given the counts. [rows]"""
    return torch.repeat_interleave(torch.arange(len(count), device=count.device), count)


def places(owner: Tensor, owners: int) -> Tensor:
    """Return the position of each row within its owner, 0, 1, ...; `owner` sorted. [rows]"""
    first = starts(counts(owner, owners))
    return torch.arange(len(owner), device=owner.device) - first[owner]


def segment_sum(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Sum each owner's rows. [rows, ...] -> [owners, ...]"""
    out = values.new_zeros((owners, *values.shape[1:]))
    return out.index_add_(0, owner, values)


def segment_mean(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Average each owner's rows, 0 for an owner without rows. [rows, ...] -> [owners, ...]"""
    count = counts(owner, owners).clamp_(min=1).to(values.dtype)
    return segment_sum(values, owner, owners) / count.view(-1, *[1] * (values.dim() - 1))


def segment_logsumexp(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Compute logsumexp over each owner's rows, -inf without rows. [rows] -> [owners]"""
    most = values.detach().new_full((owners,), -torch.inf)
    most = most.scatter_reduce_(0, owner, values.detach(), "amax").clamp(min=-1e30)
    inside = segment_sum(torch.exp(values - most[owner]), owner, owners)
    return most + torch.log(inside)


def shuffle(bits: Tensor, owner: Tensor) -> Tensor:
    """Return the order that sorts rows by owner, then by 40 of their random bits.

    An owner's order depends on its own bits only, so it is the same in any cohort.
    """
    return torch.argsort((owner << 40) | ((bits >> 24) & 0xFFFFFFFFFF), stable=True)


def take(first: Tensor, count: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Find the rows of the chosen owners: (new sorted owner of each row, its position).

    first, count: [owners] of the flat array    chosen: [C] owners, in the wanted order
    """
    return spread(first[chosen], count[chosen])


def spread(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return every row of some ranges: (the range it is in, its position). first, count: [C]"""
    owner = owners_of(count)
    place = torch.arange(len(owner), device=owner.device) - starts(count)[owner]
    return owner, first[owner] + place


@dataclass(frozen=True)
class Shelf:
    """The (owner, item) pairs that a cohort copies, each once, sorted by owner, then item."""

    owner: Tensor
    item: Tensor
    owners: int
    items: int
    table: Tensor | None
    """[owners * items] int32: position of each pair, -1 if it is not on the shelf."""

    def __len__(self) -> int:
        return len(self.owner)

    @classmethod
    def of(cls, owner: Tensor, item: Tensor, owners: int, items: int) -> Shelf:
        """Make a shelf of pairs, in any order and with duplicates."""
        cell = owner * items + item
        table = None
        if owners * items <= _TABLE_CELLS:
            mask = torch.zeros(owners * items, dtype=torch.bool, device=cell.device)
            mask[cell] = True
            cell = mask.nonzero().squeeze(1)
            table = torch.full((owners * items,), -1, dtype=torch.int32, device=cell.device)
            table[cell] = torch.arange(len(cell), dtype=torch.int32, device=cell.device)
        else:
            cell = torch.unique(cell)
        return cls(cell // max(items, 1), cell % max(items, 1), owners, items, table)

    def find(self, owner: Tensor, item: Tensor) -> Tensor:
        """Return the positions of pairs on the shelf, -1 if missing. Any equal shapes."""
        cell = owner * self.items + item
        if self.table is not None:
            return self.table[cell].long()
        cells = self.owner * self.items + self.item
        if len(cells) == 0:
            return torch.full_like(cell, -1)
        at = torch.searchsorted(cells, cell).clamp_(max=len(cells) - 1)
        return torch.where(cells[at] == cell, at, -1)
