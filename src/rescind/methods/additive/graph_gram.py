"""GraphGram: nodes classified from a sum over clients, solved in closed form. Forgets exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.claims import AFTER, BEFORE, NEXT, OPEN, PUBLISHED, Claims
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.gate import value_of
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.records import Erase, Withdraw
from rescind.core.request import Request
from rescind.core.run_state import RoundResult
from rescind.core.signatures import Sent, Sums
from rescind.core.state import Private, ServerState
from rescind.core.tasks import nodes
from rescind.core.update import Sum, Update
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._additive import sum_digest
from rescind.methods.additive._graph_sums import part_of, weights_of
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive._solving import half
from rescind.models.hops import UNIT, Hops

SUM = "gram/nodes"
"""Key of the sum of all parts: P and R as one lower half. [(d + K) (d + K + 1) / 2] int64"""
PART = "part/"
"""Prefix of the part of one client, as the server keeps it."""


@dataclass(frozen=True, kw_only=True)
class GraphGram(Method):
    """Ridge regression of node classes on sums that can be taken back (sums.md section 1).

    A client sends P = H^T H and R = H^T Y of its training nodes, in whole numbers; H has the rows
    of `Hops`. The server adds them and solves W = (P + ridge)^-1 R. A client that leaves is
    subtracted; for a node, an edge or a label that is erased the device sends its part anew.
    """

    tasks: ClassVar[tuple[str, ...]] = ("nodes",)
    paper: ClassVar[str] = "ours; ridge regression of propagated features on sums"
    unlearning: ClassVar[str] = "Subtract"
    works_without_devices: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    seedless: ClassVar[bool] = True
    unit: ClassVar[float] = UNIT * UNIT

    model: Hops = Hops()
    ridge: float = 2.0
    """Lambda, with rows of length about 1."""
    keep_parts: bool = True
    """The server keeps each client's part, so that a client can leave while offline. False: it sees
    sums only (for secure aggregation), and forgetting is one more round of those who remain."""
    max_width: int = 10_000
    """Longest row allowed: a part has 4 bytes per pair of columns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, inf)", "ridge")

    @property
    def individual(self) -> bool:  # type: ignore[override]
        return self.keep_parts

    def server_init(self, world: World, clock: Clock) -> ServerState:
        sizes, device = world.sizes, world.members.device
        width = self.must_fit(sizes.features)
        own = {
            SUM: torch.zeros(half(width + sizes.classes), dtype=torch.int64, device=device),
            "counted": torch.zeros(sizes.clients, dtype=torch.bool, device=device),
            "owes": torch.zeros(sizes.clients, dtype=torch.bool, device=device),
        }
        return ServerState(dict(self.model.public(sizes, clock)), own)

    def must_fit(self, features: int) -> int:
        """Return the length of a row, or raise if it is longer than allowed."""
        width = self.model.width(features)
        if width > self.max_width:
            raise ConfigError(
                f"GraphGram adds every pair of {width} columns, and max_width is {self.max_width}. "
                f"Raise it, or use random features: Hops(random=2000)."
            )
        return width

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Select clients that are not counted yet, and those that owe a part. [k] sorted"""
        flags = _flags(state.own, world)
        asked = world.available & (~flags["counted"] | flags["owes"])
        left = replace(world, announced=replace(world.announced, available=asked))
        return super().server_sample(state, left, clock)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        after = self.server_absorb(state, sums, world)
        return after.next(after.public)

    def server_absorb(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, gone: tuple[int, ...] = ()
    ) -> ServerState:
        """Return the state with new parts instead of old ones, and without clients that left."""
        own = {**state.own, **_flags(state.own, world)}
        total = own[SUM].clone()
        for client in gone:
            if (old := own.pop(_key(client), None)) is not None:
                total -= old
            if client < len(own["counted"]):
                own["counted"][client] = own["owes"][client] = False
        for role, summed in sums.items():
            if not self.keep_parts and SUM in summed.totals:
                total += summed.totals[SUM]
            for ids, update in summed.parts:
                parts = value_of(update.entries[SUM])
                for client, part in zip(ids.tolist(), parts, strict=True):
                    total += part - own.get(_key(client), 0)
                    own[_key(client)] = _narrow(part)
            if role != "host":
                own["counted"][summed.who], own["owes"][summed.who] = True, False
        own[SUM] = total
        if torch.equal(total, state.own[SUM]):
            return replace(state, own=own)
        weights = weights_of(total, world.sizes.classes, self.ridge).float()
        return replace(state, own=own, public={WEIGHTS: weights.contiguous()})

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Begin a block from zero: devices have deleted the nodes of the last one."""
        return replace(self.server_init(world, clock), round=state.round)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Return each client's part, whole: it replaces what was counted before."""
        return Update(len(cohort), {SUM: self.client_parts(cohort)}), private

    def client_parts(self, cohort: Cohort) -> Tensor:
        """Return the parts of a cohort. [C, size] int64, or int32 if they fit"""
        graph, train = nodes.graph_of(cohort), cohort.train
        node = graph.find(train.item)
        size = half(self.model.width(graph.features) + graph.classes)
        parts = torch.zeros(len(cohort), size, dtype=torch.int64, device=cohort.ids.device)
        for place in range(len(cohort)):
            mine = node[train.owner == place]
            if len(mine):
                parts[place] = part_of(self.model, graph, mine)
        return _narrow(parts)

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract a client, or replace the part of a device that erased something."""
        event = request.event
        if not self.keep_parts:
            return super().forget(fed, request)
        after = fed.apply(event)
        if not fed.now.state.round:
            return after
        state, world, vault = after.now.state, after.world, after.now.vault
        people = torch.tensor([], dtype=torch.int64, device=world.members.device)
        gone: tuple[int, ...] = ()
        if isinstance(event, Withdraw):
            gone = (event.client,)
        elif isinstance(event, Erase):
            asked = request.people.to(people.device)
            asked = asked[_flags(state.own, world)["counted"][asked]]
            trains = world.available[asked]
            gone, people = tuple(asked[~trains].tolist()), asked[trains]
        absent = torch.isin(people, people.new_tensor(list(request.away)))
        state = _owing(state, world, people[absent])
        sums: dict[str, Sum] = {}
        if len(here := people[~absent]):
            public, clock = state.public, fed.clock.at(state.round)
            sums, vault = fed.executor.train(self, public, None, vault, here, None, clock)
        hosts, hosted = after._train_hosted(self, after.now, {}, fed.clock)
        state = self.server_absorb(state, {**sums, **hosts}, world, gone)
        after = replace(after, now=replace(after.now, state=state, vault=vault, hosted=hosted))
        for progress in fed.watch if sums else ():  # a device was asked
            progress(RoundResult(after.now, sums, None, after.past))
        return after

    def settled(self, fed: Federation) -> bool:
        return not bool(fed.now.state.own["owes"].any())

    def claims(self, before: Federation, after: Federation) -> Claims:
        owed = int(after.now.state.own["owes"].sum())
        limit = f"Parts of {owed} clients that could not be reached, until they are online."
        return Claims(
            {OPEN: f"{owed} owed, 0 lost", PUBLISHED: "all weights; no noise", NEXT: "made"},
            bound={AFTER: sum_digest(after.now.state.own)},
            sealed={BEFORE: sum_digest(before.now.state.own)},
            not_covered=(limit,) if owed else (),
        )

    def rebuilt(self, fed: Federation) -> str:
        total = torch.zeros_like(fed.now.state.own[SUM])
        everyone = (fed.now.state.own["counted"] & fed.world.available).nonzero().squeeze(1)
        asked = [(fed.now.vault, ids) for ids in torch.split(everyone, 1)]
        numbers = [everyone.new_tensor([number]) for number, _ in fed.world.hosted]
        for vault, ids in [*asked, *zip(fed.now.hosted, numbers, strict=True)]:
            if len(ids):
                cohort = InProcess(str(ids.device)).cohort(self, vault, ids)
                total += self.client_parts(cohort).sum(0)
        return sum_digest({SUM: total})


def _key(client: int) -> str:
    return f"{PART}{client:04d}"


def _narrow(parts: Tensor) -> Tensor:
    """Return whole numbers in four bytes if they fit: half of the message."""
    low, high = parts.aminmax() if parts.numel() else (0, 0)
    fits = int(low) >= -(2**31) and int(high) < 2**31
    return parts.to(torch.int32 if fits else torch.int64, copy=True)


def _flags(own: Params, world: World) -> dict[str, Tensor]:
    """Return copies of the flags, with room for new clients. [clients] bool"""
    flags = {}
    for name in ("counted", "owes"):
        flags[name] = own[name].new_zeros(max(world.sizes.clients, len(own[name])))
        flags[name][: len(own[name])] = own[name]
    return flags


def _owing(state: ServerState, world: World, absent: Tensor) -> ServerState:
    flags = _flags(state.own, world)
    flags["owes"][absent] = True
    return replace(state, own={**state.own, **flags})
