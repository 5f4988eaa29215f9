"""FedGCV's gradient correction for people who leave a recommender: it needs sums by role only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.gradient import RankingMethod
from rescind.core.method import Unlearner
from rescind.core.optim import server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.request import Request
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._client_removal import (
    FORGET,
    KEEP,
    clipped,
    forgotten,
    leaver,
    reference,
    referring,
)
from rescind.methods._client_removal import weights as trained
from rescind.methods.graphs.fedgcv import projected
from rescind.methods.unlearning.purge_only import without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation

R = TypeVar("R", bound=RankingMethod)
LEAVER = "leaver"
"""The server's note of who is being forgotten: always asked, whoever else is drawn."""
AS_LEARNT = (
    "model", "clients_per_round", "loss", "negatives", "candidates", "temperature", "decay",
    "aggregate", "local_includes_shared",
)  # fmt: skip
"""What a step has in common with the rounds that are to be forgotten."""


@dataclass(frozen=True, kw_only=True)
class CorrectedAscent(Unlearner):
    """Steps off the leaver's records that do not go against the others; then rounds without them.

    The correction of Ma et al. (arXiv 2605.02297, Eq. 3.3) on whatever a method learns: g_u is the
    gradient of NPO on the leaver's loss, g_r that of the others' loss, both sums over a role; where
    they conflict g_u is projected off g_r. The leaver must be online while it is forgotten. Single
    records are forgotten by training again.

    DEPARTS Eq. (2.5) of that paper: NPO is taken of a person's mean loss, not of each record's: a
    ranking loss is of pairs, and has no value for one record.
    """

    paper: ClassVar[str] = "Ma et al., arXiv 2605.02297, for items"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "CorrectedAscent"

    sharpness: float = 1.0
    """Beta of NPO."""
    correct: bool = True
    """Project the leaver's step off the others' where they conflict."""
    radius: float = 1.0
    """How far the public parameters may go from where forgetting began."""
    forget_rate: float = 0.001
    """Of the server's Adam while forgetting: only rows that the leaver names move."""
    forget_rounds: int = 10
    repair_rounds: int = 5
    """Rounds of the federation's own method without the leaver."""

    def __post_init__(self) -> None:
        for field in ("sharpness", "radius", "forget_rate"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ConfigError(
                    f"{type(self).__name__}.{field} must be above 0 and finite, "
                    f"got {getattr(self, field)}."
                )
        for field in ("forget_rounds", "repair_rounds"):
            if getattr(self, field) < 0:
                raise ConfigError(f"{type(self).__name__}.{field} must be 0 or more.")

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Take corrected steps with the leaver online, then repair rounds without it."""
        learner = ranking_method(fed, "CorrectedAscent")
        method = stepping(_CorrectedSteps(model=learner.model, unlearner=self), learner)

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = referring(fed, trained(fed.now.state.public))
            own = {LEAVER: torch.tensor([leaver(roles)])}
            now = now.with_(state=replace(now.now.state, own=own))
            return now.run(self.forget_rounds, method=method, roles=roles)

        return without_restore_points(forgotten(fed, request, steps, self.repair_rounds), request)


@dataclass(frozen=True, kw_only=True)
class _CorrectedSteps(RankingMethod):
    """Rounds in which the leaver climbs and the others descend; its own gradients are corrected."""

    unlearner: CorrectedAscent
    """Whose settings count."""

    # -- client side -----------------------------------------------------------------------------

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """The leaver: -(2 / beta) log sigma(beta (loss - loss before)). Others: the loss. [C]"""
        now = super().client_loss(work, batch, public, private, cohort, clock)
        if cohort.role != FORGET:
            return now
        before = as_before(work, public)
        then = super().client_loss(before, batch, public, private, cohort, clock).detach()
        return (
            -2
            / self.unlearner.sharpness
            * functional.logsigmoid(self.unlearner.sharpness * (now - then))
        )

    # -- server side -----------------------------------------------------------------------------

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Those who are drawn, and whoever is being forgotten."""
        ids = super().server_sample(state, world, clock)
        if LEAVER not in state.own:
            return ids
        return torch.unique(torch.cat([ids, state.own[LEAVER].to(ids.device)]))

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Plain averaging; while somebody is being forgotten, one corrected step in the ball."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        step = sums[FORGET].mean()
        if self.unlearner.correct and KEEP in sums:
            step = projected(step, sums[KEEP].mean())
        public, own = server_move(state.public, state.own, step, "adam", self.unlearner.forget_rate)
        began = reference(state.public)
        gone = clipped({n: v - began[n] for n, v in trained(public).items()}, self.unlearner.radius)
        return state.next({**public, **{n: began[n] + v for n, v in gone.items()}}, own)


def ranking_method(fed: Federation, name: str) -> RankingMethod:
    """Return the federation's method if it trains a recommender by gradients, or raise."""
    if not isinstance(fed.method, RankingMethod):
        raise ConfigError(
            f"{name} takes gradient steps on a ranking loss, and {type(fed.method).__name__} has "
            f"none. Choose another unlearner: Retrain works for every method."
        )
    return fed.method


def stepping(method: R, learner: RankingMethod) -> R:
    """The same unlearner, taking one plain step on the loss that was learnt: it sends gradients."""
    shared: dict[str, Any] = {name: getattr(learner, name) for name in AS_LEARNT}
    plain: dict[str, Any] = {"epochs": 1, "optimiser": "sgd", "rate": 1.0, "private_rate": 0.0}
    plain |= {"batch_size": None, "reduce": "mean", "weight_decay": 0.0, "rate_per_item": False}
    return replace(method, **shared, **plain)


def as_before(work: Work, public: Params) -> Work:
    """A cohort's copies as they were when forgetting began, to be read."""
    rows = {n: public[REFERENCE + n].index_select(0, work.shelf.item) for n in work.rows}
    dense = {n: public[REFERENCE + n].expand_as(v) for n, v in work.dense.items()}
    return replace(work, rows=rows, dense=dense)
