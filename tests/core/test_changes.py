"""Long random histories of events, beside the slow and obvious version: lists of rows in Python.

Federations share rows, and merge changes late. So nothing is read while events follow one another,
and federations of the past are looked at when all is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescind.core import table
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN, Holdings
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF

CLIENTS, ITEMS, EVENTS = 12, 9, 60
Random = Any
"""Drawn by hypothesis, with the functions of `random`."""


@dataclass(frozen=True)
class Row:
    client: int
    item: int
    time: int
    split: int
    block: int = 0
    lent: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        return self.client, self.item


@dataclass
class Plain:
    """Devices, the server's copy and the origin as lists, made anew by every event."""

    rows: list[Row]
    members: set[int]
    clients: int
    shared: list[tuple[int, int, int]]
    origin: list[Row]
    now: int = 0

    def apply(self, event: Event) -> Plain:
        rows, origin, shared, members = self.rows, self.origin, self.shared, set(self.members)
        clients, now = self.clients, self.now
        if isinstance(event, Arrive):
            named = event.records
            columns = (named.client.tolist(), named.item.tolist(), named.time.tolist())
            now, clients = now + 1, event.clients
            new = [Row(*row, now) for row in zip(*columns, event.split.tolist(), strict=True)]
            members |= set(range(self.clients, clients))
            rows = [r for r in rows if r.split != TRAIN or r.lent]
            rows = [r for r in rows + new if r.client in members]
            rows = sorted(rows, key=lambda r: r.client)
            return Plain(rows, members, clients, shared, rows, now)
        if isinstance(event, Withdraw | Join):
            who = event.client
            if isinstance(event, Join):
                return Plain(rows, members | {who}, max(clients, who + 1), shared, origin, now)
            rows, origin = ([r for r in some if r.client != who] for some in (rows, origin))
            shared = [s for s in shared if s[0] != who]
            return Plain(rows, members - {who}, clients, shared, origin, now)
        named = set(zip(event.records.client.tolist(), event.records.item.tolist(), strict=True))
        if isinstance(event, Share):
            asked = zip(*columns_of(event.records), strict=True)
            known = {s[:2] for s in shared}
            shared = sorted([*shared, *(a for a in asked if a[:2] not in known)])
            lend = {r for r in rows if r.pair in named and r.split == TRAIN}
            rows = [replace(r, lent=True) if r in lend else r for r in rows]
            return Plain(rows, members, clients, shared, origin, now)
        shared = [s for s in shared if s[:2] not in named]
        if isinstance(event, Unshare):
            rows = [replace(r, lent=False) if r.pair in named else r for r in rows]
            rows = [r for r in rows if r.split != TRAIN or r.block == now or r.lent]
        else:
            rows, origin = ([r for r in some if r.pair not in named] for some in (rows, origin))
        return Plain(rows, members, clients, shared, origin, now)

    def lot(self, name: str) -> list[tuple[int, int]]:
        inside = {
            "own": lambda r: r.block == self.now and r.split == TRAIN,
            "unshared": lambda r: r.block == self.now and r.split == TRAIN and not r.lent,
            "known": lambda r: r.block == self.now and r.split != TEST,
            "had": lambda r: True,
            "test": lambda r: r.block == self.now and r.split == TEST,
        }[name]
        return sorted({r.pair for r in self.rows if inside(r)})


def columns_of(records: Records) -> tuple[list[int], list[int], list[int]]:
    return records.client.tolist(), records.item.tolist(), records.time.tolist()


def rows_of(held: Holdings) -> list[Row]:
    marks = (held.split.tolist(), held.block.tolist(), held.lent.tolist())
    return [Row(*row) for row in zip(*columns_of(held.records), *marks, strict=True)]


def drawn_rows(chance: Random, clients: int, items: int) -> list[Row]:
    """A few rows of each client, some of them twice; one client has none."""
    rows = []
    for client in range(1, clients):
        for _ in range(chance.randint(1, 6)):
            time, split = chance.randint(0, 50), chance.choice([TRAIN, TRAIN, TRAIN, 1, TEST])
            rows.append(Row(client, chance.randrange(items), time, split))
    return rows


