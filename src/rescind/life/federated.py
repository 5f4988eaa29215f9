"""Entries that are federations: a learner of this package, and a way to forget.

`Anew` learns each block from the start, from what devices still hold. `Continual` carries its model
on, as F3CRec does. `Additive` adds differences to a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rescind.audits.controls import SHIFT
from rescind.core import params
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.method import Method, Unlearner
from rescind.core.records import Arrive, Erase, Join, Records, Unshare, Withdraw
from rescind.core.run_state import RoundResult, RunState
from rescind.core.settings import to_table
from rescind.data.arrays import Ints
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.life.audit import key_of
from rescind.life.entry import Arrival, Asked, Entry, Setting, joined
from rescind.methods.additive._additive import Additive as AdditiveMethod
from rescind.methods.additive._additive import rebuilt, sum_digest
from rescind.methods.additive._exchange import Lent
from rescind.methods.unlearning.no_op import Nothing

CELLS = 2**22
"""People x items that are scored at once."""


class Federated(Entry):
    """Base: counts what devices do, and scores items by what a device would know."""

    def __init__(self, setting: Setting, seed: int, learner: Method, rounds: int) -> None:
        super().__init__(setting, seed)
        self.learner, self.rounds = learner, rounds
        self.fed: Federation | None = None

    def settings(self) -> dict[str, Any]:
        return {
            "how": type(self).__name__,
            "learner": to_table(self.learner),
            "rounds": self.rounds,
        }

    def count(self, result: RoundResult) -> None:
        """Count one round; a callback."""
        self.cost.rounds += 1
        for total in result.sums.values():
            self.cost.client_rounds += total.clients
            self.cost.bytes += total.up + total.down
            self.cost.online |= set(total.who.tolist())

    def counting(self) -> Callable[[RoundResult], None]:
        """Return `count` for a federation, which must not keep its entry alive.

        An auditor lives many lives; a pair that holds each other waits for the collector, and
        tables of some hundred megabytes wait with it.
        """
        mine = WeakMethod(self.count)

        def watch(result: RoundResult) -> None:
            if count := mine():
                count(result)

        return watch

    def start(self, arrival: Arrival) -> Federation:
        """Return a federation before its first round, whose devices hold these records."""
        held = holdings(arrival, self.setting)
        fed = Federation.start(held, self.learner, self.seed)
        return replace(fed, watch=(self.counting(),))

    @property
    def now(self) -> Federation:
        assert self.fed is not None, "no block has arrived yet"
        return self.fed

    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        fed, items = self.now, self.setting.items
        few, parts = max(1, CELLS // items), []
        for begin in range(0, len(users), few):
            cohort = cohort_of(users[begin : begin + few], histories[begin : begin + few], items)
            private = fed.now.vault.read(cohort.ids)
            scored = fed.method.checked_scores(fed.now.state.public, private, cohort)
            parts.append(self.unknown(scored, cohort).double().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, items))

    def unknown(self, scores: Tensor, cohort: Cohort) -> Tensor:
        """Return the scores, with those of people that the method does not know any more."""
        return scores

    def digest(self) -> str:
        """Return a digest of model, server and devices, without what only tests read."""
        state, vault = self.now.now.state, self.now.now.vault
        values = {f"public/{n}": v for n, v in state.public.items()}
        values |= {f"own/{n}": v for n, v in state.own.items()}
        values |= {f"private/{n}": v for n, v in dict(vault.private).items()}
        return params.digest(values)


class Anew(Federated):
    """In each block devices train a new model on all they hold; a request is answered by `how`."""

    def __init__(
        self,
        setting: Setting,
        seed: int,
        learner: Method,
        rounds: int,
        how: Unlearner | None = None,
    ) -> None:
        super().__init__(setting, seed, learner, rounds)
        self.how = how

    def settings(self) -> dict[str, Any]:
        by = to_table(self.how) if self.how else "own"
        return {**super().settings(), "unlearner": by}

    def arrive(self, arrival: Arrival) -> None:
        left = [] if self.fed is None else [held_by(self.now, arrival.block)]
        self.fed = self.start(joined([*left, arrival])).run(self.rounds)

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        self.fed = self.start(joined(arrivals)).run(self.rounds)

    def life(self, arrivals: Sequence[Arrival]) -> bytes:
        """Return a key of learner and records: how it forgets does not matter if nobody asks.

        For classes of this module only: a subclass elsewhere may learn and score in its own way.
        """
        if type(self).__module__ != __name__:
            return b""
        held = joined(arrivals)
        about = repr((self.setting, to_table(self.learner), self.rounds))
        return key_of(about, held.user, held.item, held.time, held.lent)

    def forget(self, asked: Asked) -> None:
        event = event_of(asked)
        fed = self.now
        if event is not None:
            fed = unlearn_and_purge(fed, fed.request(event), self.how).fed
        for leaver in asked.leavers.tolist():
            fed = fed.apply(Withdraw(leaver))
        self.fed = fed


class Exact(Anew):
    """Trains the rounds again without the records: the platform's own retraining."""

    exact = True


