"""EASE: a linear model of items in closed form, the ceiling of plain collaborative filtering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.state import Private, ServerState
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import graph_of
from rescind.models.item_item import (
    PAIRS,
    ItemWeights,
    client_pairs,
    client_pairs_sum,
    must_fit,
    together,
)


@dataclass(frozen=True, kw_only=True)
class EASE(Method):
    """Each item as a weighted sum of the others (Steck, WWW 2019); the score is x B.

    P = (G + ridge I)^-1, B_ij = -P_ij / P_jj and 0 on the diagonal; G = X^T X in whole numbers, P
    by Cholesky in float64. One round with everybody is all there is. With `source = "shared"` the
    server counts what people lent and asks nobody: the control that a claim for federation must
    beat. Whatever the source, a device scores with all its own items, which stay with it.
    """

    paper: ClassVar[str] = "Steck, WWW 2019"
    seedless: ClassVar[bool] = True
    control: ClassVar[bool] = True

    model: ItemWeights = ItemWeights()
    source: Literal["everyone", "shared"] = "everyone"
    """Whose items G counts: everybody's training items, or only those lent to the server."""
    ridge: float = 300.0
    """Lambda: the best of 100, 300, 500, 800 on validation of ML-100K; 800 suits ML-1M better."""
    max_items: int = 20_000
    """Refuse larger catalogues: float64 takes 8 bytes a pair, and the solution needs three."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise ConfigError(f"EASE.ridge must be above 0, got {self.ridge}.")

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """No weights yet."""
        must_fit(world.sizes.items, self.max_items, "EASE")
        return super().server_init(world, clock)

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Everybody, unless told otherwise; nobody where the server has all it needs."""
        ids = super().server_sample(state, world, clock)
        return ids[:0] if self.source == "shared" else ids

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The weights, solved anew from the counts."""
        items = world.sizes.items
        if self.source == "shared":
            graph = graph_of(world)
            return state.next({"weights": solved(together(graph.lot, items), self.ridge)})
        counted = [total.totals[PAIRS] for total in sums.values() if PAIRS in total.totals]
        if not counted:
            return state.next(state.public)
        counts = sum(counted[1:], counted[0]).view(items, items)
        return state.next({"weights": solved(counts, self.ridge)})

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """A block begins: new items have no weights until the next solution."""
        must_fit(world.sizes.items, self.max_items, "EASE")
        old, items = state.public["weights"], world.sizes.items
        longer = old.new_zeros(items, items)
        longer[: len(old), : len(old)] = old
        return replace(state, public={"weights": longer})

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """A one for every pair of items a client owns."""
        return client_pairs(cohort), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The same counts for all clients at once."""
        return client_pairs_sum(cohort), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """x B with the device's own items. [C, I]"""
        return self.model.of_lot(public, cohort.own)


def solved(counts: Tensor, ridge: float) -> Tensor:
    """B of the counts. [I, I] whole numbers -> [I, I] float32, zero diagonal"""
    gram = counts.double()
    gram.diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    weights = inverse.div_(inverse.diagonal().clone()).neg_()
    weights.fill_diagonal_(0.0)
    return weights.float().contiguous()  # LAPACK's order of memory makes scoring 30 times slower
