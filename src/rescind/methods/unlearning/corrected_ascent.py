"""FedGCV's gradient correction for clients that leave a recommender; needs only sums by role."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.method import Unlearner
from rescind.core.optim import server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET, KEEP
from rescind.methods.graphs.fedgcv import projected
from rescind.methods.unlearning.purge_only import without_restore_points

R = TypeVar("R", bound=RankingMethod)
LEAVER = "leaver"
"""Server state: the client being forgotten, which takes part in every round."""
AS_LEARNT = (
    "model", "clients_per_round", "loss", "negatives", "candidates", "temperature", "decay",
    "aggregate", "local_includes_shared",
)  # fmt: skip
"""Settings that a step takes from the federation's own method."""


@dataclass(frozen=True, kw_only=True)
class CorrectedAscent(Unlearner):
    """Ascent on the leaving client's records, corrected by the others; then repair rounds.

    The correction of Ma et al. (arXiv 2605.02297, Eq. 3.3) for any ranking loss: g_u is the
    gradient of NPO on the leaving client's loss, g_r that of the others' loss, both sums over a
    role; if they conflict, g_u is projected off g_r. The leaving client must be online. Requests
    for single records are answered by retraining.

    DEPARTS Eq. (2.5) of that paper: NPO uses a client's mean loss, not the loss of each record: a
    ranking loss is defined on pairs and has no value for one record.
    """

    paper: ClassVar[str] = "Ma et al., arXiv 2605.02297, for items"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "CorrectedAscent"

    sharpness: float = 1.0
    """Beta of NPO."""
    correct: bool = True
    """Project the leaving client's step off the others' step if they conflict."""
    radius: float = 1.0
    """Maximum distance of the public parameters from their start."""
    forget_rate: float = 0.001
    """Learning rate of the server's Adam; only rows in the leaving client's update move."""
    forget_rounds: int = 10
    repair_rounds: int = 5
    """Rounds of the federation's own method without the leaving client."""

    def __post_init__(self) -> None:
        must_lie(self, "(0, inf)", "sharpness", "radius", "forget_rate")
        must_lie(self, "[0, inf)", "forget_rounds", "repair_rounds")

    def forget(self, fed: Federation, request: Request) -> Federation:
        learner = ranking_method(fed, "CorrectedAscent")
        method = as_one_step(_CorrectedSteps(model=learner.model, unlearner=self), learner)

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = removal.with_reference(fed, removal.weights(fed.now.state.public))
            own = {LEAVER: torch.tensor([removal.leaving_client(roles)])}
            now = now.with_(state=replace(now.now.state, own=own))
            return now.run(self.forget_rounds, method=method, roles=roles)

        after = removal.remove_client(fed, request, steps, self.repair_rounds)
        return without_restore_points(after, request)


@dataclass(frozen=True, kw_only=True)
class _CorrectedSteps(RankingMethod):
    """Rounds with ascent by the leaving client, corrected by the descent of the others."""

    unlearner: CorrectedAscent
    """The settings to use."""

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Return l, or for the leaving client -(2 / beta) log sigma(beta (l - l before)). [C]"""
        now = super().client_loss(work, batch, public, private, cohort, clock)
        if cohort.role != FORGET:
            return now
        start, beta = at_start(work, public), self.unlearner.sharpness
        before = super().client_loss(start, batch, public, private, cohort, clock).detach()
        return -2 / beta * functional.logsigmoid(beta * (now - before))

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        ids = super().server_sample(state, world, clock)
        if LEAVER not in state.own:
            return ids
        return torch.unique(torch.cat([ids, state.own[LEAVER].to(ids.device)]))

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Average; while a client is being forgotten, take one corrected step inside the ball."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        step = sums[FORGET].mean()
        if self.unlearner.correct and KEEP in sums:
            step = projected(step, sums[KEEP].mean())
        public, own = server_move(state.public, state.own, step, "adam", self.unlearner.forget_rate)
        return state.next(removal.within_ball(state.public, public, self.unlearner.radius), own)


def ranking_method(fed: Federation, name: str) -> RankingMethod:
    if not isinstance(fed.method, RankingMethod):
        raise ConfigError(
            f"{name} needs a ranking loss, and {type(fed.method).__name__} has none. Use Retrain."
        )
    return fed.method


def as_one_step(method: R, learner: RankingMethod) -> R:
    """Return the method with one plain step on the learner's loss: clients send gradients."""
    shared: dict[str, Any] = {name: getattr(learner, name) for name in AS_LEARNT}
    plain: dict[str, Any] = {"epochs": 1, "optimiser": "sgd", "rate": 1.0, "private_rate": 0.0}
    plain |= {"batch_size": None, "reduce": "mean", "weight_decay": 0.0, "rate_per_item": False}
    return replace(method, **shared, **plain)


def at_start(work: Work, public: Params) -> Work:
    """Return a cohort's copies with the weights from before forgetting, read-only."""
    rows = {n: public[REFERENCE + n].index_select(0, work.shelf.item) for n in work.rows}
    dense = {n: public[REFERENCE + n].expand_as(v) for n, v in work.dense.items()}
    return replace(work, rows=rows, dense=dense)
