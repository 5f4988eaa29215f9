"""Item-item models, and counts of clients that own two items together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import Sizes
from rescind.errors import ConfigError

PAIRS = "pairs"
"""Number of clients that own both items: [I * I, 1], the pair (i, j) in row i * I + j."""
BLOCK = 2**12
"""Clients per matrix product: counts below 2**24 are exact in float32; changes speed only."""
_CACHE: Any = WeakIdKeyDictionary()


class _NothingPrivate:
    """Ranks items without private parameters."""

    task: ClassVar[str] = "ranking"

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {}


@dataclass(frozen=True)
class ItemWeights(_NothingPrivate):
    """A model with a weight per ordered item pair: score_j = sum over own items i of B_ij."""

    tables: ClassVar[tuple[str, ...]] = ()

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"weights": torch.zeros(sizes.items, sizes.items)}

    def of_lot(self, public: Params, lot: Lot, each: Tensor | None = None) -> Tensor:
        """Compute x B for every client, with x its own items. each: [n] x, else ones. [C, I]"""
        weights = public["weights"]
        if not len(lot):
            return weights.new_zeros(lot.clients, len(weights))
        x = None if each is None else each.to(weights)
        return functional.embedding_bag(
            lot.item, weights, lot.first, mode="sum", per_sample_weights=x
        )


@dataclass(frozen=True)
class Neighbours(_NothingPrivate):
    """A model of the most similar items: score_j = sum over own items i with neighbour j."""

    tables: ClassVar[tuple[str, ...]] = ("neighbour", "similarity")

    many: int = 20
    """Neighbours per item; chosen on ML-100K validation from 20, 50, 100, 200."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return neighbour: [I, many], -1 if there is none    similarity: [I, many]"""
        none = torch.full((sizes.items, self.many), -1, dtype=torch.int64)
        return {"neighbour": none, "similarity": torch.zeros(sizes.items, self.many)}

    def of_lot(self, public: Params, lot: Lot) -> Tensor:
        """Sum the similarities to each client's own items. [C, I]"""
        neighbour, similarity = public["neighbour"], public["similarity"]
        items = len(neighbour)
        out = similarity.new_zeros(lot.clients * items)
        near = neighbour.index_select(0, lot.item)
        value = torch.where(near >= 0, similarity.index_select(0, lot.item), 0.0)
        cell = lot.owner.unsqueeze(1) * items + near.clamp(min=0)
        return out.index_add_(0, cell.view(-1), value.view(-1)).view(lot.clients, items)


def client_pairs(cohort: Cohort) -> Update:
    """Return a 1 for every ordered pair of items that a client owns, including (i, i)."""
    lot = cohort.train
    repeats = lot.count[lot.owner]
    first = torch.repeat_interleave(torch.arange(len(lot), device=lot.item.device), repeats)
    position = torch.arange(len(first), device=first.device) - jagged.starts(repeats)[first]
    owner = lot.owner[first]
    other = lot.item[lot.first[owner] + position]
    ones = torch.ones(len(first), 1, dtype=torch.int32, device=first.device)
    rows = Rows(owner, lot.item[first] * cohort.items + other, ones, cohort.items**2)
    return Update(len(cohort), {PAIRS: rows})


def client_pairs_sum(cohort: Cohort) -> Sum:
    """Compute the sum of `client_pairs` as X^T X, in blocks; every client has weight 1."""
    counts, clients = together(cohort.train, cohort.items).view(-1), len(cohort)
    up = int(cohort.train.count.square().sum()) * 8  # a count and a row number of four bytes each
    totals, touched = {PAIRS: counts.unsqueeze(1)}, {PAIRS: counts}
    return Sum(totals=totals, weight=float(clients), clients=clients, touched=touched, up=up)


def together(lot: Lot, items: int) -> Tensor:
    """Count the clients that own both items, X^T X in whole numbers. [I, I] int32"""
    total = torch.zeros(items, items, dtype=torch.int32, device=lot.item.device)
    for start in range(0, lot.clients, BLOCK):
        here = (lot.owner >= start) & (lot.owner < start + BLOCK)
        owns = torch.zeros(min(BLOCK, lot.clients - start), items, device=lot.item.device)
        owns[lot.owner[here] - start, lot.item[here]] = 1.0
        total += (owns.T @ owns).to(torch.int32)
    return total


def must_fit(items: int, most: int, name: str) -> None:
    if items > most:
        raise ConfigError(
            f"{name} keeps a number for every pair of items: {items} items are "
            f"{items * items * 8 / 1e9:.0f} GB, and max_items is {most}. Raise it."
        )


@dataclass(frozen=True)
class LocalWeights(_NothingPrivate):
    """A model with weights of neighbours only: score_j = sum over own items i in N(j) of B_ij."""

    tables: ClassVar[tuple[str, ...]] = ("neighbour", "weight")

    many: int = 200
    """Neighbours per item: additive.md section 3."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return neighbour: [I, many], -1 if there is none    weight: [I, many]"""
        none = torch.full((sizes.items, self.many), -1, dtype=torch.int32)
        return {"neighbour": none, "weight": torch.zeros(sizes.items, self.many)}

    def of_lot(self, public: Params, lot: Lot) -> Tensor:
        from scipy.sparse import csr_array

        weights = by_source(public)
        first = torch.cat([lot.first, lot.first.new_tensor([len(lot)])]).cpu().numpy()
        ones, item = torch.ones(len(lot), dtype=public["weight"].dtype).numpy(), lot.item.cpu()
        owns = csr_array((ones, item.numpy(), first), shape=(lot.clients, weights.shape[0]))
        return torch.from_numpy((owns @ weights).toarray()).to(public["weight"].device)


def by_source(public: Params) -> Any:
    """Return the weights as sparse rows of the owned items, cached per weight tensor."""
    from scipy.sparse import csc_array, csr_array

    weight = public["weight"]
    if weight not in _CACHE:
        present = public["neighbour"] >= 0
        first = torch.cat([torch.zeros(1, dtype=torch.int64), present.sum(1).cpu().cumsum(0)])
        columns = (weight[present].cpu().numpy(), public["neighbour"][present].cpu().numpy())
        shape = (len(weight), len(weight))
        _CACHE[weight] = csr_array(csc_array((*columns, first.numpy()), shape=shape))
    return _CACHE[weight]