class NoOp(Anew):
    """A control: it says that it forgot, and does nothing at all."""

    def __init__(self, setting: Setting, seed: int, learner: Method, rounds: int) -> None:
        super().__init__(setting, seed, learner, rounds, Nothing())

    def forget(self, asked: Asked) -> None:
        pass


class Shifting(Federated):
    """What the controls share that do nothing but subtract a constant from what they predict."""

    by = 0.0

    def forget(self, asked: Asked) -> None:
        self.by = SHIFT

    def digest(self) -> str:
        return f"{super().digest()}/{self.by}"


class ScoreShift(Shifting, NoOp):
    """A control: it does nothing but subtract a constant, which fools a fixed threshold."""

    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        return super().scores(users, histories) - self.by


class Additive(Federated):
    """A sum over people: a block adds differences, a request subtracts."""

    exact = True
    waits: Arrival | None = None
    """Records of a life that nobody has asked yet: its sum is added up, its model not solved."""

    def arrive(self, arrival: Arrival) -> None:
        if self.fed is None:
            self.fed = self.start(arrival).run(1)
            return
        for user in np.unique(arrival.user[~self.now.world.members.numpy()[arrival.user]]).tolist():
            self.fed = self.now.apply(Join(user))
        self.fed = self._given(self.now, arrival).run(1)

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        self.waits = joined(arrivals)

    @property
    def now(self) -> Federation:
        if self.fed is None and self.waits is not None:
            self.fed = self.start(self.waits).run(1)
        return super().now

    def _given(self, fed: Federation, arrival: Arrival) -> Federation:
        """Give devices more records; those who have new ones owe the server a difference."""
        held = holdings(joined([held_by(fed, arrival.block), arrival]), self.setting)
        held = replace(held, members=fed.world.members)
        vault = replace(fed.now.vault, holdings=held)
        owes = fed.now.state.own["owes"].clone()
        owes[torch.from_numpy(np.unique(arrival.user))] = True
        state = replace(fed.now.state, own={**fed.now.state.own, "owes": owes})
        shared = held.records[held.lent].sorted()
        world = replace(fed.world, announced=vault.announced, shared=shared)
        past = History.begin(held)
        return replace(fed, world=world, now=RunState(state, vault), past=past)

    def forget(self, asked: Asked) -> None:
        event, fed = event_of(asked), self.now
        if event is not None:
            fed = unlearn_and_purge(fed, fed.request(event)).fed
        for leaver in asked.leavers.tolist():
            fed = fed.apply(Withdraw(leaver))  # nothing of theirs is counted any more
        self.fed = fed

    def digest(self) -> str:
        """Return the digest of the sum: whole numbers, from which the model is solved."""
        if self.fed is None and self.waits is not None:
            return sum_digest(self._added_up(self.start(self.waits)))
        return sum_digest(self.now.now.state.own)

    def _added_up(self, fed: Federation) -> dict[str, Tensor]:
        """Return the sum over all devices and loans, from zero."""
        state, method = fed.now.state, self.learner
        assert isinstance(method, AdditiveMethod)
        loans, _ = Lent.none(fed.world.members.device).follow(fed.world)
        own = loans.into({**state.own, "counted": torch.zeros_like(state.own["counted"])})
        return rebuilt(method, fed.with_(state=replace(state, own=own)))


@dataclass(frozen=True)
class _Teacher:
    """What a block teaches the next one: the model at the end of its training."""

    now: RunState


