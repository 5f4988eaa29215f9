"""FRU: devices log their own updates, a replay calibrates with them (Yuan et al., WSDM 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.plan import Plan
from rescind.core.request import Request
from rescind.core.state import Memory, Private, ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.sharing.fedshare import FedShare

if TYPE_CHECKING:
    from rescind.core.federation import Federation

STORED = "stored/"
"""In a replay a device also sends what it kept of that round, under this name,"""
KEPT = "kept"
"""and whether it has kept anything at all."""
TOOK_PART = "participants"
"""Who took part in which round. It depends on no table, so it is dated before the first."""
REPLAY = "replay"
"""During a replay: who is to take part."""


@dataclass(frozen=True, kw_only=True)
class FRU(FedShare):
    """V <- V + |stored mean| fresh mean / |fresh mean|, from first values without the leavers.

    It learns as FedShare does; each device keeps the longest rows of its updates. What people lent
    is forgotten by refining on what remains (scope "shared": baselines.md 3.0). Whoever asks has no
    log any more; if they go on, only their fresh updates count.

    DEPARTS its first round without training: users' vectors would miss their first step, and the
    replay without a leaver would not give the run again (baselines.md 3.3).

    DEPARTS its semi-hard negatives (`negatives_from`): they are drawn uniformly. From what is near,
    NDCG@20 on validation is .195 after 40 rounds of ML-100K, where uniform ones give .255: what is
    near and not yet there is often what a person would like.
    """

    paper: ClassVar[str] = "Yuan et al., WSDM 2023"
    logs: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FRU"

    snapshots: int = 0
    kept_share: float = 0.5
    """Alpha: the share of its updated rows, longest first, that a device keeps."""
    effort: float = 0.1
    """Lambda: the share of the local epochs that a replay takes, at least one."""
    calibration: Literal["table", "row"] = "table"
    """What keeps its old length: the whole table, or each row (rows without one are as fresh)."""
    negatives_from: Literal["all", "semi_hard"] = "all"
    """Where negatives are drawn: from all that a person does not have, or from what is near."""
    near_share: float = 0.05
    """R: of the items a person does not have, the share that counts as near (baselines.md 3.3)."""
    near_negatives: float = 0.5
    """Beta: so many times the usual negatives are drawn from what is near, at least one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.kept_share <= 1 and 0 < self.effort <= 1):
            raise ConfigError(
                f"FRU.kept_share and effort are above 0 and up to 1; "
                f"got {self.kept_share} and {self.effort}."
            )
        if not (0 < self.near_share <= 1 and 0 < self.near_negatives <= 1):
            raise ConfigError(
                f"FRU.near_share and near_negatives are above 0 and up to 1; "
                f"got {self.near_share} and {self.near_negatives}."
            )
        if self.aggregate == "rows":
            raise ConfigError("FRU calibrates a mean over clients: aggregate must not be 'rows'.")

    # -- server -----------------------------------------------------------------------------------

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """In a replay: those who took part then and are still here."""
        found = state.memory.named(REPLAY)
        if not found:
            return super().server_sample(state, world, clock)
        then = found[0].values
        ids = then["client"][then["round"] == clock.round].long()
        willing = world.available if self.local_includes_shared else world.announced.keeps
        return ids[willing[ids]]

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Learning: FedShare's step. Replay: with the fresh mean at the length of the stored."""
        who = torch.cat([total.who for role, total in sums.items() if role != "host"] or [_NOBODY])
        if state.memory.named(REPLAY):
            mean = self.server_calibrated(self.server_mean(sums))
            sums = {"train": Sum(mean, 1.0 if mean else 0.0, len(who))}
        after = super().server_step(state, sums, world, clock)
        known = after.memory.named(TOOK_PART)
        new = {"client": who.int(), "round": torch.full_like(who, clock.round).int()}
        told = {n: torch.cat([known[0].values[n], v]) for n, v in new.items()} if known else new
        return replace(after, memory=after.memory.keep(TOOK_PART, 0, told, last=1))

    def server_calibrated(self, mean: Params) -> dict[str, Tensor]:
        """The mean of a replayed round. Only those with a log count in the stored length."""
        stored = {n.removeprefix(STORED): v for n, v in mean.items() if n.startswith(STORED)}
        fresh = {n: v for n, v in mean.items() if not n.startswith(STORED) and n != KEPT}
        share = float(mean.get(KEPT, torch.zeros(())))
        if not stored or not share:
            return fresh
        out = dict(fresh)
        if self.calibration == "row":
            for name, old in stored.items():
                far = old.norm(dim=-1, keepdim=True) / share
                near = fresh[name].norm(dim=-1, keepdim=True)
                by = torch.where((far > 0) & (near > 0), far / near.clamp(min=1e-30), 1.0)
                out[name] = fresh[name] * by
            return out
        far, near = (
            torch.stack([t[n].double().square().sum() for n in stored]).sum().sqrt()
            for t in (stored, fresh)
        )
        by = far / share / near.clamp(min=1e-30)
        return out | {n: fresh[n] * by.to(fresh[n]) for n in stored}

    # -- clients ----------------------------------------------------------------------------------

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Semi-hard: uniform among the nearest R of what a person does not have."""
        plain = super().client_plan(public, private, cohort, clock)
        if self.negatives_from == "all" or self.loss != "bpr":
            return plain
        many, train = max(1, round(self.near_negatives * self.negatives)), cohort.train
        pool, count = near_items(public["item"], private["user"], cohort, self.near_share)
        owner = train.owner.repeat_interleave(many)
        place = train.place.unsqueeze(1) * many + torch.arange(many, device=owner.device)
        drawn = clock.uniform("semi-hard negatives", cohort.ids[owner], place.reshape(-1))
        rank = (drawn * count[owner]).long().clamp(max=count[owner] - 1)
        first = count.cumsum(0) - count
        positive, there = train.item.repeat_interleave(many), count[owner] > 0
        negative = pool[(first[owner] + rank)[there]]
        named = {"positive": positive[there], "negative": negative}
        return Plan.of(owner[there], len(cohort), self.batch_size, None, named)

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """A round that is in the log is a replay: a shorter one, and the log is sent along."""
        then = {name: private.log.at(clock.round, name) for name in self.model.tables}
        stored = {name: rows for name, rows in then.items() if rows is not None}
        if not stored:
            return super().client_train(public, private, cohort, clock)
        fewer = max(1, round(self.effort * self.epochs))
        shorter = replace(self, epochs=fewer)
        update, private = super(FRU, shorter).client_train(public, private, cohort, clock)
        kept = torch.zeros(len(cohort), device=cohort.ids.device)
        for rows in stored.values():
            kept[rows.owner] = 1.0
        sent = {f"{STORED}{n}": rows for n, rows in stored.items()}
        return replace(update, entries={**update.entries, **sent, KEPT: kept}), private

    def client_log(self, update: Update, cohort: Cohort) -> Mapping[str, Rows]:
        """The longest ceil(alpha n) of a device's n rows; a replay leaves the log as it is."""
        if KEPT in update.entries:
            return {}
        tables = {n: e for n, e in update.entries.items() if isinstance(e, Rows)}
        return {n: longest(rows, len(cohort), self.kept_share) for n, rows in tables.items()}

    # -- the story of forgetting ------------------------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Back to first values, and the rounds again with those who remain.

        Where loans or records came between the rounds, it trains again instead.
        """
        method = self.learning_as(fed.method)
        past, known = fed.past, fed.now.state.memory.named(TOOK_PART)
        if not known or past is None or past.base or any(at for at, _ in past.story):
            return fed.retrained(request.event)
        return method.replayed(fed.apply(request.event), known[0].values)

    def replayed(self, fed: Federation, took_part: Params) -> Federation:
        """As many rounds again, from first values and with the logs that devices have."""
        begun = fed.restart(keep=("log",))
        memory = Memory().keep(REPLAY, 0, took_part)
        begun = begun.with_(state=replace(begun.now.state, memory=memory))
        after = begun.run(fed.now.state.round, method=self)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != REPLAY))
        return after.with_(state=replace(after.now.state, memory=memory))

    def learning_as(self, learner: Method) -> Self:
        """This unlearner with the learning of a federation's own method, which kept the log."""
        if type(learner) is not type(self):
            raise ConfigError(
                f"FRU forgets with logs that devices keep while learning, and this federation "
                f"learnt by {type(learner).__name__}. Train it with FRU, or forget by Retrain."
            )
        return super().learning_as(learner)


