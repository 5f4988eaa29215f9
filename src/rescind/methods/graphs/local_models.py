"""A control without federation: every client trains a model of its own and sends nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.optim import Step
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.signatures import Sent
from rescind.core.state import Private
from rescind.core.tasks import nodes
from rescind.core.tasks.nodes import NodeModel
from rescind.methods.graphs.fedavg import GraphFedAvg

MINE = "mine/"
"""Prefix of a client's own weights among its private values."""


@dataclass(frozen=True, kw_only=True)
class LocalModels(GraphFedAvg):
    """Each client's own model: as many local steps as in `GraphFedAvg`, and nothing is averaged.

    All start from the same weights. What a client has learned leaves with it.
    """

    paper: ClassVar[str] = "none: a control without federation"

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """Move the client's own weights instead of a copy of the server's."""
        steps = super().client_steps(public)
        return tuple(replace(s, rates={MINE + n: r for n, r in s.rates.items()}) for s in steps)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        begun = private.with_(**{MINE + n: v for n, v in _mine(public, private, cohort).items()})
        return super().client_train(public, begun, cohort, clock)

    client_sum = Method.client_sum

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        mine = {name[len(MINE) :]: value for name, value in work.own.items()}
        return self.client_objective(mine, batch, public, cohort, clock)

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        mine = _mine(public, private, cohort)
        return cast(NodeModel, self.model).logits(mine, nodes.graph_of(cohort))


def _mine(public: Params, private: Private, cohort: Cohort) -> dict[str, Tensor]:
    """Return each client's own weights; those of the start before its first round. [C, ...]"""
    out = {}
    for name, start in public.items():
        alike = start.expand(len(cohort), *start.shape)
        own = private.values.get(MINE + name, torch.zeros_like(alike))
        trained = own.flatten(1).any(1).view(-1, *[1] * start.dim())
        out[name] = torch.where(trained, own, alike)
    return out
