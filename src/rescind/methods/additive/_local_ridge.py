"""Item weights from nearest neighbours, for catalogues with too many pairs for memory.

G is sparse, and item j uses its nearest items N(j) only: B_Nj = (G_NN + ridge)^-1 G_Nj, one small
system per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core.doing import step
from rescind.core.params import Params
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._solving import UNIT, Ridge, Temper

TOGETHER = 2048
"""Systems filled in at once: 330 MB of float64 at 200 neighbours; changes speed only."""


@dataclass(frozen=True)
class SparseGram:
    """G in integers: both halves, row by row, without zero pairs."""

    first: Tensor
    """[I + 1] start of each row."""
    other: Tensor
    """[n] int32, sorted within a row."""
    value: Tensor
    """[n] int64"""

    @classmethod
    def none(cls, items: int) -> SparseGram:
        zero = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(items + 1, dtype=torch.int64), zero.int(), zero)

    @classmethod
    def of(cls, own: Params) -> SparseGram:
        return cls(own["gram/first"], own["gram/other"], own["gram/value"])

    def packed(self) -> dict[str, Tensor]:
        return {"gram/first": self.first, "gram/other": self.other, "gram/value": self.value}

    @property
    def items(self) -> int:
        return len(self.first) - 1

    @property
    def diagonal(self) -> Tensor:
        """Return G_ii. [I] int64"""
        return torch.from_numpy(self._matrix().diagonal())

    def longer(self, items: int) -> SparseGram:
        more = self.first[-1:].expand(items - self.items)
        return SparseGram(torch.cat([self.first, more]), self.other, self.value)

    def plus(self, parts: Parts) -> SparseGram:
        """Return G with the signed parts added, exactly."""
        from scipy.sparse import csr_array

        lot = parts.lot
        first = torch.cat([lot.first, lot.first.new_tensor([len(lot)])]).cpu().numpy()
        item, value = lot.item.cpu().numpy(), parts.weight[lot.owner].cpu().numpy()
        shape = (len(parts), self.items)
        owns = csr_array((value * 0 + 1, item, first), shape=shape)
        total = csr_array(owns.T) @ csr_array((value, item, first), shape=shape)
        if len(self.value):
            total = self._matrix() + total
        total.eliminate_zeros()
        total.sort_indices()
        parted = (total.indptr, total.indices, total.data)
        start, other, each = (torch.from_numpy(part) for part in parted)
        return SparseGram(start.long(), other.int(), each)

    def _matrix(self) -> Any:
        from scipy.sparse import csr_array

        columns = (self.value.numpy(), self.other.numpy(), self.first.numpy())
        return csr_array(columns, shape=(self.items, self.items))


@dataclass(frozen=True)
class Near:
    """The neighbours of every item and their weights."""

    item: Tensor
    """[I, n] int32, -1 where there is none"""
    weight: Tensor
    """[I, n] float32"""
    edge: Tensor
    """[I] the lowest cosine in a full list, 0 if not full: the threshold for a new neighbour."""

    @classmethod
    def none(cls, items: int, n: int) -> Near:
        item, edge = torch.full((items, n), -1), torch.zeros(items, dtype=torch.float64)
        return cls(item.int(), torch.zeros(items, n), edge)

    @classmethod
    def of(cls, own: Params) -> Near:
        return cls(own["near/item"], own["near/weight"], own["near/edge"])

    def packed(self) -> dict[str, Tensor]:
        return {"near/item": self.item, "near/weight": self.weight, "near/edge": self.edge}

    def longer(self, items: int) -> Near:
        fresh = Near.none(items - len(self.item), self.item.shape[1])
        pairs = ((self.item, fresh.item), (self.weight, fresh.weight), (self.edge, fresh.edge))
        return Near(*(torch.cat(pair) for pair in pairs))

    def stale(self, gram: SparseGram, touched: Tensor) -> Tensor:
        """Return the items whose list or weights may change after `touched` changed. [k] sorted

        These are the items themselves, lists that contain one of them, and lists that one of them
        may enter because its new cosine reaches their threshold.
        """
        if len(touched) == gram.items:
            return touched
        marked = torch.zeros(gram.items, dtype=torch.bool)
        marked[touched] = True
        named = (marked[self.item.clamp(min=0).long()] & (self.item >= 0)).any(1)
        count = gram.first[touched + 1] - gram.first[touched]
        owner = torch.repeat_interleave(touched, count)
        start = torch.repeat_interleave(gram.first[touched] - (count.cumsum(0) - count), count)
        place = start + torch.arange(len(owner))
        other = gram.other[place].long()
        root = gram.diagonal.double().sqrt()
        enters = gram.value[place] / (root[other] * root[owner]) >= self.edge[other]
        named[other[enters]] = True
        return (named | marked).nonzero().squeeze(1)

    def solved(self, gram: SparseGram, rows: Tensor, ridge: Ridge, temper: Temper) -> Near:
        """Recompute these lists: neighbours by cosine, weights by one small system, then rescaled.

        A list depends on G only, not on the rest of the batch. There is no C here, so rescaling
        uses 1 / (G_ii / 4096 + ridge_i), which equals C_ii if items are unrelated.
        """
        from rescind.methods.additive import _local_kernels as local_kernels
        from rescind.methods.additive._small_systems import solutions

        item, weight, edge = self.item.clone(), self.weight.clone(), self.edge.clone()
        columns = [part.numpy() for part in (gram.first, gram.other, gram.value)]
        own = gram.diagonal.double()
        root, more = own.sqrt().numpy(), ridge.of(own / UNIT)
        n, scale = item.shape[1], 1 / (own / UNIT + more)
        every = np.empty((min(len(rows), TOGETHER), n * (n + 1) // 2))
        with step("solving for the neighbours of each item", len(rows), "items") as shown:
            for some in torch.split(rows, TOGETHER):
                near = torch.empty(len(some), n, dtype=torch.int32)
                lowest = torch.empty(len(some), dtype=torch.float64)
                lists = some.numpy(), near.numpy()
                local_kernels.nearest(*columns, root, *lists, lowest.numpy())
                inside, towards = every[: len(some)].reshape(-1), np.empty((len(some), n))
                local_kernels.squares(
                    columns, *lists, UNIT, more.numpy(), inside, towards.reshape(-1)
                )
                solved = torch.from_numpy(solutions(inside, towards))
                known = near.clamp(min=0).long()
                found = temper.rescale(solved, scale[known], scale[some].unsqueeze(1))
                item[some], weight[some], edge[some] = near, found.float(), lowest
                shown.reach(shown.done + len(some))
        return Near(item, weight, edge)
