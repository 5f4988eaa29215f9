"""FedAccum: add up again what remaining clients once sent (control of Liu et al., IWQoS 2021).

Here is also what unlearners with a log on the server share: single updates are kept by round, and
to forget, the rounds are made again from first values without the people concerned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.request import Request
from rescind.core.state import Memory, ServerState, Snapshot
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.sharing._server_rerun import one_story, targets
from rescind.methods.sharing.fedshare import FedShare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rescind.core.federation import Federation

LOG = "updates"
"""Single updates by round. Dated by the table they were made from, which is one round earlier."""
HISTORY = "history"
"""During a replay: the log of those who remain, one entry for each round to come."""


@dataclass(frozen=True, kw_only=True)
class FedAccum(FedShare):
    """V_0 + the sum over rounds of the mean of stored updates, without those of who left.

    It learns as FedShare does, and the server keeps every update it gets. What people lent is
    forgotten by refining again on what remains (scope "shared": baselines.md 3.0); what a device
    trained on, by leaving its updates out (scope "user").

    The server sees single updates, from which much can be read about people.
    """

    paper: ClassVar[str] = "control of Liu et al., IWQoS 2021"
    individual: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FedAccum"
    relogs: ClassVar[bool] = False
    """True: a replay writes a log of its own, with which the next request can be answered."""

    snapshots: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate != "clients":
            raise ConfigError(
                f"{type(self).__name__} adds up stored updates in which clients count alike: "
                f"aggregate must be 'clients', got '{self.aggregate}'."
            )
        if self.keep_sums:
            raise ConfigError(
                f"{type(self).__name__} keeps every update, so sums beside them serve nobody. "
                f"Leave keep_sums out."
            )

    # -- learning: FedShare, and a log ------------------------------------------------------------

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """In a replay: whom of those who took part then the server asks again."""
        then = history_of(state.memory, clock.round)
        if then is None:
            return super().server_sample(state, world, clock)
        ids = then.values["client"].long()
        return self.server_asked(ids[world.available[ids]], clock)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """FedShare's step; in a replay with another mean. Either is logged."""
        then = history_of(state.memory, clock.round)
        if then is None:
            after = super().server_step(state, sums, world, clock)
            return self.server_logged(after, together(sums), clock.round)
        ids, stored = read_log(then.values)
        mean, sent = self.server_replayed((ids, stored), together(sums))
        everybody = Sum(mean, 1.0 if mean else 0.0, len(ids))
        after = super().server_step(state, {"train": everybody}, world, clock)
        return self.server_logged(after, sent, clock.round) if self.relogs else after

    def server_logged(
        self, state: ServerState, sent: tuple[Tensor, Update] | None, round_: int
    ) -> ServerState:
        """The state with the updates of a round in its memory."""
        if sent is None:
            return state
        return replace(state, memory=state.memory.keep(LOG, round_ - 1, to_log(*sent)))

    # -- a replay ---------------------------------------------------------------------------------

    def server_asked(self, ids: Tensor, clock: Clock) -> Tensor:
        """Whom a replay asks to train again: nobody, what they sent is there."""
        return ids[:0]

    def server_replayed(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        """The mean update of a replayed round, and what to log of it."""
        return mean_of(stored), None

    def server_history(self, memory: Memory, rounds: int) -> list[Snapshot] | None:
        """The log of all rounds so far, oldest first; None where something is missing."""
        found = sorted(memory.named(LOG), key=lambda s: s.round)
        return found if [s.round for s in found] == list(range(rounds)) else None

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Back to first values, and the rounds again without the people concerned.

        Where the log does not reach back (records arrived or were lent later, or an earlier request
        took it along), it trains again instead.
        """
        method = self.learning_as(fed.method)
        logged = method.server_history(fed.now.state.memory, fed.now.state.round)
        if logged is None or not one_story(fed):
            return fed.retrained(request.event)
        leavers = targets(fed, request, method)
        history = tuple(
            Snapshot(HISTORY, turn, to_log(*without(read_log(s.values), leavers)))
            for turn, s in enumerate(logged)
        )
        return method.replayed(fed, request, history)

    def replayed(
        self, fed: Federation, request: Request, history: tuple[Snapshot, ...]
    ) -> Federation:
        """A federation after a request: from first values through a history."""
        begun = fed.apply(request.event).restart()
        begun = begun.with_(state=replace(begun.now.state, memory=Memory(history)))
        after = begun.run(len(history), method=self)
        memory = Memory(tuple(s for s in after.now.state.memory if s.name != HISTORY))
        # It stands for as many rounds as there were, however few it took.
        state = replace(after.now.state, memory=memory, round=fed.now.state.round)
        return after.with_(state=state)

    def learning_as(self, learner: Method) -> Self:
        """This unlearner with the learning of a federation's own method, which kept the log."""
        if type(learner) is not type(self):
            name = type(self).__name__
            raise ConfigError(
                f"{name} forgets with a log that is kept while learning, and this federation "
                f"learnt by {type(learner).__name__}. Train it with {name}, or forget by Retrain."
            )
        return super().learning_as(learner)


def history_of(memory: Memory, round_: int) -> Snapshot | None:
    """What is to be replayed in a round, or None."""
    return next((s for s in memory.named(HISTORY) if s.round == round_ - 1), None)


# -- the log ---------------------------------------------------------------------------------------


def together(sums: Mapping[str, Sum]) -> tuple[Tensor, Update] | None:
    """The single updates of a round, of all roles and chunks: (ids [n], update of n clients)."""
    parts = [part for total in sums.values() for part in total.parts]
    if not parts:
        return None
    first = torch.tensor([0, *(len(ids) for ids, _ in parts)]).cumsum(0).tolist()
    entries: dict[str, Rows | Tensor] = {}
    for name in parts[0][1].entries:
        mine = [update.entries[name] for _, update in parts]
        entries[name] = _joined(mine, first)
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
    """Updates as tensors to keep: 4 d + 4 bytes for a row, 8 for a client."""
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
    """What `to_log` kept."""
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


def without(sent: tuple[Tensor, Update], gone: Tensor) -> tuple[Tensor, Update]:
    """The updates of everybody else."""
    ids, update = sent
    stay = ~torch.isin(ids, gone.to(ids.device))
    place = stay.long().cumsum(0) - 1
    entries: dict[str, Rows | Tensor] = {}
    for name, entry in update.entries.items():
        if isinstance(entry, Rows):
            mine = entry[stay[entry.owner]]
            entries[name] = replace(mine, owner=place[mine.owner])
        else:
            entries[name] = entry[stay]
    return ids[stay], Update(int(stay.sum()), entries)


def mean_of(sent: tuple[Tensor, Update] | None) -> dict[str, Tensor]:
    """The mean update, as tables; nothing where nobody sent any."""
    if sent is None or not len(sent[0]):
        return {}
    ids, update = sent
    return update.fold(torch.ones(len(ids), device=ids.device)).mean()


def length(tables: Params) -> Tensor:
    """The Frobenius norm over all tables together."""
    total = torch.stack([t.double().square().sum() for t in tables.values()]).sum()
    return total.sqrt()
