"""Integer-weighted item pairs that users add to a Gram matrix and subtract from it.

A symmetric matrix is stored as its lower half, row by row: pair (i, j), i >= j, is at
i (i + 1) / 2 + j, so new items only append.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Lot
from rescind.methods.additive._solving import ROWS, UNIT, half

AT_ONCE = 2**18
"""Maximum clients per round, so that int32 holds their sum: 2**18 * 2 * 4096 = 2**31."""
EQUAL = -1
"""Stands for a bound: all users have parts of the same norm (`weight_of`)."""


@dataclass(frozen=True)
class Parts:
    """Signed contributions weight * x x^T / 4096, x the indicator vector of a part's items.

    A user has one part for lent and one for kept items, in each block.
    """

    lot: Lot
    """Items by part: `owner` is the part."""
    weight: Tensor
    """[P] int64, negative for a subtraction."""
    client: Tensor
    """[P] client of the part (on devices: its index in the cohort)."""
    block: Tensor
    """[P] the block it belongs to."""

    def __len__(self) -> int:
        return len(self.weight)

    @classmethod
    def none(cls, device: torch.device | str = "cpu") -> Parts:
        zero = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(Lot(zero, zero, 0), zero, zero, zero)

    @classmethod
    def of(cls, lot: Lot, sign: int, client: Tensor, block: Tensor, longest: int = 0) -> Parts:
        """Make one weighted part per owner with items. client, block: [owners]"""
        full = lot.count > 0
        place = torch.cumsum(full, 0) - 1
        inside = replace(lot, owner=place[lot.owner], clients=int(full.sum()))
        weight = sign * weight_of(lot.count[full], longest)
        return cls(inside, weight, client[full], block[full])

    def __add__(self, other: Parts) -> Parts:
        owner = torch.cat([self.lot.owner, other.lot.owner + len(self)])
        lots = (self.lot, other.lot)
        marks = ([lot.time for lot in lots], [lot.rating for lot in lots])
        known = [[mark for mark in pair if mark is not None] for pair in marks]
        time, rating = (torch.cat(pair) if pair else None for pair in known)  # no parts: no marks
        item = torch.cat([lot.item for lot in lots])
        lot = Lot(owner, item, len(self) + len(other), time, rating)
        rest = ((self.weight, other.weight), (self.client, other.client), (self.block, other.block))
        return Parts(lot, *(torch.cat(pair) for pair in rest))

    def in_turns(self, most: int = 2**22) -> Iterator[Parts]:
        """Yield the parts of some clients after the other, with about `most` pairs each.

        All pairs of a block that brings everybody new items would be gigabytes.
        """
        if not len(self):
            return
        each = jagged.segment_sum(self.lot.count**2, self.client, int(self.client.max()) + 1)
        turn = (torch.cumsum(each, 0) - each)[self.client] // most
        for one in torch.unique(turn).tolist():
            yield self.only(turn == one)

    def only(self, chosen: Tensor) -> Parts:
        if bool(chosen.all()):
            return self
        place = torch.cumsum(chosen, 0) - 1
        entry = chosen[self.lot.owner]
        lot = self.lot.only(entry, place[self.lot.owner[entry]], int(chosen.sum()))
        return Parts(lot, self.weight[chosen], self.client[chosen], self.block[chosen])


def weight_of(count: Tensor, longest: int = 0) -> Tensor:
    """Return round(4096 / sqrt(n)) for n items, 0 for none. [n] int64

    It depends on the user's own items only, so no other weight changes when the user leaves.
    longest: for n > longest, floor(4096 sqrt(longest) / n) bounds one user's part; 0: no bound;
    EQUAL: floor(4096 sqrt(2 / (n (n + 1)))), so that every part has the norm 1 at most
    """
    n = count.clamp(min=1).double()
    weight = torch.round(UNIT / torch.sqrt(n))
    if longest == EQUAL:
        weight = torch.floor(UNIT * torch.sqrt(2 / (n * (n + 1)))).clamp(min=1)
    elif longest:
        bounded = torch.floor(UNIT * math.sqrt(longest) / n).clamp(min=1)  # 0 would drop the user
        weight = torch.where(count > longest, bounded, weight)
    return torch.where(count > 0, weight, 0.0).to(torch.int64)


def sum_dtype(people: int, blocks: int) -> torch.dtype:
    """Return int32 if it holds any sum over these users (up to 131,000), else int64.

    A pair gets at most 4096 from each of a user's two parts per block, and as much from hosted
    clients.
    """
    return torch.int32 if 4 * people * blocks * UNIT < 2**31 else torch.int64


def items_of(total: Tensor) -> int:
    return (math.isqrt(8 * len(total) + 1) - 1) // 2


def pairs_in(lot: Lot) -> tuple[Tensor, Tensor]:
    """Return every pair i >= j of each owner's items, as (owner, index in the half)."""
    reach = lot.place + 1
    first = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), reach)
    back = torch.arange(len(first), device=first.device) - jagged.starts(reach)[first]
    owner, high = lot.owner[first], lot.item[first]
    low = lot.item[lot.first[owner] + back]
    return owner, half(high) + low


