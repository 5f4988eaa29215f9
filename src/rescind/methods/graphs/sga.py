"""Stochastic gradient ascent on half of the client's nodes: uniform, by degree, or with EWC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params, add
from rescind.core.plan import Plan, Work
from rescind.core.request import Request
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.update import Update
from rescind.core.world import World
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET, KEEP
from rescind.methods.graphs._ascent import Climbing


@dataclass(frozen=True, kw_only=True)
class SGARandom(Climbing):
    """Ascent of the leaving client alone, on a random half of its training nodes (fedgcv.md 3)."""

    paper: ClassVar[str] = "SGA-Random, a baseline of Ma et al., arXiv 2605.02297"

    forget_rounds: int = 30
    repair_rounds: int = 0

    def forget(self, fed: Federation, request: Request) -> Federation:
        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = removal.with_reference(fed, self.references(fed, roles), roles, only=FORGET)
            one = removal.one_step(self, dropout=0.0)
            return now.run(self.forget_rounds, method=one, roles=roles)

        return removal.remove_client(fed, request, steps, self.repair_rounds)

    def references(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """Return the read-only values that the steps need."""
        return {}

    def client_node_weights(self, public: Params, cohort: Cohort) -> Tensor:
        """Return the sampling weight of each training node. [n]"""
        return torch.ones(len(cohort.train), device=cohort.ids.device)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Plan half of the leaving client's nodes, the same in all rounds; all of the others."""
        if cohort.role != FORGET:
            return super().client_plan(public, private, cohort, clock)
        train = cohort.train
        drawn = Clock(clock.seed).uniform("half of the nodes", train.item).clamp(min=1e-300)
        # Exponential keys: the lowest half is a weighted sample without replacement.
        key = -torch.log(drawn) / self.client_node_weights(public, cohort).clamp(min=1e-12)
        return lowest_half(cohort, key)

    def server_ascend(self, state: ServerState, step: Params) -> ServerState:
        return state.next(add(state.public, step, self.forget_rate), state.own)


@dataclass(frozen=True, kw_only=True)
class SGADegree(SGARandom):
    """Ascent on half of the leaving client's nodes, sampled by degree + 1."""

    paper: ClassVar[str] = "SGA-Degree, a baseline of Ma et al., arXiv 2605.02297"

    def client_node_weights(self, public: Params, cohort: Cohort) -> Tensor:
        graph = nodes.graph_of(cohort)
        degree = jagged.counts(graph.edge[1], len(graph.index)) + 1
        return degree[graph.find(cohort.train.item)].float()


@dataclass(frozen=True, kw_only=True)
class EWCSGA(SGARandom):
    """SGA with elastic weight consolidation: a penalty on weights that the others' nodes need.

    DEPARTS the usual explicit step of EWC-SGA: the penalty (lambda / 2) sum F (w - w_0)^2 is
    implicit, w <- (w - eta g + eta lambda F w_0) / (1 + eta lambda F); at lambda = 1000 the
    explicit step diverges (fedgcv.md section 3).
    """

    paper: ClassVar[str] = "EWC-SGA, a baseline of Ma et al., arXiv 2605.02297"

    stiffness: float = 1000.0
    """Lambda."""

    def references(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """Return the old model and the diagonal of the others' Fisher information at it."""
        now = removal.weights(fed.now.state.public)
        kept = removal.with_reference(fed, {}, roles, only=KEEP)
        method = removal.one_step(self, dropout=0.0, batch_size=1)
        sums = removal.round_sums(kept, method, dict.fromkeys(roles, FISHER))
        fisher = sums[FISHER].mean() if FISHER in sums else {n: v * 0 for n, v in now.items()}
        return {**now, **{f"fisher/{n}": v for n, v in fisher.items()}}

    def client_weight(self, cohort: Cohort) -> Tensor:
        """Return node counts for the Fisher information: equal weight per node. [C]"""
        return (
            cohort.train.count.float() if cohort.role == FISHER else super().client_weight(cohort)
        )

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Train; in the Fisher role, return the mean squared gradient of single nodes: F."""
        if cohort.role != FISHER:
            return super().client_train(public, private, cohort, clock)
        plan = self.client_plan(public, private, cohort, clock.step(0))
        names = set(removal.weights(public))
        work = Work.begin([plan], names, (), public, private.values, cohort)
        leaves = work.leaves(names)
        total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for batch in work.batches(plan):
            loss = self.client_objective(work.dense, batch, public, cohort, clock)
            grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            for name, grad in zip(leaves, grads, strict=True):
                total[name] += grad.square()
        count = cohort.train.count.clamp(min=1)
        mean = {n: v / count.view(-1, *[1] * (v.dim() - 1)) for n, v in total.items()}
        return Update(len(cohort), mean), private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        if cohort.role != FISHER:
            return super().client_sum(public, private, cohort, clock)
        return Method.client_sum(self, public, private, cohort, clock)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Take the ascent step, then apply the implicit penalty."""
        if FISHER in sums:
            return state.next(state.public)
        after = super().server_step(state, sums, world, clock)
        start = removal.reference(state.public)
        if FORGET not in sums:
            return after
        pull = self.forget_rate * self.stiffness
        public = dict(after.public)
        for name, value in removal.weights(after.public).items():
            each = pull * start[f"fisher/{name}"]
            public[name] = (value + each * start[name]) / (1 + each)
        return replace(after, public=public)


FISHER = "fisher"
"""Role of the clients that send squared gradients."""


def lowest_half(cohort: Cohort, key: Tensor) -> Plan:
    """Plan the half of each client's training nodes with the lowest keys, at least one. key: [n]"""
    train = cohort.train
    order = torch.argsort(key, stable=True)
    order = order[torch.argsort(train.owner[order], stable=True)]
    first = jagged.places(train.owner[order], len(cohort))
    kept = order[first < (train.count[train.owner[order]] / 2).ceil()].sort().values
    node = nodes.graph_of(cohort).find(train.item[kept])
    return Plan.of(train.owner[kept], len(cohort), None, None, {}, {"node": node})
