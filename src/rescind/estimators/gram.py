"""`rs.Gram`: item weights in closed form from one sum over people. Forgets by subtraction.

A large catalogue has neighbours instead of all pairs, as LocalGram has them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.fast.kept_code import njit
from rescind.core.params import Params
from rescind.estimators.frames import Id, Ints
from rescind.estimators.ledger import Ledger
from rescind.estimators.ranker import Ranker
from rescind.methods.additive import gram
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind.methods.additive._pairs import Parts, add_pairs, mirrored, weight_of
from rescind.methods.additive._solve import inverse_of, weights_of
from rescind.methods.additive._solving import TUNED, half
from rescind.methods.additive.auto_gram import why_local
from rescind.methods.additive.gram import DENSE_ITEMS
from rescind.methods.additive.local_gram import LocalGram
from rescind.models.item_item import ItemWeights, LocalWeights, by_source, must_fit

log = logging.getLogger(__name__)


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
    dense_items: int = DENSE_ITEMS
    """Largest catalogue of which every pair is kept (30 bytes each while solving). A larger one
    keeps the 200 nearest neighbours of each item, as `rs.methods.LocalGram` does."""
    max_items: int = 1_000_000
    """Largest catalogue allowed."""

    @classmethod
    def tuned(cls, **settings: Any) -> Gram:
        """Return Gram as tuned on ML-1M validation: a little better."""
        return cls(**{**TUNED, **settings})

    def _given(self) -> dict[str, Any]:
        return {n: v for n, v in self._checked().items() if n != "dense_items"}

    def _method(self) -> gram.Gram:
        given = self._given()
        if not self._is_large(len(self._ledger.slot)):
            return gram.Gram(cross=True, **given)
        return _as_local(given)

    def _is_large(self, items: int) -> bool:
        """Return whether there are too many items to keep all pairs."""
        return items > self.dense_items

    def _must_fit(self, items: Collection[Id]) -> None:
        if not self._is_large(len(items)):
            gram.Gram(cross=True, **self._given()).must_fit(len(items))
            return
        must_fit(len(items), self.max_items, "Gram")
        if not self._is_large(len(self._ledger.slot)):  # it was dense until now
            log.warning("%s", why_local(len(items), self.dense_items))

    def _counting(self) -> Any:
        return self._is_large(len(self._ledger.slot))

    def _shape(self, slots: int) -> tuple[int, ...]:
        return (0,) if slots and self._counting() else (half(slots),)

    def _count(self, total: Tensor, lot: Lot, sign: int) -> None:
        if not self._counting():  # neighbours are made of the records, at the next use
            add_pairs(total, lot, sign * weight_of(lot.count))

    def _in_order(self, slot: Ints) -> Tensor:
        if self._counting():
            return _local_sum(self._ledger, self._state.made["place"], len(slot))
        total = self._state.total
        out = total.new_empty(half(len(slot)))
        _take_pairs(total.numpy(), slot, out.numpy())
        return out

    def _solve(self, total: Tensor) -> Tensor:
        if not len(total):
            return torch.zeros(0, 0)
        settings, items = self._method(), len(self._ledger.slot)
        if isinstance(settings, LocalGram):
            return _local_weights(total, items, settings)
        inverse = inverse_of([(total, 1.0)], items, settings.ridges)
        return weights_of(mirrored(inverse), settings.temper)

    def _scores(self, weights: Tensor, lot: Lot) -> Tensor:
        if self._counting():
            return LocalWeights().of_lot(self._neighbours(weights), lot)
        return ItemWeights().of_lot({"weights": weights}, lot)

    def _neighbours(self, weights: Tensor) -> Params:
        """Return the weights as a federation publishes them; the same objects every time."""
        made = self._state.made
        if "public" not in made:
            made["public"] = {"neighbour": weights[0].int(), "weight": weights[1].float()}
        found: Params = made["public"]
        return found

    def _strongest(self, weights: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        if not self._counting():
            return super()._strongest(weights, k)
        return _strongest_of(self._neighbours(weights), k)


def _as_local(given: dict[str, Any]) -> LocalGram:
    """Return LocalGram with the settings that differ from the defaults of `rs.Gram`.

    Those of `Gram.tuned` were found for all pairs; LocalGram has its own.
    """
    usual = {field.name: field.default for field in fields(Gram)}
    changed = {n: v for n, v in given.items() if v != usual[n]}
    if TUNED.items() <= changed.items():
        rest = {n: v for n, v in changed.items() if n not in TUNED}
        return LocalGram.tuned(cross=True, **rest)
    return LocalGram(cross=True, **changed)


def _local_sum(ledger: Ledger, place: Ints, items: int) -> Tensor:
    """Return G without zero pairs as one column: starts of rows, items, values.

    place: of each slot in the order of ids
    """
    lot = ledger.lot(ledger.of.values(), place)
    ids = torch.arange(lot.clients)
    near_pairs = SparseGram.none(items).plus(Parts.of(lot, 1, ids, torch.zeros_like(ids)))
    return torch.cat([near_pairs.first, near_pairs.other.long(), near_pairs.value])


def _local_weights(total: Tensor, items: int, method: LocalGram) -> Tensor:
    """Return neighbours and their weights. [2, I, many] float64"""
    pairs = (len(total) - items - 1) // 2
    first, other, value = torch.split(total, [items + 1, pairs, pairs])
    near_pairs = SparseGram(first, other.int(), value)
    near = Near.none(items, method.model.many)
    near = near.solved(near_pairs, torch.arange(items), method.ridges, method.temper)
    return torch.stack([near.item.double(), near.weight.double()])


def _strongest_of(public: Params, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest weights of each item above 0: (item, neighbour, weight)."""
    weights = by_source(public).tocoo()
    row, column, value = (torch.from_numpy(part) for part in (*weights.coords, weights.data))
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    row, column, value = row[order].long(), column[order].long(), value[order]
    first = torch.searchsorted(row, torch.arange(weights.shape[0]))
    kept = (torch.arange(len(row)) - first[row] < k) & (value > 0)
    return row[kept], column[kept], value[kept]


@njit
def _take_pairs(total: Any, slot: Any, out: Any) -> None:
    """Copy the lower half of a symmetric matrix in another order. slot: [I]"""
    for i in range(len(slot)):
        begin, one = i * (i + 1) // 2, slot[i]
        for j in range(i + 1):
            high, low = max(one, slot[j]), min(one, slot[j])
            out[begin + j] = total[high * (high + 1) // 2 + low]