_NOBODY = torch.zeros(0, dtype=torch.int64)


def near_items(item: Tensor, user: Tensor, cohort: Cohort, share: float) -> tuple[Tensor, Tensor]:
    """The items nearest to a person or to the mean of what they train on: ([n] by client, [C]).

    V^u and V^v: of the items a person does not have, `share` nearest to u_k, and nearest to c_k. A
    person without a vector of their own (all zeros) is known by the mean alone.

    item: [I, d]    user: [C, d]
    """
    mean = jagged.segment_mean(item[cohort.train.item], cohort.train.owner, len(cohort))
    user = torch.where(user.any(1, keepdim=True), user.to(mean), mean)
    has = torch.zeros(len(cohort), len(item), dtype=torch.bool, device=item.device)
    has[cohort.own.owner, cohort.own.item] = True
    wanted = torch.ceil(share * (~has).sum(1))
    near = torch.zeros_like(has)
    for point in (user, mean):
        far = torch.cdist(point, item).masked_fill(has, float("inf"))
        order = torch.argsort(far, dim=1, stable=True)
        near |= torch.argsort(order, dim=1) < wanted.unsqueeze(1)
    near &= ~has
    return near.nonzero()[:, 1], near.sum(1)


def longest(rows: Rows, clients: int, share: float) -> Rows:
    """The longest ceil(share n) of each client's n rows."""
    order = torch.argsort(rows.value.norm(dim=1), descending=True, stable=True)
    rows = rows[order[torch.argsort(rows.owner[order], stable=True)]]
    wanted = torch.ceil(jagged.counts(rows.owner, clients) * share)
    return rows[jagged.places(rows.owner, clients) < wanted[rows.owner]]