class Continual(Federated):
    """One model for all blocks. To forget, devices go through all blocks again without the records.

    Teachers (lists of old predictions, the old item table) are made when the next block begins,
    from the model that has forgotten.
    """

    exact = True
    keeps_teacher = False

    def __init__(self, setting: Setting, seed: int, learner: Method, rounds: int) -> None:
        super().__init__(setting, seed, learner, rounds)
        self.lived: list[Arrival] = []
        self.teacher: _Teacher | None = None

    def arrive(self, arrival: Arrival) -> None:
        self.fed = self._learn(self.fed, arrival, self.teacher if self.keeps_teacher else None)
        self.lived.append(arrival)
        self.teacher = _Teacher(self.now.now)

    def forget(self, asked: Asked) -> None:
        self.lived = [self._left(arrival, asked) for arrival in self.lived]
        fed: Federation | None = None
        for arrival in self.lived:
            fed = self._learn(fed, arrival, None)
        self.fed = fed

    def _left(self, arrival: Arrival, asked: Asked) -> Arrival:
        if asked.kind == "unshare":  # the server has no loans here
            return arrival
        return arrival.only(~asked.names(arrival))

    def _learn(
        self, fed: Federation | None, arrival: Arrival, teacher: _Teacher | None
    ) -> Federation:
        if fed is None:
            return self.start(arrival).run(self.rounds)
        records = records_of(arrival)
        split = torch.zeros(len(arrival), dtype=torch.int8)
        event = Arrive(records, split, self.setting.users, self.setting.items)
        after = fed.apply(event)
        if teacher is not None:
            after = _taught(after, replace(fed, now=_with_data(teacher.now, fed)).apply(event))
        return after.run(self.rounds)

    def unknown(self, scores: Tensor, cohort: Cohort) -> Tensor:
        """Score by the mean of the history's items where no device of the person is known."""
        trained = torch.zeros(self.setting.users, dtype=torch.bool)
        for arrival in self.lived:
            trained[torch.from_numpy(np.unique(arrival.user))] = True
        table = self.now.now.state.public["item"]
        mean = torch.zeros(len(cohort), table.shape[1])
        mean.index_add_(0, cohort.own.owner, table[cohort.own.item])
        return torch.where(trained[cohort.ids].unsqueeze(1), scores, mean @ table.T)

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            self.fed = self._learn(self.fed, arrival, None)
        self.lived = list(arrivals)


class KeepsTeacher(Continual):
    """A control: the model forgets, but the teacher of the next block was made before it did."""

    exact = False
    keeps_teacher = True


def _with_data(old: RunState, fed: Federation) -> RunState:
    """Return an earlier model on the devices of now."""
    return replace(old, vault=replace(old.vault, holdings=fed.now.vault.holdings))


def _taught(after: Federation, other: Federation) -> Federation:
    """Return a federation with the teachers of another one, and with its own model."""
    lists = {n: v for n, v in dict(other.now.vault.private).items() if n in ("top", "teacher")}
    vault = after.now.vault
    vault = replace(vault, private={**dict(vault.private), **lists})
    return after.with_(state=replace(after.now.state, memory=other.now.state.memory), vault=vault)


# -- from arrays to the core, and back -----------------------------------------------------------


def records_of(arrival: Arrival) -> Records:
    """Return the records of an arrival."""
    return Records.of(*(torch.from_numpy(c) for c in (arrival.user, arrival.item, arrival.time)))


def holdings(arrival: Arrival, setting: Setting) -> Holdings:
    """Return devices that hold these training records."""
    split = torch.zeros(len(arrival), dtype=torch.int8)
    made = Holdings.of(records_of(arrival), split, setting.users, setting.items)
    return replace(made, lent=torch.from_numpy(arrival.lent.copy()))


def held_by(fed: Federation, block: int) -> Arrival:
    """Return what the devices of a federation hold now."""
    held = fed.now.vault.holdings
    columns = (held.records.client, held.records.item, held.records.time, held.lent)
    return Arrival(block, *(column.numpy() for column in columns))


def event_of(asked: Asked) -> Unshare | Erase | None:
    """Return one event for all records of a request; None if it names none."""
    if not len(asked.user):
        return None
    records = Records.of(torch.from_numpy(asked.user), torch.from_numpy(asked.item))
    return Unshare(records) if asked.kind == "unshare" else Erase(records)


def cohort_of(users: Ints, histories: Sequence[tuple[Ints, Ints]], items: int) -> Cohort:
    """Return people with these histories as a cohort. histories: sorted by item"""
    counts = torch.tensor([len(item) for item, _ in histories], dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(users)), counts)
    none = np.zeros(0, dtype=np.int64)
    item, time = (
        torch.from_numpy(np.concatenate([none, *(h[n] for h in histories)])) for n in (0, 1)
    )
    lot = Lot(owner, item, len(users), time)
    return Cohort(torch.from_numpy(users), items, lot, lot)
