"""ULKD for clients that leave a recommender: subtract their updates, distil the old model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.records import Withdraw
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import KEEP
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.corrected_ascent import as_one_step, at_start, ranking_method
from rescind.methods.unlearning.purge_only import without_restore_points

WEIGHTS = "in each round"
"""[rounds] total weight of a round's clients; a client's fraction is its own weight over it."""
NO_LOG = "without a log"
"""[n] clients that removed single records: their logs are deleted and cannot be subtracted."""


@dataclass(frozen=True, kw_only=True)
class TakenBack(FedAvg):
    """Federated unlearning with knowledge distillation (Wu, Zhu, Mitra 2022) on items.

    FedAvg whose devices log the rows they send. A leaving client sends its log, and the server
    subtracts p_j sum_r (w_j^r - w^r). The old model's scores of the others' items are distilled,
    then plain rounds are run. Requests for single records are answered by retraining.

    DEPARTS Wu et al.: single updates stay on devices until their owner leaves. On the server they
    would be clients x items x d numbers, and reveal the users' items (docs/leak.md).
    """

    paper: ClassVar[str] = "Wu, Zhu, Mitra 2022 (ULKD), for items"
    exact: ClassVar[bool] = False
    logs: ClassVar[bool] = True
    unlearning: ClassVar[str] = "TakenBack"

    forget_rate: float = 0.001
    """Learning rate of the server's Adam in the distillation."""
    forget_rounds: int = 10
    """Distillation rounds."""
    repair_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_optimiser != "plain" or self.aggregate != "clients":
            raise ConfigError(
                f"{type(self).__name__} needs server_optimiser = 'plain' and aggregate = 'clients'."
            )

    def client_log(self, update: Update, cohort: Cohort) -> Mapping[str, Rows]:
        return {n: e for n, e in update.entries.items() if isinstance(e, Rows)}

    def server_init(self, world: World, clock: Clock) -> ServerState:
        own = {WEIGHTS: torch.zeros(0), NO_LOG: torch.zeros(0, dtype=torch.int64)}
        return replace(super().server_init(world, clock), own=own)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        after = super().server_step(state, sums, world, clock)
        known = state.own[WEIGHTS]
        missing = known.new_zeros(max(clock.round - len(known), 0))  # rounds of other methods
        totals = torch.cat([known, missing])
        totals[clock.round - 1] = sum(each.weight for each in sums.values())
        return replace(after, own={**after.own, WEIGHTS: totals})

    def forget(self, fed: Federation, request: Request) -> Federation:
        own, event = fed.now.state.own, request.event
        if WEIGHTS not in own or not isinstance(event, Withdraw) or event.client in own[NO_LOG]:
            return _retrain(fed, request)
        learner = ranking_method(fed, "TakenBack")
        totals, rate = own[WEIGHTS], learner.server_rate

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            old = removal.weights(fed.now.state.public)
            less = _subtract_log(old, fed, removal.leaving_client(roles), totals, rate)
            now = removal.with_reference(fed, old, roles, only=KEEP)
            now = now.with_(state=replace(now.now.state, public={**now.now.state.public, **less}))
            distil = _Teach(model=learner.model, server_rate=self.forget_rate)
            return now.run(self.forget_rounds, method=as_one_step(distil, learner), roles=roles)

        after = removal.remove_client(fed, request, steps, 0)
        server = {**after.now.state.own, WEIGHTS: totals, NO_LOG: own[NO_LOG]}
        after = after.with_(state=replace(after.now.state, own=server))
        unchanged = after.now.state.round == fed.now.state.round  # the client never took part
        after = after if unchanged else after.run(self.repair_rounds, method=fed.method)
        return without_restore_points(after, request)


@dataclass(frozen=True, kw_only=True)
class _Teach(FedAvg):
    """Distillation of the old model: squared differences of the scores of a batch's items."""

    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        return removal.only_online(super().server_sample(state, world, clock), state.own)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Return the mean over items of (score - score before)^2. [C]"""
        new, old = (_scores(self, w, batch, cohort) for w in (work, at_start(work, public)))
        each = torch.stack([(new[c] - old[c].detach()).square() for c in new]).mean(0)
        return jagged.segment_mean(each, batch.owner, batch.clients)


def _retrain(fed: Federation, request: Request) -> Federation:
    after = fed.retrained(request.event)
    state, vault, clients = after.now.state, after.now.vault, request.people
    vault = replace(vault, log=vault.log.without(clients.to(vault.holdings.members.device)))
    if NO_LOG in state.own:
        lost = torch.unique(torch.cat([fed.now.state.own[NO_LOG].cpu(), clients]))
        state = replace(state, own={**state.own, NO_LOG: lost.to(state.own[NO_LOG].device)})
    return after.with_(state=state, vault=vault)


def _scores(method: FedAvg, work: Work, batch: Batch, cohort: Cohort) -> dict[str, Tensor]:
    """Return the scores of a batch's items, by column. [n] each"""
    model = cast(RankingModel, method.model)
    held = {name: rows.index_select(0, work.held) for name, rows in work.rows.items()}
    own = model.infer(held, {**work.dense, **work.own}, cohort.train)
    scores = {}
    for column, place in batch.rows.items():
        items = {table: rows.index_select(0, place) for table, rows in work.rows.items()}
        scores[column] = model.score(items, own, batch.owner)
    return scores


def _subtract_log(old: Params, fed: Federation, client: int, totals: Tensor, rate: float) -> Params:
    less = {name: value.clone() for name, value in old.items()}
    log = fed.now.vault.log.of(torch.tensor([client], device=fed.world.members.device))
    for round_ in log.rounds:
        for name, table in less.items():
            rows = log.at(round_, name)
            if rows is not None and len(rows) and (total := float(totals[round_ - 1])) > 0:
                table.index_add_(0, rows.index, rows.value, alpha=-rate / total)
    return less