def add_pairs(total: Tensor, lot: Lot, weight: Tensor, owners: Tensor | None = None) -> Tensor:
    """Add the sum of weight * x x^T over the owners of a lot to `total` in place; return it.

    Integers only, so any order of addition gives the same bits.

    total: [I (I + 1) / 2] integers    weight: [owners] int64
    owners: as total; gets the number of owners of each pair
    """
    if total.device.type != "cpu":
        if owners is not None:
            _add_in_steps(owners, lot, torch.ones_like(weight))
        return _add_in_steps(total, lot, weight)
    from rescind.methods.additive._kernels import add_each_pair, add_pairs_by_item

    many = total[:0] if owners is None else owners
    items, entries = items_of(total), (lot.owner.numpy(), lot.item.numpy(), weight.numpy())
    if len(lot) < items and owners is None:  # few: passing over all rows would take longer
        add_each_pair(total.numpy(), *entries)
    else:
        add_pairs_by_item(total.numpy(), many.numpy(), *entries, items)
    return total


def pair_sums(lot: Lot, weight: Tensor, items: int) -> tuple[Tensor, Tensor]:
    """Return the sum of weight * x x^T and the owners of each pair. [I (I + 1) / 2] int32, twice"""
    total, owners = torch.zeros(2, half(items), dtype=torch.int32, device=lot.item.device)
    return add_pairs(total, lot, weight, owners), owners


def _add_in_steps(total: Tensor, lot: Lot, weight: Tensor, most: int = 2**26) -> Tensor:
    """Add pairs one by one, those of some owners at a time: what a GPU does fast."""
    ends = torch.cumsum(half(lot.count), 0)
    steps = int(ends[-1]) // most if len(ends) else 0
    marks = most * torch.arange(1, steps + 1, device=ends.device)
    cuts = torch.unique(torch.searchsorted(ends, marks, right=True))
    for start, end in itertools.pairwise([0, *cuts.tolist(), lot.clients]):
        here = slice(*torch.searchsorted(lot.owner, lot.owner.new_tensor([start, end])).tolist())
        owner, pair = pairs_in(Lot(lot.owner[here] - start, lot.item[here], end - start))
        total.index_add_(0, pair, weight[start:end].to(total.dtype)[owner])
    return total


def square(total: Tensor, items: int) -> Tensor:
    """Unpack a lower half into a float64 matrix, zeros above. [I (I + 1) / 2] -> [I, I]"""
    full = torch.zeros(items, items, dtype=torch.float64, device=total.device)
    for row in range(0, items, ROWS):  # in slices, so that the half is never copied as a whole
        rows = min(ROWS, items - row)
        lower = torch.ones(rows, items, dtype=torch.bool, device=total.device).tril_(row)
        part = total[half(row) : half(row + rows)].double()
        full[row : row + rows].masked_scatter_(lower, part)
    return full


def mirrored(lower: Tensor) -> Tensor:
    """Unpack a symmetric matrix from its lower half. [I (I + 1) / 2] -> [I, I] float64"""
    items = items_of(lower)
    if lower.device.type == "cpu":
        from rescind.methods.additive._kernels import unfold

        full = torch.empty(items, items, dtype=torch.float64)
        unfold(lower.numpy(), full.numpy())
        return full
    full = square(lower, items)
    return full + full.tril(-1).T


def halved(full: Tensor) -> Tensor:
    """Pack the lower half of a matrix. [I, I] -> [I (I + 1) / 2]"""
    out = full.new_empty(half(len(full)))
    for row in range(0, len(full), ROWS):
        part = full[row : row + ROWS]
        lower = torch.ones_like(part, dtype=torch.bool).tril_(row)
        out[half(row) : half(row + len(part))] = part[lower]
    return out
