"""Pairs of a user's items, by how far apart in time and how alike in rating, in whole numbers.

Two numbers per pair, stored as in `_pairs`: (i, j), i >= j, is at i (i + 1) / 2 + j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.cohort import Lot
from rescind.methods.additive._notes import ranks
from rescind.methods.additive._pairs import items_of
from rescind.methods.additive._solving import UNIT, half

STARS = 64
"""Differences of ratings, in half stars, from here on count alike."""


@dataclass(frozen=True)
class PairKernel:
    """What a pair of a user's items counts, by their distance in time and in rating.

    far: w r, near: w r exp(-places / reach), with w = 4096 / n^power for n items and r = unlike +
    (1 - unlike) exp(-|difference of ratings|). Items of one time are 0 places apart. Rounded once,
    to whole numbers.
    """

    reach: float
    unlike: float
    power: float

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return 4096 times the factor of 0, 1/2, 1, ... places, and of half stars. [k], [64]"""
        return _tables(self.reach, self.unlike)

    def weight(self, count: Tensor) -> Tensor:
        """Return round(4096 / n^power). It depends on the user's own items only. [n] int64"""
        return torch.round(UNIT / count.clamp(min=1).double() ** self.power).long()

    def cells(self, items: int) -> int:
        return half(items)

    def items(self, total: Tensor) -> int:
        return items_of(total)

    def pairs(self, lot: Lot) -> tuple[Tensor, Tensor, Tensor]:
        return near_pairs(lot, self)

    def add(self, total: Tensor, lot: Lot, sign: Tensor, owners: Tensor | None = None) -> None:
        add_near_pairs(total, lot, sign, self, owners)


@lru_cache(maxsize=8)
def _tables(reach: float, unlike: float) -> tuple[Tensor, Tensor]:
    places = torch.arange(math.ceil(2 * reach * math.log(2 * UNIT)) + 2).double() / 2
    stars = torch.arange(STARS).double() / 2
    near, rated = torch.exp(-places / reach), unlike + (1 - unlike) * torch.exp(-stars)
    near[-1] = 0.0  # farther apart
    return torch.round(UNIT * near).long(), torch.round(UNIT * rated).long()


def near_pairs(lot: Lot, kernel: PairKernel) -> tuple[Tensor, Tensor, Tensor]:
    """Return every pair i >= j of each owner's items: (owner, place in the half, value [n, 2])."""
    near, rated = (table.to(lot.item.device) for table in kernel.tables())
    reach = lot.place + 1
    one = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), reach)
    two = lot.first[lot.owner[one]] + torch.arange(len(one), device=one.device)
    two = two - jagged.starts(reach)[one]
    rank, owner = ranks(lot), lot.owner[one]
    apart = (rank[one] - rank[two]).abs().clamp(max=len(near) - 1)
    far = kernel.weight(lot.count)[owner]
    if lot.rating is not None:
        stars = (lot.rating[one] - lot.rating[two]).abs().clamp(max=STARS - 1)
        far = far * rated[stars]
    else:
        far = far * UNIT
    each = torch.stack([far * UNIT, far * near[apart]], 1)
    value = torch.div(each + UNIT * UNIT // 2, UNIT * UNIT, rounding_mode="floor")
    return owner, half(lot.item[one]) + lot.item[two], value


def add_near_pairs(
    total: Tensor, lot: Lot, sign: Tensor, kernel: PairKernel, owners: Tensor | None = None
) -> None:
    """Add people's pairs to a sum in place, or subtract them. The same numbers as `near_pairs`.

    total: [I (I + 1) / 2, 2]    sign: [owners of the lot] 1 or -1
    owners: [I (I + 1) / 2], counts the people of each pair, if given
    """
    if lot.item.device.type != "cpu":
        owner, place, value = near_pairs(lot, kernel)
        total.index_add_(0, place, (value * sign[owner].unsqueeze(1)).to(total.dtype))
        if owners is not None:
            owners.index_add_(0, place, torch.ones_like(place))
        return
    from rescind.methods.additive._kernels import add_each_near_pair

    owners = torch.zeros(0, dtype=torch.int64) if owners is None else owners
    first = torch.cat([lot.first, lot.first.new_tensor([len(lot)])])
    weight = kernel.weight(lot.count)
    rating = torch.zeros_like(lot.item) if lot.rating is None else lot.rating
    arrays = (total, owners, first, lot.item, ranks(lot), rating, weight, sign, *kernel.tables())
    add_each_near_pair(*(each.numpy() for each in arrays))
