"""FRU: devices log their updates, and a replay is calibrated with them (Yuan et al., WSDM 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.plan import Plan
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Memory, Private, ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.sharing.fedshare import FedShare

STORED = "stored/"
"""Prefix of the logged rows of a round, which a device also sends in a replay."""
KEPT = "kept"
"""Entry of an update in a replay: whether the device has a log of the round."""
TOOK_PART = "participants"
"""Clients of each round. It depends on no table, so it is dated before the first round."""
REPLAY = "replay"
"""During a replay: the clients of each round."""


@dataclass(frozen=True, kw_only=True)
class FRU(FedShare):
    """V <- V + |stored mean| fresh mean / |fresh mean|, from the initial values, remaining clients.

    Trains like FedShare; each device logs the longest rows of its updates. Shared records are
    forgotten by refining on the remaining ones (scope "shared": baselines.md 3.0). The log of a
    client that makes a request is deleted; if it stays, only its fresh updates count.

    DEPARTS its first round without training: user vectors would miss their first step, and a
    replay with all clients would not reproduce the run (baselines.md 3.3).

    DEPARTS its semi-hard negatives (`negatives_from`): negatives are sampled uniformly. With
    semi-hard ones NDCG@20 on validation is .195 after 40 rounds of ML-100K; uniform ones give .255.
    Near items that a user does not own are often items the user would like.
    """

    paper: ClassVar[str] = "Yuan et al., WSDM 2023"
    logs: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FRU"

    snapshots: int = 0
    kept_share: float = 0.5
    """Alpha: fraction of its updated rows, longest first, that a device logs."""
    effort: float = 0.1
    """Lambda: fraction of the local epochs in a replay, at least one epoch."""
    calibration: Literal["table", "row"] = "table"
    """Scale the whole table or each row to its old length (rows without a log are not scaled)."""
    negatives_from: Literal["all", "semi_hard"] = "all"
    """Source of negatives: all items the user does not own, or the near ones."""
    near_share: float = 0.05
    """R: fraction of the items a user does not own that counts as near (baselines.md 3.3)."""
    near_negatives: float = 0.5
    """Beta: number of near negatives as a fraction of `negatives`, at least one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, 1]", "kept_share", "effort", "near_share", "near_negatives")
        if self.aggregate == "rows":
            raise ConfigError("FRU.aggregate must not be 'rows'.")

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Sample as usual; in a replay, return the available clients of the stored round."""
        found = state.memory.named(REPLAY)
        if not found:
            return super().server_sample(state, world, clock)
        stored = found[0].values
        ids = stored["client"][stored["round"] == clock.round].long()
        available = world.available if self.local_includes_shared else world.announced.keeps
        return ids[available[ids]]

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Run FedShare's step; in a replay, with the fresh mean scaled to the stored length."""
        ids = torch.cat([total.who for role, total in sums.items() if role != "host"] or [_NO_IDS])
        if state.memory.named(REPLAY):
            mean = self.server_calibrated(self.server_mean(sums))
            sums = {"train": Sum(mean, 1.0 if mean else 0.0, len(ids))}
        after = super().server_step(state, sums, world, clock)
        known = after.memory.named(TOOK_PART)
        new = {"client": ids.int(), "round": torch.full_like(ids, clock.round).int()}
        both = {n: torch.cat([known[0].values[n], v]) for n, v in new.items()} if known else new
        return replace(after, memory=after.memory.keep(TOOK_PART, 0, both, last=1))

    def server_calibrated(self, mean: Params) -> dict[str, Tensor]:
        """Scale the fresh mean to the stored length, which counts only clients with a log."""
        stored = {n.removeprefix(STORED): v for n, v in mean.items() if n.startswith(STORED)}
        fresh = {n: v for n, v in mean.items() if not n.startswith(STORED) and n != KEPT}
        fraction = float(mean.get(KEPT, torch.zeros(())))
        if not stored or not fraction:
            return fresh
        out = dict(fresh)
        if self.calibration == "row":
            for name, old in stored.items():
                old_norm = old.norm(dim=-1, keepdim=True) / fraction
                new_norm = fresh[name].norm(dim=-1, keepdim=True)
                ratio = old_norm / new_norm.clamp(min=1e-30)
                out[name] = fresh[name] * torch.where((old_norm > 0) & (new_norm > 0), ratio, 1.0)
            return out
        old_norm, new_norm = (
            torch.stack([t[n].double().square().sum() for n in stored]).sum().sqrt()
            for t in (stored, fresh)
        )
        ratio = old_norm / fraction / new_norm.clamp(min=1e-30)
        return out | {n: fresh[n] * ratio.to(fresh[n]) for n in stored}

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Plan as usual, or with negatives sampled from the nearest items the user does not own."""
        plain = super().client_plan(public, private, cohort, clock)
        if self.negatives_from == "all" or self.loss != "bpr":
            return plain
        k, train = max(1, round(self.near_negatives * self.negatives)), cohort.train
        pool, count = near_items(public["item"], private["user"], cohort, self.near_share)
        owner = train.owner.repeat_interleave(k)
        place = train.place.unsqueeze(1) * k + torch.arange(k, device=owner.device)
        drawn = clock.uniform("semi-hard negatives", cohort.ids[owner], place.reshape(-1))
        rank = (drawn * count[owner]).long().clamp(max=count[owner] - 1)
        first = count.cumsum(0) - count
        positive, valid = train.item.repeat_interleave(k), count[owner] > 0
        negative = pool[(first[owner] + rank)[valid]]
        named = {"positive": positive[valid], "negative": negative}
        return Plan.of(owner[valid], len(cohort), self.batch_size, None, named)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Train; in a replay (the round is in the log), with fewer epochs, and send the log too."""
        logged = {name: private.log.at(clock.round, name) for name in self.model.tables}
        stored = {name: rows for name, rows in logged.items() if rows is not None}
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
        """Log the longest ceil(alpha n) of a device's n rows; a replay does not change the log."""
        if KEPT in update.entries:
            return {}
        tables = {n: e for n, e in update.entries.items() if isinstance(e, Rows)}
        return {n: longest_rows(rows, len(cohort), self.kept_share) for n, rows in tables.items()}

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Replay the rounds with the remaining clients; retrain if events came between rounds."""
        method = self.learning_as(fed.method)
        past, known = fed.past, fed.now.state.memory.named(TOOK_PART)
        if not known or past is None or past.base or any(at for at, _ in past.story):
            return fed.retrained(request.event)
        return method.replay(fed.apply(request.event), known[0].values)

    def replay(self, fed: Federation, took_part: Params) -> Federation:
        start = fed.restart(keep=("log",))
        memory = Memory().keep(REPLAY, 0, took_part)
        start = start.with_(state=replace(start.now.state, memory=memory))
        after = start.run(fed.now.state.round, method=self)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != REPLAY))
        return after.with_(state=replace(after.now.state, memory=memory))

    def learning_as(self, learner: Method) -> Self:
        if type(learner) is not type(self):
            raise ConfigError(
                f"FRU needs logs, but this federation was trained with {type(learner).__name__}. "
                f"Train it with FRU, or forget with Retrain."
            )
        return super().learning_as(learner)


_NO_IDS = torch.zeros(0, dtype=torch.int64)


def near_items(item: Tensor, user: Tensor, cohort: Cohort, share: float) -> tuple[Tensor, Tensor]:
    """Return the items nearest to a user or to the mean of its training items: ([n], count [C]).

    V^u and V^v: the fraction `share` of the items a user does not own that is nearest to u_k, and
    nearest to c_k. For a user vector of zeros only the mean is used.

    item: [I, d]    user: [C, d]
    """
    mean = jagged.segment_mean(item[cohort.train.item], cohort.train.owner, len(cohort))
    user = torch.where(user.any(1, keepdim=True), user.to(mean), mean)
    owned = torch.zeros(len(cohort), len(item), dtype=torch.bool, device=item.device)
    owned[cohort.own.owner, cohort.own.item] = True
    wanted = torch.ceil(share * (~owned).sum(1))
    near = torch.zeros_like(owned)
    for point in (user, mean):
        distance = torch.cdist(point, item).masked_fill(owned, float("inf"))
        order = torch.argsort(distance, dim=1, stable=True)
        near |= torch.argsort(order, dim=1) < wanted.unsqueeze(1)
    near &= ~owned
    return near.nonzero()[:, 1], near.sum(1)


def longest_rows(rows: Rows, clients: int, share: float) -> Rows:
    order = torch.argsort(rows.value.norm(dim=1), descending=True, stable=True)
    rows = rows[order[torch.argsort(rows.owner[order], stable=True)]]
    wanted = torch.ceil(jagged.counts(rows.owner, clients) * share)
    return rows[jagged.places(rows.owner, clients) < wanted[rows.owner]]
