"""A federation is a value: verbs return a new one, and the one loop is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels, Recommendation
from rescind.core.method import Method
from rescind.core.records import Arrive, Erase, Event, Records, Unshare, Withdraw, concerned
from rescind.core.request import Request
from rescind.core.run_state import EarlyStop, RoundResult, RunState
from rescind.core.state import ServerState
from rescind.core.tasks import Metric, Question
from rescind.core.tasks.metrics import Owners, top_k
from rescind.core.update import Sum
from rescind.core.world import Host, Sizes, World
from rescind.errors import BoundaryError, ConfigError, ConsentError, DataError


class Data(Protocol):
    """What can be put on devices (`rescind.data.Dataset`, `GraphDataset`)."""

    def on_devices(self, seed: int) -> Holdings:
        """Who holds which records, split into train, valid and test with a seed."""
        ...

    def labels(self) -> Labels:
        """The original ids in it."""
        ...


@dataclass(frozen=True, repr=False)
class Federation:
    """A world, its devices, a method, and where the run stands."""

    world: World
    method: Method
    now: RunState
    clock: Clock
    executor: Executor = field(default_factory=InProcess)
    labels: Labels = field(default_factory=Labels)
    events: tuple[tuple[str, str, int], ...] = ()
    """(kind, digest, round) of what happened, oldest first."""
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False, compare=False)
    """Digests of events are keyed with it; it is not written where the digests are."""
    watch: tuple[Callable[[RoundResult], Any], ...] = ()
    """Watchers of every run, wherever it is started from (a progress bar while unlearning)."""
    past: History | None = field(default=None, repr=False)
    """How it came about, so that a part of it can be undone; None: nobody kept track."""
    keep_every: int | None = None
    """Remember the model every so many rounds, to go back to when something is forgotten."""

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
        """A federation before its first round. A dataset is split 8:1:1 with the same seed, a
        graph into the clients and splits of `data.partition.subgraphs`.

        keep_every: remember the model every so many rounds, so that forgetting can go back there
        """
        if not isinstance(data, Holdings):
            labels = data.labels() if labels is None else labels
            data = data.on_devices(seed)
        _fits(method, data)
        clock, executor = Clock(seed), method.executor_for(executor or InProcess())
        vault = executor.open(method, data, clock)
        graph = data.graph
        sizes = Sizes(
            data.clients, data.items, graph.features if graph else 0, graph.classes if graph else 0
        )
        world = World.initial(data.task, sizes, vault.announced)
        # Holdings made elsewhere may hold loans and members who left already.
        lent = data.records[data.lent].to(world.members.device)
        world = replace(world, members=vault.holdings.members, shared=lent.sorted(), block=data.now)
        state = _placed(method.server_init(world, clock), vault)
        fed = cls(world, method, RunState(state, vault), clock, executor, labels or Labels())
        return replace(fed, past=History.begin(vault.holdings), keep_every=keep_every)

    def __repr__(self) -> str:
        sizes = self.world.sizes
        return (
            f"Federation({type(self.method).__name__} on {self.world.task}: "
            f"{sizes.clients} clients, {sizes.items} items, {len(self.world.shared)} records lent, "
            f"round {self.now.state.round}, block {self.world.block}, seed {self.clock.seed})"
        )

    # -- verbs -----------------------------------------------------------------------------------

    def apply(self, event: Event) -> Federation:
        """What the world and the devices are after an event. The model is not touched."""
        m, now, root = self.method, self.now, self.clock
        if isinstance(event, Unshare | Erase) and not len(event.records):
            raise ConsentError(
                f"{type(event).__name__} names no records, so there is nothing to forget. "
                f"`lent(user)` gives what a person lends; name other records with "
                f"`records(user, items)`."
            )
        vault = now.vault
        if not self.world.concerns_hosted_only(event):
            try:
                vault = self.executor.apply(m, now.state.public, event, vault, root)
            except ConsentError as error:
                raise self.labels.named(error) from None
        world = self.world.apply(event, vault.announced)
        state, hosted = now.state, now.hosted
        if isinstance(event, Arrive):
            state = _placed(m.server_turn(state, world, root), vault)
        if isinstance(event, Host):
            device = str(vault.holdings.members.device)
            hosted = (*hosted, InProcess(device).open(m, event.data, root))
        if isinstance(event, Withdraw):
            stay = [number != event.client for number, _ in self.world.hosted]
            hosted = tuple(v for v, keep in zip(hosted, stay, strict=True) if keep)
        hosted = tuple(  # hosted data follows the world: erased records leave it, blocks turn
            replace(mine, holdings=data.to(mine.holdings.members.device))
            for mine, (_, data) in zip(hosted, world.hosted, strict=True)
        )
        kind = type(event).__name__
        happened = (kind, event.digest(self.key), state.round)
        after = RunState(state, vault, hosted)
        past = self.past and self.past.after_event(state.round, event, vault.holdings, after.point)
        return replace(self, world=world, now=after, events=(*self.events, happened), past=past)

    def request(self, event: Event | Request, away: Sequence[int] = ()) -> Request:
        """Return what an Unshare, Erase or Withdraw asks this federation to forget."""
        if isinstance(event, Request):
            return event
        if not isinstance(event, Unshare | Erase | Withdraw):
            raise ConfigError(
                f"{type(event).__name__} asks for nothing to be forgotten. "
                f"Give an Unshare, an Erase or a Withdraw."
            )
        people = concerned(event)
        held, lent = self.now.vault.holdings.records, self.world.shared
        if isinstance(event, Withdraw):
            known = held if len(held) else lent  # without data here: devices are on a network
            records = known[known.client == event.client]
        else:
            records = held[held.among(event.records)] if len(held) else event.records
        first: int | None = 1 if self.now.state.round else None  # the past is not known
        if self.past is not None:
            first = self.past.influence(event, self.now.state.round)
        return Request(event, records, people, first, tuple(away))

    def run(
        self,
        rounds: int,
        method: Method | None = None,
        roles: Mapping[int, str] | None = None,
        until: EarlyStop | None = None,
        watch: Sequence[Callable[[RoundResult], Any]] = (),
    ) -> Federation:
        """The one loop: sample, broadcast, train locally, aggregate and refine, remember.

        With `until` the best round is returned, devices included. `watch` may look, not touch.
        """
        m, now, past = method or self.method, self.now, self.past
        asked = self._some(until.users if until else None)
        for _ in range(rounds):
            if until and until.done:
                break
            clock = self.clock.at(now.state.round + 1)
            ids = m.server_sample(now.state, self.world, clock)
            mail = m.server_mail(now.state, self.world, ids, clock)
            public = now.state.public
            sums, vault = self.executor.train(m, public, mail, now.vault, ids, roles, clock)
            sums, hosted = self._host(m, now, sums, clock)
            now = RunState(m.server_step(now.state, sums, self.world, clock), vault, hosted)
            past = self._remembered(past, now, sums)
            if until:
                until = until.update(now, lambda at, metric: self._measure(m, at, metric, asked))
            for look in (*self.watch, *watch):
                look(RoundResult(now, sums, until, past))
        now = until.best if until and until.restore and until.best else now
        return replace(self, now=now, past=past and past.until(now.state.round))

    def _some(self, users: int | None) -> Tensor | None:
        """A sample of the members, the same in every round; None for everybody."""
        ids = self.world.members.nonzero().squeeze(1)
        if users is None or users >= len(ids):
            return None
        order = torch.argsort(self.clock.at(0).bits("validation sample", ids), stable=True)
        return ids[order[:users]].sort().values

    def _remembered(
        self, past: History | None, now: RunState, sums: Mapping[str, Sum]
    ) -> History | None:
        """The past with one more round in it."""
        if past is None:
            return None
        for role, total in sums.items():
            if role != "host" and len(total.who):
                past = past.record_participants(now.state.round, total.who)
        if self.keep_every and now.state.round % self.keep_every == 0:
            past = past.with_point(now.point)
        return past

    def _host(
        self, m: Method, now: RunState, sums: dict[str, Sum], clock: Clock
    ) -> tuple[dict[str, Sum], tuple[Vault, ...]]:
        """Train the clients that the server hosts itself; their sum has the role "host"."""
        after = []
        for (number, _), vault in zip(self.world.hosted, now.hosted, strict=True):
            device = str(vault.holdings.members.device)
            ids = torch.tensor([number], device=device)
            mine, new = InProcess(device).train(
                m, now.state.public, None, vault, ids, {number: "host"}, clock
            )
            total = mine["host"]
            sums = {**sums, "host": sums["host"] + total if "host" in sums else total}
            after.append(new)
        return sums, tuple(after)

    def restart(self, method: Method | None = None, keep: Sequence[str] = ()) -> Federation:
        """The same world and devices' data with first values everywhere: ready to retrain.

        keep: what a method that replays the past needs of it, "log" and "memory"
        """
        m = method or self.method
        vault = self.executor.open(m, self.now.vault.holdings, self.clock)
        state = _placed(m.server_init(self.world, self.clock), vault)
        if "log" in keep:
            vault = replace(vault, log=self.now.vault.log)
        if "memory" in keep:
            state = replace(state, memory=self.now.state.memory)
        device = str(vault.holdings.members.device)
        hosted = tuple(InProcess(device).open(m, data, self.clock) for _, data in self.world.hosted)
        return replace(
            self, method=m, now=RunState(state, vault, hosted), past=History.begin(vault.holdings)
        )

    def retrained(
        self, event: Event, seed: int | None = None, from_start: bool = False
    ) -> Federation:
        """The federation as it would be, had the records of a request never been there: exact.

        The same rounds again with the same clock and the same events in between, from the last
        point before the records first mattered; bit for bit what a retraining from the start gives.
        With another seed it is one more draw of that law, which is what audits compare with.
        """
        after, round_ = self.apply(event), self.now.state.round
        if self.past is None:
            raise ConfigError(
                "this federation does not know its past, so it cannot be trained again without "
                "the records. Start it with Federation.start, or load a run that was saved whole."
            )
        first = self.past.influence(event, round_)
        past = self.past.without(event)
        if first is None and seed is None and not from_start:
            return replace(after, past=past)
        past = past.before(first or 1)
        return replace(
            self._replayed(past, round_, seed, from_start),
            events=after.events, key=self.key, watch=self.watch, labels=self.labels,
        )  # fmt: skip

    def _replayed(
        self, past: History, until: int, seed: int | None, from_start: bool
    ) -> Federation:
        """Everything that is left of the past, again, up to a round."""
        clock = self.clock if seed is None else Clock(seed)
        point = past.points[-1] if past.points and not from_start and seed is None else past.base
        begun = 0 if point is None else point.round
        fed = Federation.start(
            past.origin, self.method, clock.seed, self.executor, self.labels, self.keep_every
        )
        fed = replace(fed, watch=self.watch)
        for at, event in past.story:
            if at < begun:
                fed = fed.apply(event)
        if point is not None:
            # Who took part before the point did so with and without the records.
            kept = tuple(p for p in past.points if p.round <= begun)
            early = torch.where(past.first <= begun, past.first, 0)
            known = replace(fed.past or past, points=kept, first=early, base=past.base)
            fed = replace(fed, now=fed.now.restore(point), past=known)
        for at, event in past.story:
            if at >= begun and at <= until:
                fed = fed.run(at - fed.now.state.round).apply(event)
        return fed.run(until - fed.now.state.round)

    def with_(self, *, state: ServerState | None = None, vault: Vault | None = None) -> Federation:
        """The same federation with one of its sides replaced."""
        now = replace(self.now, state=state or self.now.state, vault=vault or self.now.vault)
        return replace(self, now=now)

    def fork(self, seed: int | None = None, method: Method | None = None) -> Federation:
        """The same value under another seed or method, to go on from here."""
        clock = self.clock if seed is None else Clock(seed)
        return replace(self, clock=clock, method=method or self.method)

    def evaluate(
        self,
        split: str = "test",
        k: int | tuple[int, ...] = 20,
        clients: Tensor | None = None,
        metric: Metric | None = None,
    ) -> dict[str, float]:
        """Full-ranking quality on held-out items, over all members or some clients."""
        many = (k,) if isinstance(k, int) else tuple(k)
        metric = metric or self.method.metric(split, many)
        return self._measure(self.method, self.now, metric, clients)

    def _measure(
        self, m: Method, now: RunState, metric: Metric, clients: Tensor | None
    ) -> dict[str, float]:
        ids = self.world.members.nonzero().squeeze(1) if clients is None else clients
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.world.sizes.clients:
            raise DataError(
                f"clients are numbered 0 to {self.world.sizes.clients - 1}; "
                f"got {int(ids.min())} to {int(ids.max())}."
            )
        total = self.executor.measure(m, now.state.public, now.vault, ids, metric)
        return metric.finish(total.totals, total.weight)

    def popularity(self) -> Tensor:
        """How many members own each item, as a sum over devices. [I]"""
        ids = self.world.members.nonzero().squeeze(1)
        now = self.now
        total = self.executor.measure(self.method, now.state.public, now.vault, ids, Owners())
        return total.totals["owners"]

    def query(self, records: Records, ask: Question = "score") -> Tensor:
        """Score or loss of single records, computed where the devices are. [n]"""
        now, sizes = self.now, self.world.sizes
        if len(records) and (
            int(records.client.max()) >= sizes.clients or int(records.item.max()) >= sizes.items
        ):
            raise DataError(
                f"asked about client {int(records.client.max())} and item "
                f"{int(records.item.max())} at most; there are {sizes.clients} clients and "
                f"{sizes.items} items, counted from 0."
            )
        return self.executor.query(self.method, now.state.public, now.vault, records, ask)

    def recommend(self, user: str | int, k: int = 20) -> list[Recommendation]:
        """The k best items a person does not have, with original ids and titles.

        A person without any data gets the most popular items, marked so.
        """
        if k < 1:
            raise ConfigError(f"recommend at least one item; got k = {k}.")
        client = self.labels.client(user, self.world.sizes.clients)
        if not bool(self.world.members[client]):
            raise ConsentError(
                f"user {user} has withdrawn, so there is nothing to recommend from. "
                f"They can join again."
            )
        items = torch.arange(self.world.sizes.items)
        everything = Records.of(torch.full_like(items, client), items)
        known = bool(self.world.available[client])
        scores = self.query(everything, "open") if known else self.popularity().double()
        best = top_k(scores.unsqueeze(0), None, min(k, len(items)))[0]
        return [
            Recommendation(
                self.labels.item_id(i),
                self.labels.title(i),
                float(scores[i]),
                "taste" if known else "popularity",
            )
            for i in best.tolist()
            if i >= 0
        ]

    def lent(self, user: str | int) -> Records:
        """Everything one person, given by original id, lends now; perhaps nothing."""
        client = self.labels.client(user, self.world.sizes.clients)
        return self.world.shared[self.world.shared.client == client]

    def records(self, user: str | int, items: Sequence[str | int]) -> Records:
        """Records of one person, from original ids of the person and of items."""
        client = self.labels.client(user, self.world.sizes.clients)
        found = [self.labels.item(i, self.world.sizes.items) for i in items]
        return Records.of([client] * len(found), found)


def _fits(method: Method, holdings: Holdings) -> None:
    if holdings.task not in method.tasks or holdings.task != method.model.task:
        raise BoundaryError(
            f"{type(method).__name__} with {type(method.model).__name__} works on "
            f"{method.model.task}, but this data is for {holdings.task}. "
            f"Choose another method, model or dataset."
        )


def _placed(state: ServerState, vault: Vault) -> ServerState:
    """The state on the device the vault is on."""
    device = vault.holdings.members.device
    public, own = (
        {name: value.to(device) for name, value in part.items()}
        for part in (state.public, state.own)
    )
    return replace(state, public=public, own=own)
