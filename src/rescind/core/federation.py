"""The federation, an immutable value: its methods return a new one. Contains the training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.about import about_items
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.consent import check_sizes
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels, Recommendation, check_list
from rescind.core.method import Method, Unlearner, check_method
from rescind.core.named import Named
from rescind.core.own_code import check_written, repeatable
from rescind.core.records import (
    Arrive,
    Erase,
    EraseEdges,
    Event,
    Records,
    Unshare,
    Withdraw,
    concerned,
)
from rescind.core.request import Request
from rescind.core.run_state import EarlyStop, RoundResult, RunState
from rescind.core.settings import whole
from rescind.core.state import Private, ServerState
from rescind.core.tasks import Metric, Question
from rescind.core.tasks.metrics import Owners, top_k, without_items
from rescind.core.update import Sum
from rescind.core.world import Host, Sizes, World
from rescind.errors import ConfigError, ConsentError, DataError


class Data(Protocol):
    """A dataset (`rescind.data.Dataset`, `GraphDataset`)."""

    def on_devices(self, seed: int) -> Holdings:
        """Return the records of each client, split into train, valid and test with a seed."""

    def labels(self) -> Labels:
        """Return the original ids."""


@dataclass(frozen=True, repr=False)
class Federation:
    """A world, its devices, a method, and the present state of the run."""

    world: World
    method: Method
    now: RunState
    clock: Clock
    executor: Executor = field(default_factory=InProcess)
    labels: Labels = field(default_factory=Labels)
    events: tuple[tuple[str, str, int], ...] = ()
    """(kind, digest, round) of all events, oldest first."""
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False, compare=False)
    """Key for digests of events; it is not saved with them."""
    watch: tuple[Callable[[RoundResult], Any], ...] = ()
    """Callbacks for every round, also while unlearning (such as a progress bar)."""
    past: History | None = field(default=None, repr=False)
    """History, so that a part of it can be undone; None: not recorded."""
    keep_every: int | None = None
    """Rounds between restore points, from which forgetting can rerun."""
    spent: Tensor | None = field(default=None, repr=False)
    """[clients] in how many sums each client's update was, ever; None: without guards. Retraining
    adds to it: what was published before stays published."""
    forgot_by: Unlearner | None = field(default=None, repr=False, compare=False)
    """Who answered the last event, so that an audit asks the same one; None: not by `unlearn`."""

    @classmethod
    def start(
        cls,
        data: Data | Holdings,
        method: Method,
        seed: int = 0,
        executor: Executor | None = None,
        labels: Labels | None = None,
        keep_every: int | None = None,
    ) -> Federation:
        """Return a federation before its first round.

        A dataset is split 8:1:1 with the seed, a graph as in `data.partition.subgraphs`.
        keep_every: rounds between restore points, from which forgetting can rerun
        """
        _check_data(data)
        check_method(method)
        seed = whole("seed", seed)
        check_written(type(method))
        if not isinstance(data, Holdings):
            method.check_order(getattr(data, "name", ""), getattr(data, "has_time", True))
            labels = data.labels() if labels is None else labels
            data = data.on_devices(seed)
        method.check_task(data.task)
        method.say_choice(data.items)
        method = method.for_items(data.items)
        clock, executor = Clock(seed), method.executor_for(executor or InProcess())
        vault = executor.open(method, data, clock)
        graph = data.graph
        features, classes = (graph.features, graph.classes) if graph else (0, 0)
        sizes = Sizes(data.clients, data.items, features, classes)
        world = World.initial(data.task, sizes, vault.announced)
        # Given holdings may already have shared records and members who left.
        lent = data.records[data.lent].to(world.members.device)
        world = replace(world, members=vault.holdings.members, shared=lent.sorted(), block=data.now)
        world = replace(world, about=about_items(labels or Labels()))
        state = _move_to(repeatable(method, method.server_init, True)(world, clock), vault)
        fed = cls(world, method, RunState(state, vault), clock, executor, labels or Labels())
        return replace(fed, past=History.begin(vault.holdings), keep_every=keep_every)

    def __repr__(self) -> str:
        sizes = self.world.sizes
        return (
            f"Federation({type(self.method).__name__} on {self.world.task}: "
            f"{sizes.clients} clients, {sizes.items} items, {len(self.world.shared)} records lent, "
            f"round {self.now.state.round}, block {self.world.block}, seed {self.clock.seed})"
        )

    def event_of(self, event: Event | Named) -> Event:
        """Return the event, with indices, of a request that names a person by original id."""
        if not isinstance(event, Named):
            return event
        return event.event(self.labels, self.world.sizes.clients)

    def apply(self, event: Event | Named) -> Federation:
        """Apply an event to the world and the devices. The model does not change."""
        event = self.event_of(event)
        m, now, root = self.method, self.now, self.clock
        if isinstance(event, Unshare | Erase) and not len(event.records):
            raise ConsentError(f"{type(event).__name__} names no records: see lent(user).")
        vault = now.vault
        if not self.world.concerns_hosted_only(event):
            try:
                vault = self.executor.apply(m, now.state.public, event, vault, root)
            except ConsentError as error:
                raise self.labels.named(error) from None
        world = self.world.apply(event, vault.announced)
        state, hosted = now.state, now.hosted
        if isinstance(event, Arrive):
            state = _move_to(repeatable(m, m.server_turn, True)(state, world, root), vault)
        if isinstance(event, Host):
            device = str(vault.holdings.members.device)
            hosted = (*hosted, InProcess(device).open(m, event.data, root))
        if isinstance(event, Withdraw):
            stay = [number != event.client for number, _ in self.world.hosted]
            hosted = tuple(v for v, keep in zip(hosted, stay, strict=True) if keep)
        hosted = tuple(  # keep hosted data in line with the world (erased records, blocks)
            replace(mine, holdings=data.to(mine.holdings.members.device))
            for mine, (_, data) in zip(hosted, world.hosted, strict=True)
        )
        happened = (type(event).__name__, event.digest(self.key), state.round)
        after = RunState(state, vault, hosted)
        past = self.past and self.past.after_event(state.round, event, vault.holdings, after.point)
        told = (*self.events, happened)
        return replace(self, world=world, now=after, events=told, past=past, forgot_by=None)

    def request(self, event: Event | Named | Request, away: Sequence[str | int] = ()) -> Request:
        """Return what an Unshare, Erase or Withdraw asks this federation to forget.

        away: original ids of users whose devices cannot be reached
        """
        if isinstance(event, Request):
            return event
        event = self.event_of(event)
        if not isinstance(event, Unshare | Erase | Withdraw):
            raise ConfigError(f"{type(event).__name__} is no Unshare, Erase or Withdraw.")
        people = concerned(event)
        held, lent = self.now.vault.holdings.records, self.world.shared
        if isinstance(event, Withdraw):
            known = held if len(held) else lent  # no holdings here if devices are remote
            records = known.of_clients(people)
        elif isinstance(event, EraseEdges):
            records = Records.none()
        else:
            records = held.matching(event.records) if len(held) else event.records
        first: int | None = 1 if self.now.state.round else None  # if there is no history
        if self.past is not None:
            first = self.past.influence(event, self.now.state.round)
        check_list(away, "away={}")
        missing = tuple(self.labels.client(user, self.world.sizes.clients) for user in away)
        return Request(event, records, people, first, missing)

    def run(
        self,
        rounds: int,
        method: Method | None = None,
        roles: Mapping[int, str] | None = None,
        until: EarlyStop | None = None,
        watch: Sequence[Callable[[RoundResult], Any]] = (),
    ) -> Federation:
        """Run rounds: sample, broadcast, train locally, aggregate, record.

        rounds: 0 changes nothing
        until: return the best round, devices included    watch: called with each `RoundResult`
        """
        m, now, past, spent = method or self.method, self.now, self.past, self.spent
        sampled = self._sample_members(until.users if until else None)
        for _ in range(whole("rounds", rounds)):
            if until and until.done:
                break
            clock = self.clock.at(now.state.round + 1)
            public, first = now.state.public, clock.round == 1
            ids = repeatable(m, m.server_sample, first)(now.state, self.world, clock)
            mail = repeatable(m, m.server_mail, first)(now.state, self.world, ids, clock)
            sums, vault = self.executor.train(m, public, mail, now.vault, ids, roles, clock)
            sums, hosted = self._train_hosted(m, now, sums, clock)
            step = repeatable(m, m.server_step, first)
            now = RunState(step(now.state, sums, self.world, clock), vault, hosted)
            past, spent = self._record_round(past, now, sums), self._spend(spent, sums)
            if until:
                until = until.update(now, lambda at, metric: self._measure(m, at, metric, sampled))
            for callback in (*self.watch, *watch):
                callback(RoundResult(now, sums, until, past))
        now = until.best if until and until.restore and until.best else now
        return replace(self, now=now, past=past and past.until(now.state.round), spent=spent)

    def _spend(self, spent: Tensor | None, sums: Mapping[str, Sum]) -> Tensor | None:
        """Count the clients of a round, if guards protect its sums."""
        if not getattr(self.executor, "guards", ()):
            return spent
        after = torch.zeros(self.world.sizes.clients, dtype=torch.int64)
        if spent is not None:
            after[: len(spent)] = spent
        for role, total in sums.items():
            if role != "host":
                after[total.who.cpu()] += 1
        return after

    def _sample_members(self, users: int | None) -> Tensor | None:
        """Return a sample of the members, the same in every round; None means all members."""
        if users is None:
            return None
        ids = self.world.members.nonzero().squeeze(1)
        if users >= len(ids):
            return None
        order = torch.argsort(self.clock.at(0).bits("validation sample", ids), stable=True)
        return ids[order[:users]].sort().values

    def _record_round(
        self, past: History | None, now: RunState, sums: Mapping[str, Sum]
    ) -> History | None:
        if past is None:
            return None
        for role, total in sums.items():
            if role != "host" and len(total.who):
                past = past.record_participants(now.state.round, total.who)
        if self.keep_every and now.state.round % self.keep_every == 0:
            past = past.with_point(now.point)
        return past

    def _train_hosted(
        self, m: Method, now: RunState, sums: dict[str, Sum], clock: Clock
    ) -> tuple[dict[str, Sum], tuple[Vault, ...]]:
        """Train the clients that the server hosts; their sum has the role "host"."""
        after = []
        for (number, _), vault in zip(self.world.hosted, now.hosted, strict=True):
            device = str(vault.holdings.members.device)
            ids = torch.tensor([number], device=device)
            public, roles = now.state.public, {number: "host"}
            mine, new = InProcess(device).train(m, public, None, vault, ids, roles, clock)
            sums = {**sums, "host": sums["host"] + mine["host"] if "host" in sums else mine["host"]}
            after.append(new)
        return sums, tuple(after)

    def restart(self, method: Method | None = None, keep: Sequence[str] = ()) -> Federation:
        """Return the same world and data with initial values everywhere, to retrain.

        keep: "log" and "memory" keep these, for methods that replay the history
        """
        m = method or self.method
        vault = self.executor.open(m, self.now.vault.holdings, self.clock)
        state = _move_to(repeatable(m, m.server_init, True)(self.world, self.clock), vault)
        if "log" in keep:
            vault = replace(vault, log=self.now.vault.log)
        if "memory" in keep:
            state = replace(state, memory=self.now.state.memory)
        device = str(vault.holdings.members.device)
        hosted = tuple(InProcess(device).open(m, data, self.clock) for _, data in self.world.hosted)
        now = RunState(state, vault, hosted)
        return replace(self, method=m, now=now, past=History.begin(vault.holdings))

    def retrained(
        self, event: Event | Named, seed: int | None = None, from_start: bool = False
    ) -> Federation:
        """Retrain exactly without the records of a request.

        Runs the same rounds and events with the same clock, from the last restore point before the
        records had influence: bit for bit the result of retraining from the start.
        seed: another seed, from the start; audits compare with such models
        """
        event = self.event_of(event)
        after, round_ = self.apply(event), self.now.state.round
        if self.past is None:
            raise ConfigError("this federation has no history to retrain from.")
        first = self.past.influence(event, round_)
        past = self.past.without(event)
        if first is None and seed is None and not from_start:
            return replace(after, past=past)
        fed = self._replay(past.before(first or 1), round_, seed, from_start)
        return replace(fed, events=after.events, key=self.key, watch=self.watch, labels=self.labels)

    def _replay(self, past: History, until: int, seed: int | None, from_start: bool) -> Federation:
        """Run the rounds and events of a history up to a round."""
        clock = self.clock if seed is None else Clock(seed)
        point = past.points[-1] if past.points and not from_start and seed is None else past.base
        start = 0 if point is None else point.round
        fed = Federation.start(
            past.origin, self.method, clock.seed, self.executor, self.labels, self.keep_every
        )
        fed = replace(fed, watch=self.watch, spent=self.spent)
        for at, event in past.story:
            if at < start:
                fed = fed.apply(event)
        if point is not None:
            # Participation before the point does not depend on the records.
            kept = tuple(p for p in past.points if p.round <= start)
            early = torch.where(past.first <= start, past.first, 0)
            known = replace(fed.past or past, points=kept, first=early, base=past.base)
            fed = replace(fed, now=fed.now.restore(point), past=known)
        for at, event in past.story:
            if at >= start and at <= until:
                fed = fed.run(at - fed.now.state.round).apply(event)
        return fed.run(until - fed.now.state.round)

    def with_(self, *, state: ServerState | None = None, vault: Vault | None = None) -> Federation:
        """Return the federation with another server state or vault."""
        now = replace(self.now, state=state or self.now.state, vault=vault or self.now.vault)
        return replace(self, now=now)

    def fork(self, seed: int | None = None, method: Method | None = None) -> Federation:
        """Return the federation with another seed or method, in the same state."""
        clock = self.clock if seed is None else Clock(seed)
        return replace(self, clock=clock, method=method or self.method)

    def evaluate(
        self,
        split: str = "test",
        k: int | tuple[int, ...] = 20,
        clients: Tensor | None = None,
        metric: Metric | None = None,
    ) -> dict[str, float]:
        """Evaluate on held-out items with a full ranking, over all members or some clients.

        k: the length of the lists, or several: `k=(10, 20)` gives NDCG@10 and NDCG@20
        """
        lengths = (k,) if isinstance(k, int) else tuple(k)
        metric = metric or self.method.metric(split, lengths)
        return self._measure(self.method, self.now, metric, clients)

    def _measure(
        self, m: Method, now: RunState, metric: Metric, clients: Tensor | None
    ) -> dict[str, float]:
        ids = self.world.members.nonzero().squeeze(1) if clients is None else clients
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.world.sizes.clients:
            raise DataError(f"clients are numbered 0 to {self.world.sizes.clients - 1}.")
        total = self.executor.measure(m, now.state.public, now.vault, ids, metric)
        return metric.finish(total.totals, total.weight)

    def popularity(self) -> Tensor:
        """Count the members who own each item, as a sum over devices. [I]"""
        ids, now = self.world.members.nonzero().squeeze(1), self.now
        total = self.executor.measure(self.method, now.state.public, now.vault, ids, Owners())
        return total.totals["owners"]

    def query(self, records: Records, ask: Question = "score") -> Tensor:
        """Compute the score or loss of single records on the devices. [n]"""
        now, sizes = self.now, self.world.sizes
        check_sizes(records, sizes.clients, sizes.items)
        return self.executor.query(self.method, now.state.public, now.vault, records, ask)

    def recommend(
        self,
        user: str | int | None = None,
        k: int = 20,
        history: Sequence[str | int] | None = None,
    ) -> list[Recommendation]:
        """Return the k best items that a user does not have, with original ids and titles.

        A user has all that the devices hold of them, items held out for evaluation too.
        A user without data to learn from (none, or all of it held out) gets the most popular items,
        marked "popularity", as are the lists of a method that gives everybody the same.
        history: original ids of items from first to last, instead of a user: of somebody who is
        not a client, or of a session
        """
        if whole("k", k) < 1:
            raise ConfigError(f"k must be at least 1, got {k}.")
        if (user is None) == (history is None):
            raise ConfigError("recommend needs a user, or a history of items; give one of them.")
        if history is not None:
            check_list(history, "history={}")
            return self._best(self._score_history(history), k, self.method.because)
        assert user is not None
        client = self.labels.client(user, self.world.sizes.clients)
        if not bool(self.world.members[client]):
            raise ConsentError(f"user {user} has withdrawn. They can join again.")
        items = torch.arange(self.world.sizes.items)
        everything = Records.of(torch.full_like(items, client), items)
        known = bool(self.world.available[client])
        scores = self.query(everything, "open")
        if not known:
            scores = self.popularity().double().masked_fill(scores == -torch.inf, -torch.inf)
        return self._best(scores, k, self.method.because if known else "popularity")

    def _score_history(self, history: Sequence[str | int]) -> Tensor:
        """Score all items for a list of items in order; those of the list have -inf. [I]"""
        m, items, device = self.method, self.world.sizes.items, self.world.members.device
        one = torch.zeros(1, dtype=torch.int64, device=device)
        if m.model.task != "ranking" or m.client_init(one, self.clock).values:
            raise ConfigError(f"{type(m).__name__} cannot recommend from a history alone.")
        first = {self.labels.item(i, items): at for at, i in reversed(list(enumerate(history)))}
        item = one.new_tensor(sorted(first))
        time = one.new_tensor([first[i] for i in item.tolist()])
        lot = Lot(torch.zeros_like(item), item, 1, time)
        scores = m.checked_scores(self.now.state.public, Private({}), Cohort(one, items, lot, lot))
        return scores[0].double().index_fill(0, item, -torch.inf)

    def _best(self, scores: Tensor, k: int, why: str) -> list[Recommendation]:
        there = without_items(scores.unsqueeze(0), self.labels.removed_items)
        best = top_k(there, None, min(k, len(scores)))[0]
        return [
            Recommendation(self.labels.item_id(i), self.labels.title(i), float(scores[i]), why)
            for i in best.tolist()
            if i >= 0
        ]

    def lent(self, user: str | int) -> Records:
        """Return the records that a user, given by original id, shares now."""
        client = self.labels.client(user, self.world.sizes.clients)
        return self.world.shared.of_clients(torch.tensor([client]))

    def records(self, user: str | int, items: Sequence[str | int]) -> Records:
        """Return records of one user from original ids of user and items."""
        check_list(items, f"records({user!r}, {{}})")
        client = self.labels.client(user, self.world.sizes.clients)
        found = [self.labels.item(i, self.world.sizes.items) for i in items]
        return Records.of([client] * len(found), found)


def _check_data(data: object) -> None:
    """Raise an error that says how to make a dataset, if something else was given."""
    if not isinstance(data, Holdings) and not hasattr(data, "on_devices"):
        raise ConfigError(
            f"Federation.start wants a dataset, such as rs.load('ml-100k') or "
            f"rs.from_frame(frame); got {data!r:.60}."
        )


def _move_to(state: ServerState, vault: Vault) -> ServerState:
    device = vault.holdings.members.device
    return replace(state, public=params.to(state.public, device), own=params.to(state.own, device))
