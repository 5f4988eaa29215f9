"""Stochastic gradient ascent on half of the leaver's nodes: drawn, by degree, or held by EWC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.params import Params, add
from rescind.core.plan import Plan, Work
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.methods._client_removal import (
    FORGET,
    KEEP,
    forgotten,
    one_step,
    reference,
    referring,
    watched,
    weights,
)
from rescind.methods.graphs._ascent import Climbing


@dataclass(frozen=True, kw_only=True)
class SGARandom(Climbing):
    """Ascent on a uniform half of the leaver's training nodes; the leaver alone (fedgcv.md 3)."""

    paper: ClassVar[str] = "SGA-Random, a baseline of Ma et al., arXiv 2605.02297"

    forget_rounds: int = 30
    repair_rounds: int = 0

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Up the leaver's loss; nobody repairs unless asked to."""

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = referring(fed, self.began(fed, roles), roles, only=FORGET)
            return now.run(self.forget_rounds, method=one_step(self, dropout=0.0), roles=roles)

        return forgotten(fed, request, steps, self.repair_rounds)

    def began(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """What the steps read beside the model."""
        return {}

    def client_likes(self, public: Params, cohort: Cohort) -> Tensor:
        """How readily each training node is drawn. [n]"""
        return torch.ones(len(cohort.train), device=cohort.ids.device)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The leaver: half of its nodes, the same in all rounds; the others: all of them."""
        if cohort.role != FORGET:
            return super().client_plan(public, private, cohort, clock)
        train = cohort.train
        drawn = Clock(clock.seed).uniform("half of the nodes", train.item).clamp(min=1e-300)
        # Exponential clocks: the earliest half is a draw without replacement by these weights.
        late = -torch.log(drawn) / self.client_likes(public, cohort).clamp(min=1e-12)
        return halved(cohort, late)

    def server_climb(self, state: ServerState, step: Params) -> ServerState:
        """A plain step."""
        return state.next(add(state.public, step, self.forget_rate), state.own)


@dataclass(frozen=True, kw_only=True)
class SGADegree(SGARandom):
    """Ascent on half of the leaver's nodes, drawn by degree + 1."""

    paper: ClassVar[str] = "SGA-Degree, a baseline of Ma et al., arXiv 2605.02297"

    def client_likes(self, public: Params, cohort: Cohort) -> Tensor:
        """Degree + 1. [n]"""
        graph = nodes.graph_of(cohort)
        degree = jagged.counts(graph.edge[1], len(graph.index)) + 1
        return degree[graph.find(cohort.train.item)].float()


@dataclass(frozen=True, kw_only=True)
class EWCSGA(SGARandom):
    """SGA held back where the others' nodes need the weights: elastic weight consolidation.

    DEPARTS the usual explicit step of EWC-SGA: the penalty (lambda / 2) sum F (w - w_0)^2 is taken
    implicitly, w <- (w - eta g + eta lambda F w_0) / (1 + eta lambda F); at lambda = 1000 the
    explicit step blows up (fedgcv.md section 3).
    """

    paper: ClassVar[str] = "EWC-SGA, a baseline of Ma et al., arXiv 2605.02297"

    stiffness: float = 1000.0
    """Lambda."""

    def began(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """The model before, and the diagonal of the others' Fisher information there."""
        now = weights(fed.now.state.public)
        kept = referring(fed, {}, roles, only=KEEP)
        look = one_step(self, dropout=0.0, batch_size=1)
        sums = watched(kept, look, dict.fromkeys(roles, FISHER))
        fisher = sums[FISHER].mean() if FISHER in sums else {n: v * 0 for n, v in now.items()}
        return {**now, **{f"fisher/{n}": v for n, v in fisher.items()}}

    def client_weight(self, cohort: Cohort) -> Tensor:
        """Nodes count alike in the Fisher information. [C]"""
        return (
            cohort.train.count.float() if cohort.role == FISHER else super().client_weight(cohort)
        )

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Asked for it, the mean of each node's squared gradient: F, one node after another."""
        if cohort.role != FISHER:
            return super().client_train(public, private, cohort, clock)
        plan = self.client_plan(public, private, cohort, clock.step(0))
        names = set(weights(public))
        work = Work.begin([plan], names, (), public, private.values, cohort)
        leaves = work.leaves(names)
        total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for batch in work.batches(plan):
            loss = self.client_objective(work.dense, batch, public, cohort, clock)
            grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            for name, grad in zip(leaves, grads, strict=True):
                total[name] += grad.square()
        many = cohort.train.count.clamp(min=1)
        return Update(
            len(cohort), {n: v / many.view(-1, *[1] * (v.dim() - 1)) for n, v in total.items()}
        ), private

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`."""
        if cohort.role != FISHER:
            return super().client_sum(public, private, cohort, clock)
        update, private = self.client_train(public, private, cohort, clock)
        return update.fold(cohort.weight), private

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The ascent, pulled back by the implicit penalty."""
        if FISHER in sums:
            return state.next(state.public)
        after = super().server_step(state, sums, world, clock)
        began = reference(state.public)
        if FORGET not in sums:
            return after
        pull = self.forget_rate * self.stiffness
        held = {
            name: (value + pull * began[f"fisher/{name}"] * began[name])
            / (1 + pull * began[f"fisher/{name}"])
            for name, value in weights(after.public).items()
        }
        return ServerState({**after.public, **held}, after.own, after.memory, after.round)


FISHER = "fisher"
"""The role of those who send squared gradients."""


def halved(cohort: Cohort, late: Tensor) -> Plan:
    """The earlier half of each client's training nodes, one at least. late: [n]"""
    train = cohort.train
    order = torch.argsort(late, stable=True)
    order = order[torch.argsort(train.owner[order], stable=True)]
    first = jagged.places(train.owner[order], len(cohort))
    kept = order[first < (train.count[train.owner[order]] / 2).ceil()].sort().values
    node = nodes.graph_of(cohort).find(train.item[kept])
    return Plan.of(train.owner[kept], len(cohort), None, None, {}, {"node": node})
