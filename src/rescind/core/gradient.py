"""Methods that train by gradients: federated averaging, and everything that varies it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast import dispatch, softmax
from rescind.core.method import Method
from rescind.core.model import private_names
from rescind.core.optim import LocalOptimiser, Step, server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.update import Rows, Sum, Update, total_of
from rescind.core.versions import with_tables
from rescind.core.world import World
from rescind.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Federated averaging (McMahan et al. 2017) of any model, on any task.

    With plain SGD, one batch and one epoch it is FedSGD: the mean of the clients' gradients.
    """

    epochs: int = 1
    """Local epochs."""
    batch_size: int | None = None
    """Samples in a client's mini-batch; None: all of them."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """The clients' optimiser."""
    rate: float = 1.0
    """Learning rate of public parameters at clients."""
    weight_decay: float = 0.0
    """Weight decay of everything a client trains, in its optimiser (graphs: fedgcv.md 3)."""
    keep_moments: bool = False
    """Client Adam: keep the moments of dense and private parameters between rounds."""
    server_optimiser: Literal["plain", "momentum", "adam"] = "plain"
    server_rate: float = 1.0
    server_decay: int | None = None
    """Rounds in which the server's rates fall to 2 % along a cosine; None: constant rates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_above_zero("epochs", "batch_size", "server_decay")
        self.check_finite("rate", "server_rate", "weight_decay")

    def check_finite(self, *fields: str) -> None:
        """Raise `ConfigError` unless these fields are 0 or above and finite."""
        for field in fields:
            if not 0 <= (value := getattr(self, field)) < math.inf:
                name = f"{type(self).__name__}.{field}"
                raise ConfigError(f"{name} must be 0 or above and finite, got {value}.")

    @property
    def only_averages(self) -> bool:
        return type(self).server_step is GradientMethod.server_step

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Move by the weighted mean of all updates, through the server's optimiser."""
        mean = self.server_mean(sums)
        rate = self.server_rate * self.server_pace(clock.round)
        kept = {name: state.own[name] for name in state.own if name.startswith("server/")}
        public, kept = server_move(state.public, kept, mean, self.server_optimiser, rate)
        return state.next(public, with_tables(state.own, kept))

    def server_pace(self, round_: int) -> float:
        """Return the factor of the server's rates in a round: from 1 down to .02."""
        if self.server_decay is None:
            return 1.0
        done = min(round_ / self.server_decay, 1.0)
        return 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2

    def server_mean(self, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Return the mean update over all roles, by total weight."""
        total = total_of(sums)
        return {} if total is None else total.mean()

    # -- client side -----------------------------------------------------------------------------

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """Return what each batch moves, in order; the loss is computed again for each step."""
        trained = [name for name in public if not name.startswith(REFERENCE)]
        return (Step(dict.fromkeys(trained, self.rate), self.optimiser, self.weight_decay),)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Return samples, negatives and batches of one local epoch."""
        return self.task.plan(self, cohort, clock)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Return one number per client. [C]"""
        return self.task.loss(self, self.model, work, batch, cohort)

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Plan, loss, steps, by autograd: the readable form, for any model and any guard."""
        epochs = [clock.step(epoch) for epoch in range(self.epochs)]
        plans = [self.client_plan(public, private, cohort, epoch) for epoch in epochs]
        steps = self.client_steps(public)
        names = {name for step in steps for name in step.rates}
        work = Work.begin(plans, names, self.model.tables, public, private.values, cohort)
        optimiser = LocalOptimiser.begin(work, private, self.keep_moments)
        for epoch, plan in zip(epochs, plans, strict=True):
            for wave, batch in enumerate(work.batches(plan)):
                for step in steps:
                    leaves, now = work.leaves(step.rates), epoch.batch(wave)
                    loss = self.client_loss(work, batch, public, private, cohort, now)
                    # A client without a batch in this wave does not move.
                    total = torch.where(batch.active, loss, 0.0).sum()
                    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                    optimiser.step(step, dict(zip(leaves, grads, strict=True)), batch)
        own = {name: value.detach() for name, value in work.own.items()}
        return moved(work, public), private.with_(**own, **optimiser.kept())


@dataclass(frozen=True, kw_only=True)
class RankingMethod(GradientMethod):
    """Federated averaging of a recommender: how samples are drawn and what their loss is."""

    loss: Literal["bpr", "bce", "softmax"] = "bpr"
    """Pairs against negatives, labels, or every item against all others."""
    reduce: Literal["mean", "sum"] = "mean"
    """How a client's loss is taken over the samples of a batch."""
    negatives: int = 1
    """Negatives drawn for each positive, new ones in every epoch."""
    candidates: int | None = None
    """Softmax only: items drawn to stand for what a client does not own; None takes all of it."""
    temperature: float = 1.0
    """Scores are divided by it inside the loss. 0.2 for cosine scores: fedshare.md section 2."""
    decay: float = 0.0
    """L2 on sampled rows only: a dense decay would touch every row (baselines.md T2)."""
    private_rate: float = 1.0
    """Learning rate of private parameters."""
    rate_per_item: bool = False
    """Multiply `rate` by the number of items, which undoes the dilution of a plain mean."""
    aggregate: Literal["clients", "records", "roots", "rows"] = "clients"
    """Weight of a client: 1, its records or their root; "rows" divides each row by its clients."""
    local_includes_shared: bool = True
    """A device also trains on what it lent; False: only on what it kept to itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_above_zero("negatives", "temperature", "candidates")
        self.check_finite("private_rate", "decay")

    def server_mean(self, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """Return the mean update over all roles: by total weight, or per row by its clients."""
        total = total_of(sums)
        if total is None:
            return {}
        mean = total.mean()
        if self.aggregate == "rows":
            for name, touched in total.touched.items():
                each = touched.clamp(min=1e-12).view(-1, *[1] * (total.totals[name].dim() - 1))
                mean[name] = total.totals[name] / each
        return mean

    def client_weight(self, cohort: Cohort) -> Tensor:
        return weights(self.aggregate, cohort.train.count)

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        (step,) = super().client_steps(public)
        rates, tables = dict(step.rates), self.model.tables
        if self.rate_per_item and tables:
            rates |= {n: self.rate * len(public[tables[0]]) for n in tables if n in rates}
        rates |= dict.fromkeys(private_names(self.model), self.private_rate)
        return (replace(step, rates=rates),)

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """Return the fold of `client_train`, by a compiled loop over clients where one fits."""
        if dispatch.fits(self, RankingMethod, public):
            return dispatch.client_sum(self, public, private, cohort, clock)
        if softmax.fits(self, RankingMethod):
            return softmax.client_sum(self, public, private, cohort, clock)
        return super().client_sum(public, private, cohort, clock)


def weights(aggregate: str, count: Tensor) -> Tensor:
    """Return weights of clients in a sum, from the number of records they train on. [C]"""
    if aggregate == "records":
        return count.float()
    return count.float().sqrt() if aggregate == "roots" else torch.ones_like(count).float()


def moved(work: Work, public: Params) -> Update:
    """Return how far a cohort's copies moved from what was broadcast."""
    entries: dict[str, Rows | Tensor] = {}
    for name, rows in work.rows.items():
        if rows.requires_grad:  # others are broadcast and read, not trained
            value = rows.detach() - public[name].index_select(0, work.shelf.item)
            entries[name] = Rows(work.shelf.owner, work.shelf.item, value, len(public[name]))
    entries |= {name: value.detach() - public[name] for name, value in work.dense.items()}
    return Update(work.shelf.owners, entries)
