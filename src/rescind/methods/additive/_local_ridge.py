"""Item weights from neighbours only, for catalogues whose pairs do not fit into memory.

G is sparse: most pairs of a large catalogue never meet. Item j is explained by its nearest items
N(j) alone: B_Nj = (G_NN + ridge)^-1 G_Nj, one small system per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rescind.core.params import Params
from rescind.methods.additive._pairs import UNIT, Parts
from rescind.methods.additive._solve import Ridge, Temper

TOGETHER = 256
"""Systems solved together: 80 MB of float64 at 200 neighbours; changes speed only."""

_AS_IT_IS = Temper()


@dataclass(frozen=True)
class SparseGram:
    """G in whole numbers, both halves, row after row; pairs that cancelled out are not there."""

    first: Tensor
    """[I + 1] where each row begins."""
    other: Tensor
    """[n] int32, sorted inside a row."""
    value: Tensor
    """[n] int64"""

    @classmethod
    def none(cls, items: int) -> SparseGram:
        """No pairs."""
        zero = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(items + 1, dtype=torch.int64), zero.int(), zero)

    @classmethod
    def of(cls, own: Params) -> SparseGram:
        """As the server keeps it."""
        return cls(own["gram/first"], own["gram/other"], own["gram/value"])

    def packed(self) -> dict[str, Tensor]:
        """For the server's state."""
        return {"gram/first": self.first, "gram/other": self.other, "gram/value": self.value}

    @property
    def items(self) -> int:
        """How many items it is for."""
        return len(self.first) - 1

    @property
    def diagonal(self) -> Tensor:
        """G_ii. [I] int64"""
        return torch.from_numpy(self._matrix().diagonal())

    def longer(self, items: int) -> SparseGram:
        """The same for a catalogue that has grown."""
        more = self.first[-1:].expand(items - self.items)
        return SparseGram(torch.cat([self.first, more]), self.other, self.value)

    def plus(self, parts: Parts) -> SparseGram:
        """G with the signed parts added, exactly."""
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
        return SparseGram(
            torch.from_numpy(total.indptr).long(),
            torch.from_numpy(total.indices).int(),
            torch.from_numpy(total.data),
        )

    def _matrix(self) -> Any:
        from scipy.sparse import csr_array

        columns = (self.value.numpy(), self.other.numpy(), self.first.numpy())
        return csr_array(columns, shape=(self.items, self.items))


@dataclass(frozen=True)
class Near:
    """The neighbours of every item and their weights."""

    item: Tensor
    """[I, many] int32, -1 where there is none"""
    weight: Tensor
    """[I, many] float32"""
    edge: Tensor
    """[I] the lowest cosine of a full list, 0 of one with room: what a newcomer must reach."""

    @classmethod
    def none(cls, items: int, many: int) -> Near:
        """No neighbours."""
        item = torch.full((items, many), -1, dtype=torch.int32)
        edge = torch.zeros(items, dtype=torch.float64)
        return cls(item, torch.zeros(items, many), edge)

    @classmethod
    def of(cls, own: Params) -> Near:
        """As the server keeps it."""
        return cls(own["near/item"], own["near/weight"], own["near/edge"])

    def packed(self) -> dict[str, Tensor]:
        """For the server's state."""
        return {"near/item": self.item, "near/weight": self.weight, "near/edge": self.edge}

    def longer(self, items: int) -> Near:
        """The same for a catalogue that has grown."""
        fresh = Near.none(items - len(self.item), self.item.shape[1])
        pairs = ((self.item, fresh.item), (self.weight, fresh.weight), (self.edge, fresh.edge))
        return Near(*(torch.cat(pair) for pair in pairs))

    def stale(self, gram: SparseGram, touched: Tensor) -> Tensor:
        """Whose list or weights may change when G changed among these items only. [k] sorted

        The items themselves; lists that name one of them; and lists that one of them may enter:
        its new cosine reaches their lowest.
        """
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

    def solved(
        self, gram: SparseGram, rows: Tensor, ridge: Ridge, temper: Temper = _AS_IT_IS
    ) -> Near:
        """These lists anew: neighbours by cosine, weights by one small system each, then bent.

        A list is a function of G alone, so it does not matter which others are made with it. There
        is no C here to bend by: 1 / (G_ii / 4096 + ridge_i), which C_ii is where items are
        unrelated, stands for it.
        """
        from rescind.methods.additive import _local_kernels as local_kernels

        item, weight, edge = self.item.clone(), self.weight.clone(), self.edge.clone()
        columns = [part.numpy() for part in (gram.first, gram.other, gram.value)]
        own = gram.diagonal.double()
        root, more = own.sqrt().numpy(), ridge.of(own / UNIT)
        many, alone = item.shape[1], 1 / (own / UNIT + more)
        for some in torch.split(rows, TOGETHER):
            near = torch.empty(len(some), many, dtype=torch.int32)
            lowest = torch.empty(len(some), dtype=torch.float64)
            local_kernels.nearest(*columns, root, some.numpy(), near.numpy(), lowest.numpy())
            inside = torch.zeros(len(some), many, many, dtype=torch.float64)
            towards = torch.zeros(len(some), many, dtype=torch.float64)
            local_kernels.squares(
                *columns, some.numpy(), near.numpy(), inside.numpy(), towards.numpy()
            )
            extra = torch.where(near >= 0, more[near.clamp(min=0).long()], 1.0)
            inside.div_(UNIT).diagonal(dim1=1, dim2=2).add_(extra)
            factor = torch.linalg.cholesky(inside)
            found = torch.cholesky_solve((towards / UNIT).unsqueeze(2), factor).squeeze(2)
            found = temper.bent(found, alone[near.clamp(min=0).long()], alone[some].unsqueeze(1))
            item[some], weight[some], edge[some] = near, found.float(), lowest
        return Near(item, weight, edge)
