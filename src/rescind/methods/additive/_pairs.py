"""Weighted pairs of items in whole numbers: what people add to a Gram matrix and take back.

A symmetric matrix is kept as its lower half, row after row: the pair (i, j), i >= j, stands at
i (i + 1) / 2 + j, so that new items only append.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Lot

UNIT = 4096
"""Weights are whole multiples of 1 / 4096: rounding them costs less than the fourth digit."""
ROWS = 512
"""Rows of a matrix worked on at a time; changes speed and memory only."""
AT_ONCE = 2**18
"""People added up in one round at most, so that four bytes hold any of their sums: 2**18 times a
change of at most 2 * 4096 is 2**31."""


@dataclass(frozen=True)
class Parts:
    """Signed contributions weight * x x^T / 4096 side by side, x the indicator of a part's items.

    A person is one part for what they lent and one for what they kept, in each block.
    """

    lot: Lot
    """Items by part: `owner` is the part."""
    weight: Tensor
    """[P] int64, negative where something is taken back."""
    client: Tensor
    """[P] whose part it is (at devices: the place in the cohort)."""
    block: Tensor
    """[P] the block it belongs to."""

    def __len__(self) -> int:
        return len(self.weight)

    @classmethod
    def none(cls, device: torch.device | str = "cpu") -> Parts:
        """No parts."""
        zero = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(Lot(zero, zero, 0), zero, zero, zero)

    @classmethod
    def of(cls, lot: Lot, sign: int, client: Tensor, block: Tensor, longest: int = 0) -> Parts:
        """A part for each owner that has items, with the weight of so many. client: [owners]"""
        full = lot.count > 0
        place = torch.cumsum(full, 0) - 1
        inside = Lot(place[lot.owner], lot.item, int(full.sum()))
        weight = sign * weight_of(lot.count[full], longest)
        return cls(inside, weight, client[full], block[full])

    def __add__(self, other: Parts) -> Parts:
        lot = Lot(
            torch.cat([self.lot.owner, other.lot.owner + len(self)]),
            torch.cat([self.lot.item, other.lot.item]),
            len(self) + len(other),
        )
        return Parts(
            lot,
            torch.cat([self.weight, other.weight]),
            torch.cat([self.client, other.client]),
            torch.cat([self.block, other.block]),
        )

    def only(self, chosen: Tensor) -> Parts:
        """These parts alone. chosen: [P] bool"""
        if bool(chosen.all()):
            return self
        place = torch.cumsum(chosen, 0) - 1
        entry = chosen[self.lot.owner]
        lot = Lot(place[self.lot.owner[entry]], self.lot.item[entry], int(chosen.sum()))
        return Parts(lot, self.weight[chosen], self.client[chosen], self.block[chosen])


def weight_of(count: Tensor, longest: int = 0) -> Tensor:
    """round(4096 / sqrt(n)) of n items, 0 of none: long histories count less per pair. [n] int64

    It depends on a person's own items alone, so nobody else's weight changes when they leave.
    longest: above it floor(4096 sqrt(longest) / n), a bound on what one person adds; 0 for none
    """
    many = count.clamp(min=1).double()
    weight = torch.round(UNIT / torch.sqrt(many))
    if longest:
        bounded = torch.floor(UNIT * math.sqrt(longest) / many).clamp(min=1)  # 0 would count nobody
        weight = torch.where(count > longest, bounded, weight)
    return torch.where(count > 0, weight, 0.0).to(torch.int64)


def whole(people: int, blocks: int) -> torch.dtype:
    """Numbers wide enough for any sum over so many people: half the bytes up to 131,000 of them.

    A pair gets at most 4096 from each of a person's two parts in a block; as many clients again
    may be hosted.
    """
    return torch.int32 if 4 * people * blocks * UNIT < 2**31 else torch.int64


def half(items: int) -> int:
    """How many pairs i >= j there are."""
    return items * (items + 1) // 2


def items_of(total: Tensor) -> int:
    """How many items a lower half is for."""
    return (math.isqrt(8 * len(total) + 1) - 1) // 2


def pairs_in(lot: Lot) -> tuple[Tensor, Tensor]:
    """Every pair i >= j of items of one owner, as (owner, place in the half)."""
    reach = lot.place + 1
    first = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), reach)
    back = torch.arange(len(first), device=first.device) - jagged.starts(reach)[first]
    owner, high = lot.owner[first], lot.item[first]
    low = lot.item[lot.first[owner] + back]
    return owner, high * (high + 1) // 2 + low


def add_pairs(total: Tensor, lot: Lot, weight: Tensor, items: int) -> Tensor:
    """Add the sum of weight * x x^T over the owners of a lot to `total` in place; return it.

    Whole numbers throughout, so any order of addition gives the same bits.

    total: [I (I + 1) / 2] whole numbers    weight: [owners] int64
    """
    if total.device.type != "cpu":
        return total.add_(_product(lot, weight, items).to(total.dtype))
    from rescind.methods.additive._kernels import add_each_pair

    add_each_pair(total.numpy(), lot.owner.numpy(), lot.item.numpy(), weight.numpy())
    return total


def pair_sums(lot: Lot, weight: Tensor, items: int) -> tuple[Tensor, Tensor]:
    """The sum of weight * x x^T, and how many owners have each pair. [I (I + 1) / 2] int32, twice

    At most 2**18 owners: AT_ONCE.
    """
    total, many = torch.zeros(2, half(items), dtype=torch.int32, device=lot.item.device)
    add_pairs(total, lot, weight, items)
    return total, add_pairs(many, lot, torch.ones_like(weight), items)


def _product(lot: Lot, weight: Tensor, items: int) -> Tensor:
    """X^T diag(weight) X by products of float64, where those are fast: on a GPU. [I (I + 1) / 2]

    Sums of whole numbers below 2**53 are not rounded, and 4096 times all people is far below.
    """
    total = torch.zeros(items, items, dtype=torch.int64, device=lot.item.device)
    for start in range(0, lot.clients, ROWS):
        here = (lot.owner >= start) & (lot.owner < start + ROWS)
        many = min(ROWS, lot.clients - start)
        owns = torch.zeros(many, items, dtype=torch.float64, device=lot.item.device)
        owns[lot.owner[here] - start, lot.item[here]] = 1.0
        total += (owns.T @ (owns * weight[start : start + many].double().unsqueeze(1))).long()
    row, column = torch.tril_indices(items, items, device=lot.item.device)
    return total[row, column]


def half_each(count: Tensor) -> Tensor:
    """How many pairs n items make, with themselves. [n]"""
    return count * (count + 1) // 2


def square(total: Tensor, items: int) -> Tensor:
    """A lower half as a matrix in float64, zeros above. [I (I + 1) / 2] -> [I, I]"""
    full = torch.zeros(items, items, dtype=torch.float64, device=total.device)
    for row in range(0, items, ROWS):  # some rows at a time: nothing as large as the half is copied
        many = min(ROWS, items - row)
        lower = torch.ones(many, items, dtype=torch.bool, device=total.device).tril_(row)
        part = total[half(row) : half(row + many)].double()
        full[row : row + many].masked_scatter_(lower, part)
    return full


def mirrored(lower: Tensor) -> Tensor:
    """A symmetric matrix from its lower half. [I (I + 1) / 2] -> [I, I] float64"""
    items = items_of(lower)
    if lower.device.type == "cpu":
        from rescind.methods.additive._kernels import unfold

        full = torch.empty(items, items, dtype=torch.float64)
        unfold(lower.numpy(), full.numpy())
        return full
    full = square(lower, items)
    return full + full.tril(-1).T


def halved(full: Tensor) -> Tensor:
    """The lower half of a matrix. [I, I] -> [I (I + 1) / 2]"""
    items = len(full)
    lower = full.new_empty(half(items))
    for row in range(0, items, ROWS):
        many = min(ROWS, items - row)
        inside = torch.ones(many, row + many, dtype=torch.bool, device=full.device).tril_(row)
        lower[half(row) : half(row + many)] = full[row : row + many, : row + many][inside]
    return lower


def to_bits(lot: Lot, items: int) -> Tensor:
    """Which items each owner has, one bit each. [C, ceil(I / 8)] uint8"""
    wide = -(-items // 8)
    bits = torch.zeros(lot.clients * wide, dtype=torch.int64, device=lot.item.device)
    cell = lot.owner * wide + torch.div(lot.item, 8, rounding_mode="floor")
    bits.index_add_(0, cell, torch.ones_like(lot.item) << (lot.item % 8))
    return bits.to(torch.uint8).view(lot.clients, wide)


def from_bits(bits: Tensor) -> Lot:
    """The items of a table of bits, as a lot."""
    owner, byte = bits.nonzero().unbind(1)
    each = torch.arange(8, device=bits.device)
    there = (bits[owner, byte].long().unsqueeze(1) >> each) & 1 == 1
    item = (byte.unsqueeze(1) * 8 + each)[there]
    return Lot(owner.unsqueeze(1).expand(-1, 8)[there], item, len(bits))
