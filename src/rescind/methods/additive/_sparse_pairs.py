"""Ordered pairs of a large catalogue: only pairs that somebody has, and weights of neighbours.

A pair keeps its place in the square (`_ordered.shell`), so new items change no place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.params import Params
from rescind.methods.additive._ordered import Nearness, ordered_pairs
from rescind.methods.additive._solving import UNIT, Ridge, Temper

AT_ONCE = 2**22
"""Pairs listed at a time: 100 MB; changes speed and memory only."""


@dataclass(frozen=True)
class SparsePairs:
    """Sums of ordered pairs in whole numbers, without pairs that nobody has."""

    place: Tensor
    """[n] int64, sorted."""
    value: Tensor
    """[n, 2] int64: near and far."""

    @classmethod
    def none(cls) -> SparsePairs:
        zero = torch.zeros(0, dtype=torch.int64)
        return cls(zero, zero.view(0, 2))

    @classmethod
    def of(cls, own: Params) -> SparsePairs:
        return cls(own["gram/place"], own["gram/value"])

    def packed(self) -> dict[str, Tensor]:
        return {"gram/place": self.place, "gram/value": self.value}

    def plus(self, lot: Lot, sign: Tensor, near: Nearness) -> SparsePairs:
        """Add people's sequences, or subtract them. sign: [owners] 1 or -1"""
        places, values = [self.place], [self.value]
        for part, signs in _pieces(lot, sign):
            owner, place, value = ordered_pairs(part, near)
            place, value = _merged([place], [value * signs[owner].unsqueeze(1)])
            places.append(place)
            values.append(value)
        place, value = _merged(places, values)
        some = (value != 0).any(1)
        return SparsePairs(place[some], value[some])

    def matrix(self, column: int, items: int) -> Any:
        """Return the pairs of one reach divided by 4096, as a sparse matrix. [I, I]"""
        from scipy.sparse import csr_array

        shell = torch.sqrt(self.place.double()).long()  # exact below 2^52: 67 million items
        rest = self.place - shell * shell
        row, other = torch.where(rest < shell, rest, shell), torch.where(rest < shell, 0, rest)
        column_of = torch.where(rest < shell, shell, other - shell)
        value = self.value[:, column].double() / UNIT
        cells = (value.numpy(), (row.numpy(), column_of.numpy()))
        return csr_array(cells, shape=(items, items))


def neighbours_of_next(
    pairs: Any, ridge: Ridge, temper: Temper, back: float, steps: int, many: int
) -> tuple[Tensor, Tensor]:
    """Return the items that follow each item, and their weights. [I, many], -1 if there is none

    With A and M as in `_ordered.next_weights`, D the diagonal of A and O the rest: B = D^-1 M, then
    `steps` times B = D^-1 (M - O B) (Jacobi), each time cut to the largest weights of every row.
    Ties: lower item first.

    pairs: [I, I] sparse
    """
    from scipy.sparse import diags_array

    each = torch.from_numpy(pairs.diagonal())
    off = (pairs - diags_array(each.numpy())).tocsr()
    off.eliminate_zeros()
    near, wanted = (off + off.T).tocsr(), (off + back * off.T).tocsr()
    scale = diags_array((1 / (each + ridge.of(each))).numpy())
    found = _largest(scale @ wanted, many)
    for _ in range(steps):
        found = _largest(scale @ (wanted - near @ _rows(*found)), many)
    item, weight = found
    rare = 1 / (each + ridge.same)
    return item, temper.rescale(weight.float(), rare.unsqueeze(1), rare[item.clamp(min=0)])


def _largest(weights: Any, many: int) -> tuple[Tensor, Tensor]:
    """Return the items with the largest weights of each row, and these. [I, many] each"""
    weights = weights.tocsr()
    weights.sort_indices()
    value, column = torch.from_numpy(weights.data), torch.from_numpy(weights.indices).long()
    first = torch.from_numpy(weights.indptr).long()
    row = torch.repeat_interleave(torch.arange(len(first) - 1), torch.diff(first))
    order = torch.argsort(value.abs(), descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(len(row)) - first[row[order]]
    kept = place < many
    row, place, order = row[order][kept], place[kept], order[kept]
    item = torch.full((len(first) - 1, many), -1, dtype=torch.int64)
    weight = torch.zeros(len(first) - 1, many, dtype=torch.float64)
    item[row, place], weight[row, place] = column[order], value[order]
    return item, weight


def _rows(item: Tensor, weight: Tensor) -> Any:
    from scipy.sparse import csr_array

    there = item >= 0
    first = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    cells = (weight[there].numpy(), item[there].numpy(), first.numpy())
    return csr_array(cells, shape=(len(item), len(item)))


def scores_of(item: Tensor, weight: Tensor, lot: Lot, each: Tensor) -> Tensor:
    """Add the weighted lists of each owner's items. [owners, I]

    item, weight: [I, many]    each: [n] what every own item counts
    """
    out = torch.zeros(lot.clients * len(item), device=weight.device)
    to, value = item[lot.item], weight[lot.item] * each.to(weight).unsqueeze(1)
    there = to >= 0
    cell = (lot.owner.unsqueeze(1) * len(item) + to)[there]
    return out.index_add_(0, cell, value[there]).view(lot.clients, len(item))


def _merged(places: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return every place once, sorted, with the sum of its values."""
    place, where = torch.unique(torch.cat(places), return_inverse=True)
    value = torch.cat(values)
    return place, value.new_zeros(len(place), 2).index_add_(0, where, value)


def _pieces(lot: Lot, sign: Tensor) -> list[tuple[Lot, Tensor]]:
    """Divide a lot between owners, so that each piece has at most `AT_ONCE` pairs if it can."""
    piece = torch.cumsum(lot.count**2, 0) // AT_ONCE
    out = []
    for number in torch.unique(piece).tolist():
        inside = piece == number
        entry = inside[lot.owner]
        owner = (torch.cumsum(inside, 0) - 1)[lot.owner[entry]]
        out.append((lot.only(entry, owner, int(inside.sum())), sign[inside]))
    return out
