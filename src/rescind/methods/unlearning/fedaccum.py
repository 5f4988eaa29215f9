"""FedAccum: add up the stored updates of the remaining clients (control of Liu et al., IWQoS 2021).

Also the base of all unlearners with a log of single updates on the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import Memory, ServerState, Snapshot
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.sharing._server_rerun import one_story, targets
from rescind.methods.sharing.fedshare import FedShare

LOG = "updates"
"""Single updates by round, dated by the round before: the table they were computed from."""
HISTORY = "history"
"""During a replay: the log of the remaining clients, one entry for each round to replay."""


@dataclass(frozen=True, kw_only=True)
class FedAccum(FedShare):
    """V_0 + the sum over rounds of the mean stored update of the remaining clients.

    Trains like FedShare, and the server stores every update. Shared records are forgotten by
    refining on the remaining ones (scope "shared": baselines.md 3.0), records of a device by
    leaving out its updates (scope "user").

    The server sees single updates, which reveal much about users.
    """

    paper: ClassVar[str] = "control of Liu et al., IWQoS 2021"
    individual: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FedAccum"
    relogs: ClassVar[bool] = False
    """Whether a replay writes a new log, which can answer the next request."""

    snapshots: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate != "clients" or self.keep_sums:
            name = type(self).__name__
            raise ConfigError(f"{name} stores updates: aggregate = 'clients', and no keep_sums.")

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Sample as usual; in a replay, from the clients of the stored round."""
        stored_round = _history_of(state.memory, clock.round)
        if stored_round is None:
            return super().server_sample(state, world, clock)
        ids = stored_round.values["client"].long()
        return self.server_replay_clients(ids[world.available[ids]], clock)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Run FedShare's step, in a replay with the replayed mean; log the updates."""
        stored_round = _history_of(state.memory, clock.round)
        if stored_round is None:
            after = super().server_step(state, sums, world, clock)
            return self.server_log_round(after, joined_updates(sums), clock.round)
        ids, stored = read_log(stored_round.values)
        mean, sent = self.server_replay_mean((ids, stored), joined_updates(sums))
        total = Sum(mean, 1.0 if mean else 0.0, len(ids))
        after = super().server_step(state, {"train": total}, world, clock)
        return self.server_log_round(after, sent, clock.round) if self.relogs else after

    def server_log_round(
        self, state: ServerState, sent: tuple[Tensor, Update] | None, round_: int
    ) -> ServerState:
        if sent is None:
            return state
        return replace(state, memory=state.memory.keep(LOG, round_ - 1, to_log(*sent)))

    def server_replay_clients(self, ids: Tensor, clock: Clock) -> Tensor:
        """Return the clients that train in a replayed round: none, their updates are stored."""
        return ids[:0]

    def server_replay_mean(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        return mean_of(stored), None

    def server_history(self, memory: Memory, rounds: int) -> list[Snapshot] | None:
        """Return the log of all rounds, oldest first; None if a round is missing."""
        found = sorted(memory.named(LOG), key=lambda s: s.round)
        return found if [s.round for s in found] == list(range(rounds)) else None

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Replay the rounds without the clients concerned; retrain if the log is incomplete."""
        method = self.learning_as(fed.method)
        logged = method.server_history(fed.now.state.memory, fed.now.state.round)
        if logged is None or not one_story(fed):
            return fed.retrained(request.event)
        leaving = targets(fed, request, method)
        history = tuple(
            Snapshot(HISTORY, index, to_log(*excluding(read_log(s.values), leaving)))
            for index, s in enumerate(logged)
        )
        return method.replay(fed, request, history)

    def replay(
        self, fed: Federation, request: Request, history: tuple[Snapshot, ...]
    ) -> Federation:
        start = fed.apply(request.event).restart()
        start = start.with_(state=replace(start.now.state, memory=Memory(history)))
        after = start.run(len(history), method=self)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != HISTORY))
        # The result replaces all rounds so far, even if the replay took fewer.
        state = replace(after.now.state, memory=memory, round=fed.now.state.round)
        return after.with_(state=state)

    def learning_as(self, learner: Method) -> Self:
        if type(learner) is not type(self):
            name = type(self).__name__
            raise ConfigError(
                f"{name} needs a log, but this federation was trained with "
                f"{type(learner).__name__}. Train it with {name}, or forget with Retrain."
            )
        return super().learning_as(learner)


def _history_of(memory: Memory, round_: int) -> Snapshot | None:
    return next((s for s in memory.named(HISTORY) if s.round == round_ - 1), None)


def joined_updates(sums: Mapping[str, Sum]) -> tuple[Tensor, Update] | None:
    """Join the single updates of a round over roles and chunks: (ids [n], update of n clients)."""
    parts = [part for total in sums.values() for part in total.parts]
    if not parts:
        return None
    first = torch.tensor([0, *(len(ids) for ids, _ in parts)]).cumsum(0).tolist()
    entries = {n: _joined([u.entries[n] for _, u in parts], first) for n in parts[0][1].entries}
    ids = torch.cat([ids for ids, _ in parts])
    return ids, Update(len(ids), entries)


def _joined(entries: list[Rows | Tensor], first: list[int]) -> Rows | Tensor:
    rows = [e for e in entries if isinstance(e, Rows)]
    if not rows:
        return torch.cat([e for e in entries if isinstance(e, Tensor)])
    return Rows(
        torch.cat([r.owner + start for r, start in zip(rows, first, strict=False)]),
        torch.cat([r.index for r in rows]),
        torch.cat([r.value for r in rows]),
        rows[0].size,
    )


def to_log(ids: Tensor, update: Update) -> dict[str, Tensor]:
    """Return updates as tensors to store: 4 d + 4 bytes for a row, 8 for a client."""
    kept: dict[str, Tensor] = {"client": ids.int()}
    for name, entry in update.entries.items():
        if isinstance(entry, Rows):
            rows = entry[torch.argsort(entry.owner, stable=True)]
            kept[f"{name}/many"] = jagged.counts(rows.owner, len(ids)).int()
            kept[f"{name}/index"], kept[f"{name}/value"] = rows.index.int(), rows.value
            kept[f"{name}/size"] = torch.tensor(entry.size)
        else:
            kept[f"{name}/dense"] = entry
    return kept


def read_log(kept: Params) -> tuple[Tensor, Update]:
    ids, entries = kept["client"].long(), dict[str, Rows | Tensor]()
    for key, value in kept.items():
        name, _, part = key.rpartition("/")
        if part == "dense":
            entries[name] = value
        if part == "many":
            owner = torch.repeat_interleave(torch.arange(len(ids), device=ids.device), value.long())
            index, size = kept[f"{name}/index"].long(), int(kept[f"{name}/size"])
            entries[name] = Rows(owner, index, kept[f"{name}/value"], size)
    return ids, Update(len(ids), entries)


def excluding(sent: tuple[Tensor, Update], removed: Tensor) -> tuple[Tensor, Update]:
    ids, update = sent
    stay = ~torch.isin(ids, removed.to(ids.device))
    place = stay.long().cumsum(0) - 1
    entries: dict[str, Rows | Tensor] = {}
    for name, entry in update.entries.items():
        if isinstance(entry, Rows):
            rows = entry[stay[entry.owner]]
            entries[name] = replace(rows, owner=place[rows.owner])
        else:
            entries[name] = entry[stay]
    return ids[stay], Update(int(stay.sum()), entries)


def mean_of(sent: tuple[Tensor, Update] | None) -> dict[str, Tensor]:
    """Return the mean update as tables; empty if there are no updates."""
    if sent is None or not len(sent[0]):
        return {}
    ids, update = sent
    return update.fold(torch.ones(len(ids), device=ids.device)).mean()


def joint_norm(tables: Params) -> Tensor:
    """Return the Frobenius norm over all tables together."""
    return torch.stack([t.double().square().sum() for t in tables.values()]).sum().sqrt()
