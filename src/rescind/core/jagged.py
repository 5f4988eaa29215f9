"""Rows of many owners side by side in flat tensors, without padding.

`owner` says whose a row is (0 .. owners-1). Most functions want it sorted; those that need it say
so. A shelf is the set of (owner, item) pairs a cohort keeps its own copy of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this many (owner, item) cells a shelf is found by a table instead of a binary search:
# 128 MB of int32 at most. Changes speed only.
_TABLE_CELLS = 2**25


def counts(owner: Tensor, owners: int) -> Tensor:
    """How many rows each owner has. [owners]"""
    return torch.bincount(owner, minlength=owners)


def starts(count: Tensor) -> Tensor:
    """Where each owner's rows begin, given how many there are. [owners]"""
    return torch.cumsum(count, 0) - count


def owners_of(count: Tensor) -> Tensor:
    """The sorted owner of every row, given how many each owner has. [rows]"""
    return torch.repeat_interleave(torch.arange(len(count), device=count.device), count)


def places(owner: Tensor, owners: int) -> Tensor:
    """The place of each row inside its owner, 0, 1, 2, ...; `owner` sorted. [rows]"""
    first = starts(counts(owner, owners))
    return torch.arange(len(owner), device=owner.device) - first[owner]


def segment_sum(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """The sum of each owner's rows. [rows, ...] -> [owners, ...]"""
    out = values.new_zeros((owners, *values.shape[1:]))
    return out.index_add_(0, owner, values)


def segment_mean(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """The mean of each owner's rows, 0 for an owner without rows. [rows, ...] -> [owners, ...]"""
    many = counts(owner, owners).clamp_(min=1).to(values.dtype)
    return segment_sum(values, owner, owners) / many.view(-1, *[1] * (values.dim() - 1))


def segment_logsumexp(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """log of the sum of exponentials of each owner's rows, -inf without rows. [rows] -> [owners]"""
    most = values.detach().new_full((owners,), -torch.inf)
    most = most.scatter_reduce_(0, owner, values.detach(), "amax").clamp(min=-1e30)
    inside = segment_sum(torch.exp(values - most[owner]), owner, owners)
    return most + torch.log(inside)


def shuffle(bits: Tensor, owner: Tensor) -> Tensor:
    """The order that sorts rows by owner and, inside an owner, by 40 of their random bits.

    An owner's order depends on its own bits alone, so it is the same in any crowd.
    """
    return torch.argsort((owner << 40) | ((bits >> 24) & 0xFFFFFFFFFF), stable=True)


def take(first: Tensor, count: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the chosen owners in a flat array: (their new sorted owner, where each row lies).

    first, count: [owners] of the array    chosen: [C] owners, in the order wanted
    """
    many = count[chosen]
    owner = owners_of(many)
    place = torch.arange(len(owner), device=owner.device) - starts(many)[owner]
    return owner, first[chosen][owner] + place


@dataclass(frozen=True)
class Shelf:
    """The rows a cohort copies for itself: each (owner, item) once, sorted by owner, then item."""

    owner: Tensor
    item: Tensor
    owners: int
    items: int
    table: Tensor | None
    """[owners * items] int32: where each pair stands, -1 where it is not on the shelf."""

    def __len__(self) -> int:
        return len(self.owner)

    @classmethod
    def of(cls, owner: Tensor, item: Tensor, owners: int, items: int) -> Shelf:
        """Collect pairs, given in any order and any number of times."""
        cell = owner * items + item
        table = None
        if owners * items <= _TABLE_CELLS:
            there = torch.zeros(owners * items, dtype=torch.bool, device=cell.device)
            there[cell] = True
            cell = there.nonzero().squeeze(1)
            table = torch.full((owners * items,), -1, dtype=torch.int32, device=cell.device)
            table[cell] = torch.arange(len(cell), dtype=torch.int32, device=cell.device)
        else:
            cell = torch.unique(cell)
        return cls(cell // max(items, 1), cell % max(items, 1), owners, items, table)

    def find(self, owner: Tensor, item: Tensor) -> Tensor:
        """Where the pairs stand on the shelf, -1 for a pair that is not on it. Any one shape."""
        cell = owner * self.items + item
        if self.table is not None:
            return self.table[cell].long()
        cells = self.owner * self.items + self.item
        if len(cells) == 0:
            return torch.full_like(cell, -1)
        at = torch.searchsorted(cells, cell).clamp_(max=len(cells) - 1)
        return torch.where(cells[at] == cell, at, -1)
