"""Training on subgraphs: federated averaging, and averaged gradients with Adam on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.gradient import GradientMethod
from rescind.core.model import Model
from rescind.core.params import Params, nbytes
from rescind.core.plan import Batch, Work
from rescind.core.ranges import must_lie
from rescind.core.signatures import Summed
from rescind.core.state import REFERENCE, Private
from rescind.core.tasks import nodes
from rescind.core.tasks.nodes import NodeModel
from rescind.core.update import Sum
from rescind.models.gcn import GCN


@dataclass(frozen=True, kw_only=True)
class GraphFedAvg(GradientMethod):
    """FedAvg on subgraphs, weighted by nodes; clients keep their Adam moments between rounds.

    The recipe of fedgcv.md section 3. 20 or more local epochs diverge.
    """

    tasks: ClassVar[tuple[str, ...]] = ("nodes",)
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    model: Model = GCN()
    epochs: int = 3
    optimiser: Literal["sgd", "adam"] = "adam"
    keep_moments: bool = True
    rate: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    """Fraction of the hidden layer dropped in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 1)", "dropout")

    def client_weight(self, cohort: Cohort) -> Tensor:
        """Return the number of nodes, labelled or not: p_i. [C]"""
        return jagged.counts(nodes.graph_of(cohort).owner, len(cohort)).float()

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Return the mean cross-entropy of each client's nodes, with dropout. [C]"""
        return self.client_objective(work.dense, batch, public, cohort, clock)

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Return the loss for per-client weights [C, ...] or common weights [1, ...]. [C]"""
        each = self.client_entropy(own, batch, cohort, clock)
        return jagged.segment_mean(each, batch.owner, batch.clients)

    def client_entropy(
        self, own: Params, batch: Batch, cohort: Cohort, clock: Clock | None
    ) -> Tensor:
        """Return the cross-entropy of each sample; no dropout if clock is None. [n]"""
        keep: Tensor | float = 1.0
        if clock is not None and self.dropout:
            weight = own["one/weight"]
            k = torch.arange(weight.shape[-1], device=weight.device)
            index = nodes.graph_of(cohort).index.unsqueeze(1)
            drawn = clock.uniform("dropout", index, k) >= self.dropout
            keep = drawn.to(weight.dtype) / (1 - self.dropout)
        return nodes.entropy(cast(NodeModel, self.model), own, batch, cohort, keep)

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        """Sum the updates. For one plain step this is the gradient of the weighted sum of losses,
        so one copy of the weights is enough for all clients."""
        plan = self.client_plan(public, private, cohort, clock.step(0))
        if self.epochs > 1 or self.optimiser != "sgd" or len(plan.sizes) > 1:
            return super().client_sum(public, private, cohort, clock)
        batch = Batch(plan.owner, {}, plan.values, len(cohort))
        names = [name for name in public if not name.startswith(REFERENCE)]
        leaves = {n: public[n].detach().clone().requires_grad_() for n in names}
        own = nodes.same_for_all(leaves)
        loss = self.client_objective(own, batch, public, cohort, clock.step(0).batch(0))
        weight = torch.where(batch.active, cohort.weight, 0.0).to(loss.dtype)
        grads = torch.autograd.grad((weight * loss).sum(), list(leaves.values()))
        decay = self.weight_decay * float(weight.sum())
        totals = {
            n: (g + decay * public[n]) * -self.rate for n, g in zip(names, grads, strict=True)
        }
        clients, up = int((cohort.weight != 0).sum()), len(cohort) * nbytes(leaves)
        return Sum(totals, float(cohort.weight.double().sum()), clients, up=up), private


@dataclass(frozen=True, kw_only=True)
class GraphFedSGD(GraphFedAvg):
    """Averaged gradients with Adam on the server: 83.0 / 70.0 on Cora / CiteSeer; averaging models
    gives 74.2 / 68.9 (fedgcv.md 2.3)."""

    epochs: int = 1
    optimiser: Literal["sgd", "adam"] = "sgd"
    keep_moments: bool = False
    rate: float = 1.0
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    server_rate: float = 0.01
