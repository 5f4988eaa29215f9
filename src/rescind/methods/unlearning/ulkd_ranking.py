"""ULKD for people who leave a recommender: take back what they sent, let the old model teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.records import Withdraw
from rescind.core.request import Request
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._client_removal import KEEP, asked, forgotten, leaver, referring
from rescind.methods._client_removal import weights as trained
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.corrected_ascent import as_before, ranking_method, stepping
from rescind.methods.unlearning.purge_only import without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation

PARTS = "in each round"
"""[rounds] the weight of all who took part: a client's share in the mean is its own over this."""
LOST = "without a log"
"""[n] who took single records back: their logs went with them, so that they cannot be handed in."""


@dataclass(frozen=True, kw_only=True)
class TakenBack(FedAvg):
    """Federated unlearning with knowledge distillation (Wu, Zhu, Mitra 2022) on items.

    FedAvg whose devices keep the rows they sent. Whoever leaves hands them in: the server subtracts
    p_j sum_r (w_j^r - w^r), then the old model teaches the new one the scores of the others' items,
    then plain rounds. Single records are forgotten by training again.

    DEPARTS Wu et al.: single updates stay on devices until their owner leaves. On the server they
    would be clients x items x d numbers, and an open book (docs/leak.md).
    """

    paper: ClassVar[str] = "Wu, Zhu, Mitra 2022 (ULKD), for items"
    exact: ClassVar[bool] = False
    logs: ClassVar[bool] = True
    unlearning: ClassVar[str] = "TakenBack"

    forget_rate: float = 0.001
    """Of the server's Adam, in the distillation."""
    forget_rounds: int = 10
    """Rounds of distillation."""
    repair_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_optimiser != "plain" or self.aggregate != "clients":
            raise ConfigError(
                f"{type(self).__name__} takes back what was added, so the server must add plainly, "
                f"everybody alike: server_optimiser = 'plain', aggregate = 'clients'; got "
                f"'{self.server_optimiser}' and '{self.aggregate}'."
            )

    # -- learning: remember who sent what --------------------------------------------------------

    def client_log(self, update: Update, cohort: Cohort) -> Mapping[str, Rows]:
        """All rows of a device's update."""
        return {n: e for n, e in update.entries.items() if isinstance(e, Rows)}

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """The model, and no round yet."""
        none = torch.zeros(0, dtype=torch.int64)
        return replace(super().server_init(world, clock), own={PARTS: torch.zeros(0), LOST: none})

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The mean, and how many were in it."""
        after = super().server_step(state, sums, world, clock)
        known = state.own[PARTS]
        late = known.new_zeros(max(clock.round - len(known), 0))  # rounds of other methods
        parts = torch.cat([known, late])
        parts[clock.round - 1] = sum(each.weight for each in sums.values())
        return replace(after, own={**after.own, PARTS: parts})

    # -- forgetting: take it back, and teach -----------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract, distil, go on; where nobody kept what was sent, train again."""
        own, event = fed.now.state.own, request.event
        kept = PARTS in own and isinstance(event, Withdraw) and event.client not in own[LOST]
        if not kept:
            return retrained(fed, request)
        learner = ranking_method(fed, "TakenBack")
        parts, rate = own[PARTS], learner.server_rate

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            old = trained(fed.now.state.public)
            less = without(old, fed, leaver(roles), parts, rate)
            now = referring(fed, old, roles, only=KEEP)
            now = now.with_(state=replace(now.now.state, public={**now.now.state.public, **less}))
            teach = _Teach(model=learner.model, server_rate=self.forget_rate)
            return now.run(self.forget_rounds, method=stepping(teach, learner), roles=roles)

        after = forgotten(fed, request, steps, 0)
        noted = {**after.now.state.own, PARTS: parts, LOST: own[LOST]}  # tell of nobody who left
        after = after.with_(state=replace(after.now.state, own=noted))
        stayed = after.now.state.round == fed.now.state.round  # never took part
        after = after if stayed else after.run(self.repair_rounds, method=fed.method)
        return without_restore_points(after, request)


@dataclass(frozen=True, kw_only=True)
class _Teach(FedAvg):
    """The old model teaches: squared differences of the scores of a batch's items."""

    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Of those who are drawn, who stays."""
        return asked(super().server_sample(state, world, clock), state.own)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """The mean over items of (score - score before)^2. [C]"""
        new, old = (scored(self, w, batch, cohort) for w in (work, as_before(work, public)))
        each = torch.stack([(new[c] - old[c].detach()).square() for c in new]).mean(0)
        return jagged.segment_mean(each, batch.owner, batch.clients)


def retrained(fed: Federation, request: Request) -> Federation:
    """Exact; of whoever goes on without some records, nothing that was logged stays."""
    after = fed.retrained(request.event)
    state, vault, gone = after.now.state, after.now.vault, request.people
    vault = replace(vault, log=vault.log.without(gone.to(vault.holdings.members.device)))
    if LOST in state.own:
        lost = torch.unique(torch.cat([fed.now.state.own[LOST].cpu(), gone]))
        state = replace(state, own={**state.own, LOST: lost.to(state.own[LOST].device)})
    return after.with_(state=state, vault=vault)


def scored(method: FedAvg, work: Work, batch: Batch, cohort: Cohort) -> dict[str, Tensor]:
    """What a cohort's copies say of the items of a batch, by column. [n] each"""
    model = cast(RankingModel, method.model)
    held = {name: rows.index_select(0, work.held) for name, rows in work.rows.items()}
    own = model.infer(held, {**work.dense, **work.own}, cohort.train)
    return {
        column: model.score(
            {table: rows.index_select(0, place) for table, rows in work.rows.items()},
            own,
            batch.owner,
        )
        for column, place in batch.rows.items()
    }


def without(old: Params, fed: Federation, client: int, parts: Tensor, rate: float) -> Params:
    """The tables less what one client's updates added to them."""
    less = {name: value.clone() for name, value in old.items()}
    who = torch.tensor([client], device=fed.world.members.device)
    log = fed.now.vault.log.of(who)
    for round_ in log.rounds:
        for name, table in less.items():
            rows = log.at(round_, name)
            if rows is not None and len(rows) and float(parts[round_ - 1]) > 0:
                table.index_add_(0, rows.index, rows.value, alpha=-rate / float(parts[round_ - 1]))
    return less
