"""EASE: a linear item-item model in closed form, an upper reference for the other methods."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.methods._lent_graph.graph import graph_of
from rescind.models.item_item import (
    PAIRS,
    ItemWeights,
    Neighbours,
    client_pairs,
    client_pairs_sum,
    must_fit,
    together,
)


@dataclass(frozen=True, kw_only=True)
class PairCounting(Method, ABC):
    """A learner whose devices send a 1 for every pair of items they own."""

    seedless: ClassVar[bool] = True
    control: ClassVar[bool] = True

    max_items: int = 20_000
    """Reject larger catalogues: counts and solution take up to 24 bytes a pair."""

    def server_init(self, world: World, clock: Clock) -> ServerState:
        must_fit(world.sizes.items, self.max_items, type(self).__name__)
        return super().server_init(world, clock)

    def server_counts(self, sums: Mapping[str, Sum], world: World) -> Tensor | None:
        """Return how many clients own both items, None if no client took part. [I, I]"""
        counted = [total.totals[PAIRS] for total in sums.values() if PAIRS in total.totals]
        items = world.sizes.items
        return sum(counted[1:], counted[0]).view(items, items) if counted else None

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        return client_pairs(cohort), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        return client_pairs_sum(cohort), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        model = cast(ItemWeights | Neighbours, self.model)
        return model.of_lot(public, cohort.own)


@dataclass(frozen=True, kw_only=True)
class EASE(PairCounting):
    """Predict each item as a weighted sum of the others (Steck, WWW 2019); the score is x B.

    P = (G + ridge I)^-1, B_ij = -P_ij / P_jj and 0 on the diagonal; G = X^T X in integers, P by
    Cholesky in float64. One round with all clients completes the training. With `source = "shared"`
    the server only counts the shared items and no client takes part: a control for the value of
    federation. For both sources a device scores with all its own items, which stay on it.
    """

    paper: ClassVar[str] = "Steck, WWW 2019"

    model: ItemWeights = ItemWeights()
    source: Literal["everyone", "shared"] = "everyone"
    """Items counted in G: training items of all clients, or only those shared with the server."""
    ridge: float = 300.0
    """Lambda: best of 100, 300, 500, 800 on ML-100K validation; 800 is better on ML-1M."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, inf)", "ridge")

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        ids = super().server_sample(state, world, clock)
        return ids[:0] if self.source == "shared" else ids

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        items = world.sizes.items
        if self.source == "shared":
            graph = graph_of(world)
            return state.next({"weights": solve_weights(together(graph.lot, items), self.ridge)})
        counts = self.server_counts(sums, world)
        if counts is None:
            return state.next(state.public)
        return state.next({"weights": solve_weights(counts, self.ridge)})

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        must_fit(world.sizes.items, self.max_items, "EASE")
        old, items = state.public["weights"], world.sizes.items
        weights = old.new_zeros(items, items)
        weights[: len(old), : len(old)] = old
        return replace(state, public={"weights": weights})


def solve_weights(counts: Tensor, ridge: float) -> Tensor:
    """Return B. [I, I] integer counts -> [I, I] float32, zero diagonal"""
    gram = counts.double()
    gram.diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    weights = inverse.div_(inverse.diagonal().clone()).neg_()
    weights.fill_diagonal_(0.0)
    return weights.float().contiguous()  # LAPACK's memory order makes scoring 30 times slower