def next_event(chance: Random, plain: Plain) -> Event | None:
    """Draw an event that is allowed, mostly of one client."""
    many = chance.choice([1, 1, 1, 2, 40])
    kind = chance.choice([Share, Share, Share, Unshare, Unshare, Erase, Withdraw, Join, Arrive])
    if kind is Arrive and chance.random() < 0.2:
        clients = plain.clients + chance.randint(0, 2)
        new = drawn_rows(chance, clients, ITEMS)
        named = Records.of([r.client for r in new], [r.item for r in new], [r.time for r in new])
        return Arrive(named, torch.tensor([r.split for r in new]), clients, ITEMS)
    if kind is Withdraw and chance.random() < 0.4:
        return Withdraw(chance.choice(sorted(plain.members)))
    if kind is Join:
        return Join(chance.randint(0, plain.clients))
    if kind not in (Share, Unshare, Erase):
        return None
    held_out = {r.pair for r in plain.rows if r.split != TRAIN}
    lent = {s[:2] for s in plain.shared}
    able = {
        Share: [r for r in plain.rows if r.pair not in held_out],
        Unshare: [r for r in plain.rows if r.lent and r.pair in lent],
        Erase: plain.rows,
    }[kind]
    if not able:
        return None
    some = chance.sample(able, min(many, len(able)))
    columns = ([r.client for r in some], [r.item for r in some], [r.time for r in some])
    return kind(Records.of(*columns))


def assert_same(fed: Federation, plain: Plain) -> None:
    held = fed.now.vault.holdings
    everyone = torch.arange(plain.clients)
    for name in ("own", "unshared", "known", "test", "had"):
        lot, wanted = held.of_clients(name, everyone.flip(0)), plain.lot(name)
        owner = (plain.clients - 1 - lot.owner).tolist()
        assert sorted(zip(owner, lot.item.tolist(), strict=True)) == wanted
        _, count, item = held.lot(name)
        assert item.tolist() == [pair[1] for pair in wanted]
        assert count.tolist() == [sum(p[0] == c for p in wanted) for c in range(plain.clients)]
    able = {c for c, _ in plain.lot("own")} & plain.members
    assert set(fed.world.available.nonzero().squeeze(1).tolist()) == able
    keeps = {c for c, _ in plain.lot("unshared")} & plain.members
    assert set(fed.world.announced.keeps.nonzero().squeeze(1).tolist()) == keeps
    per_item = [sum(r.item == i for r in plain.rows) for i in range(ITEMS)]
    counted = held.records.per_item.tolist()
    assert counted + [0] * (ITEMS - len(counted)) == per_item
    assert len(held.records) == len(plain.rows)
    assert rows_of(held) == plain.rows
    assert sorted(zip(*columns_of(fed.world.shared), strict=True)) == sorted(plain.shared)
    assert fed.world.shared.client.tolist() == sorted(fed.world.shared.client.tolist())
    origin = [replace(row, lent=False) for row in rows_of(fed.past.origin)]
    assert origin == [replace(row, lent=False) for row in plain.origin]


@pytest.mark.parametrize("most", [2, pytest.param(1024, marks=pytest.mark.slow)])
@settings(max_examples=8)
@given(chance=st.randoms(use_true_random=False))
def test_long_histories_give_what_rebuilding_gives(chance, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "MOST", most)
        follow_events(chance)


def follow_events(chance: Random) -> None:
    rows = drawn_rows(chance, CLIENTS, ITEMS)
    named = Records.of([r.client for r in rows], [r.item for r in rows], [r.time for r in rows])
    data = Holdings.of(named, torch.tensor([r.split for r in rows]), CLIENTS, ITEMS)
    for name in ("known", "test", "had"):  # so that these are carried on, too
        data.lot(name)
    assert len(data.records.per_item) <= ITEMS
    fed = Federation.start(data, FedAvg(model=MF(dim=1)))
    plain = Plain(rows, set(range(CLIENTS)), CLIENTS, [], rows)
    past = [(fed, plain)]
    while len(past) <= EVENTS:
        if (event := next_event(chance, plain)) is None:
            continue
        fed, plain = fed.apply(event), plain.apply(event)
        past.append((fed, plain))
        if chance.random() < 0.1:  # else nothing is merged before the end
            assert_same(fed, plain)
    chance.shuffle(past)
    for old, wanted in past:
        assert_same(old, wanted)
