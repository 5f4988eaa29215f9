"""`rs.Gram`: item weights in closed form from one sum over people. Forgets by subtraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numba import njit
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.estimators.frames import Ints
from rescind.estimators.ranker import Ranker
from rescind.methods.additive import gram
from rescind.methods.additive._pairs import add_pairs, mirrored, weight_of
from rescind.methods.additive._solve import inverse_of, weights_of
from rescind.methods.additive._solving import TUNED, half
from rescind.models.item_item import ItemWeights


@dataclass(kw_only=True, eq=False, repr=False)
class Gram(Ranker):
    """Recommend from pairs of items that people have together; no federation.

    G = sum of w_u x_u x_u^T over users, w_u = round(4096 / sqrt(n_u)), in whole numbers;
    C = (G / 4096 + ridge)^-1; B_ij = -C_ij / C_jj; the score is x B. The model is that of
    `rs.methods.Gram(cross=True)`, the method of a federation; here all records are in one place,
    and nothing is lent, published or noised (docs/additive.md).

        m = rs.Gram().fit(frame)                 # columns user and item; any order, any ids
        m.add(more)
        m.forget(users=["ann"], items=["film 7"], records=[("bob", "film 3")])
        m.recommend("bob", k=5)
    """

    ridge: float = 45.0
    """Lambda, on the scale of G / 4096, as in `rs.methods.Gram`; so are all settings."""
    ridge_per_item: float = 0.0
    ridge_power: float = 1.0
    own_power: float = 0.0
    shown_power: float = 0.0
    sharpen: float = 1.0
    max_items: int = 20_000
    """Largest catalogue allowed: 8 bytes per pair, and 12 more while solving."""

    @classmethod
    def tuned(cls, **settings: Any) -> Gram:
        """Return Gram as tuned on ML-1M validation: a little better."""
        return cls(**{**TUNED, **settings})

    def _method(self) -> gram.Gram:
        return gram.Gram(cross=True, **self._checked())

    def _counting(self) -> Any:
        return ()

    def _shape(self, slots: int) -> tuple[int, ...]:
        return (half(slots),)

    def _count(self, lot: Lot, sign: int) -> None:
        add_pairs(self._sum, lot, sign * weight_of(lot.count))

    def _in_order(self, slot: Ints) -> Tensor:
        out = self._sum.new_empty(half(len(slot)))
        _take_pairs(self._sum.numpy(), slot, out.numpy())
        return out

    def _solve(self, total: Tensor) -> Tensor:
        if not len(total):
            return torch.zeros(0, 0)
        settings, items = self._method(), len(self._ledger.slot)
        inverse = inverse_of([(total, 1.0)], items, settings.ridges)
        return weights_of(mirrored(inverse), settings.temper)

    def _scores(self, weights: Tensor, lot: Lot) -> Tensor:
        return ItemWeights().of_lot({"weights": weights}, lot)


@njit(cache=True)
def _take_pairs(total: Any, slot: Any, out: Any) -> None:
    """Copy the lower half of a symmetric matrix in another order. slot: [I]"""
    for i in range(len(slot)):
        begin, one = i * (i + 1) // 2, slot[i]
        for j in range(i + 1):
            high, low = max(one, slot[j]), min(one, slot[j])
            out[begin + j] = total[high * (high + 1) // 2 + low]
