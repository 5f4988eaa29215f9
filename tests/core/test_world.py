"""The server's side: what it knows is the fold of the events, and leads to no device."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.world import Announced, Host, Sizes, World
from rescind.errors import ConsentError, RescindError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import hoarder, lendable, pairs, tiny_holdings

CLIENTS, ITEMS = 4, 5
ROWS = [(0, 0, 0), (0, 1, 0), (0, 2, 2), (1, 1, 0), (1, 3, 1), (2, 4, 0), (2, 4, 0), (3, 0, 2)]
# Mostly pairs that somebody holds at first, so that most requests are allowed.
request = st.lists(
    st.sampled_from([*(row[:2] for row in ROWS), (3, 1), (CLIENTS, ITEMS)]), max_size=3, unique=True
)
block = st.lists(
    st.tuples(st.integers(0, CLIENTS), st.integers(0, ITEMS), st.integers(0, 2)), max_size=8
)
step = st.one_of(
    st.tuples(st.sampled_from([Share, Share, Unshare, Erase]), request),
    st.tuples(st.sampled_from([Withdraw, Join]), st.integers(0, CLIENTS)),
    st.tuples(st.just(Arrive), block),
)


def records(wanted) -> Records:
    return Records.of([w[0] for w in wanted], [w[1] for w in wanted])


class Diary:
    """Devices and server as plain Python sets: what should be true after each event."""

    def __init__(self, rows, clients: int, items: int) -> None:
        self.now, self.clients, self.items = 0, clients, items
        self.held = {(c, i, s, 0) for c, i, s in rows}
        self.members = set(range(clients))
        self.shared: set[tuple[int, int]] = set()

    def has(self) -> set[tuple[int, int]]:
        return {row[:2] for row in self.held}

    def event(self, kind, what) -> Event:
        if kind is Arrive:
            labels = torch.tensor([w[2] for w in what], dtype=torch.int8)
            return Arrive(records(what), labels, CLIENTS + 1, ITEMS + 1)
        return kind(what) if kind in (Withdraw, Join) else kind(records(what))

    def allows(self, kind, what) -> bool:
        if kind is Unshare:
            return bool(what) and set(what) <= self.shared
        if kind is Share:  # held-out records cannot be shared
            return set(what) <= {row[:2] for row in self.held if row[2] == 0}
        if kind is Erase:
            return bool(what) and set(what) <= self.has()
        if kind is Withdraw:
            return what in self.members
        return kind is Arrive or what <= self.clients

    def write(self, kind, what) -> None:
        if kind is Share:
            self.shared |= set(what)
        elif kind is Unshare:
            self.shared -= set(what)
            self.held = {
                row
                for row in self.held
                if row[:2] not in set(what) or row[2] != 0 or row[3] == self.now
            }
        elif kind is Erase:
            self.shared -= set(what)
            self.held = {row for row in self.held if row[:2] not in set(what)}
        elif kind is Withdraw:
            self.members.discard(what)
            self.shared = {p for p in self.shared if p[0] != what}
            self.held = {row for row in self.held if row[0] != what}
        elif kind is Join:
            self.members.add(what)
            self.clients = max(self.clients, what + 1)
        else:
            self.now += 1
            self.members |= set(range(self.clients, CLIENTS + 1))
            self.clients, self.items = CLIENTS + 1, ITEMS + 1
            kept = {row for row in self.held if row[2] != 0 or row[:2] in self.shared}
            new = {(c, i, s, self.now) for c, i, s in what if c in self.members}
            self.held = kept | new

    def trains_on(self) -> set[int]:
        return {c for c, _, split, at in self.held if split == 0 and at == self.now}


@settings(max_examples=25)
@given(st.lists(step, max_size=12))
@example([(Share, [(0, 0), (0, 1), (2, 4)]), (Erase, [(0, 0)]), (Withdraw, 2), (Join, 2)])
@example([(Share, [(1, 1), (1, 3)]), (Unshare, [(1, 1)]), (Withdraw, 1), (Withdraw, 1)])
@example([(Share, [(0, 0)]), (Arrive, [(0, 1, 0), (4, 5, 0)]), (Erase, [(0, 0)]), (Join, 5)])
def test_what_the_server_knows_is_exactly_the_fold_of_the_events(steps):
    first = Holdings.of(records(ROWS), torch.tensor([r[2] for r in ROWS]), CLIENTS, ITEMS)
    fed = Federation.start(first, FedAvg(model=MF(dim=1)))
    diary = Diary(ROWS, CLIENTS, ITEMS)
    for kind, what in steps:
        event, before = diary.event(kind, what), fed.world.digest()
        if not diary.allows(kind, what):
            with pytest.raises(ConsentError):
                fed.apply(event)
            assert fed.world.digest() == before
            continue
        fed = fed.apply(event)
        diary.write(kind, what)
        world = fed.world
        assert pairs(world.shared) == diary.shared
        assert pairs(world.shared) == pairs(
            fed.now.vault.holdings.records[fed.now.vault.holdings.lent]
        )
        assert set(world.members.nonzero().squeeze(1).tolist()) == diary.members
        assert set(world.available.nonzero().squeeze(1).tolist()) == diary.trains_on()
        assert (world.sizes.clients, world.sizes.items) == (diary.clients, diary.items)
        assert world.block == diary.now


def reachable(value, seen: dict[int, object]) -> dict[int, object]:
    """Everything that attributes, dictionaries and sequences lead to."""
    if id(value) in seen or isinstance(value, str | bytes | int | float | bool | type(None)):
        return seen
    seen[id(value)] = value
    parts: list = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, torch.Tensor):
        parts = [value.grad_fn, value._base]
    elif is_dataclass(value):
        parts = [getattr(value, f.name) for f in fields(value)] + list(vars(value).values())
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    if callable(value):
        parts += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    for part in parts:
        reachable(part, seen)
    return seen


def memory(tensors) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


def lived(fed: Federation) -> Federation:
    """A federation in which everything happened once."""
    own = fed.now.vault.holdings
    mine = lendable(own, 0)
    fed = fed.apply(Share(lendable(own, 0, 1, 2))).run(2).apply(Unshare(mine))
    return fed.apply(Withdraw(1)).apply(Join(1)).apply(Erase(mine)).run(1)


def test_nothing_the_server_knows_leads_to_a_device(tiny_fed):
    fed = lived(tiny_fed)
    for known in (fed.world, fed.now.state, fed.events, fed.method):
        found = reachable(known, {}).values()
        assert not [f for f in found if isinstance(f, Holdings | Vault)]
    seen = memory(t for t in reachable(fed.world, {}).values() if isinstance(t, torch.Tensor))
    held = fed.now.vault.holdings
    mine = [v for v in vars(held.records).values() if isinstance(v, torch.Tensor)]
    columns = (*mine, held.split, held.block, held.lent)
    assert not seen & memory([*columns, *fed.now.vault.private.values()])


def test_the_search_for_devices_finds_one_that_is_there(tiny_fed):
    hosted = tiny_fed.apply(Host(6, tiny_holdings(clients=8, seed=3)))
    found = reachable(hosted.world, {}).values()
    assert [f for f in found if isinstance(f, Holdings)] == [hosted.world.hosted[0][1]]


def test_sharing_a_pair_again_adds_no_second_copy(tiny_fed):
    mine = lendable(tiny_fed.now.vault.holdings, hoarder())
    once = tiny_fed.apply(Share(mine))
    again = once.apply(Share(mine))
    assert len(again.world.shared) == len(once.world.shared) == len(mine)
    assert again.world.digest() == once.world.digest()


def test_the_worlds_digest_sees_each_thing_the_server_knows(tiny_fed):
    own = tiny_fed.now.vault.holdings
    worlds = [
        tiny_fed.world,
        tiny_fed.apply(Share(lendable(own, 0))).world,
        tiny_fed.apply(Withdraw(0)).world,
        tiny_fed.apply(Join(6)).world,
        tiny_fed.apply(Host(6, tiny_holdings(clients=8, seed=3))).world,
        tiny_fed.apply(Host(6, tiny_holdings(clients=8, seed=4))).world,
        tiny_fed.apply(Arrive(Records.none(), torch.zeros(0), 6, 12)).world,
        tiny_fed.apply(Arrive(Records.none(), torch.zeros(0), 6, 13)).world,
    ]
    assert len({world.digest() for world in worlds}) == len(worlds)


def test_a_world_does_not_change_when_another_is_made_of_it(tiny_fed):
    before, world = tiny_fed.world.digest(), tiny_fed.world
    lived(tiny_fed)
    world.apply(Join(9), world.announced)
    world.apply(Withdraw(2), world.announced)
    assert world.digest() == before


def test_a_client_is_hosted_once():
    flags = torch.ones(2, dtype=torch.bool)
    world = World.initial("ranking", Sizes(2, 12), Announced(flags, flags))
    data = tiny_holdings()
    hosted = world.apply(Host(3, data), world.announced)
    with pytest.raises(ConsentError, match="client 3 is a member, or hosted"):
        hosted.apply(Host(3, data), world.announced)
    gone = hosted.apply(Withdraw(3), world.announced)
    assert gone.hosted == ()
    assert gone.digest() == world.digest()


@pytest.mark.parametrize(
    ("number", "text"), [(1, "is a member"), (5, "no training data"), (77, "no training data")]
)
def test_a_number_that_is_taken_or_has_no_data_cannot_be_hosted(number, text):
    flags = torch.ones(2, dtype=torch.bool)
    world = World.initial("ranking", Sizes(2, 3), Announced(flags, flags))
    with pytest.raises(ConsentError, match=text):
        world.apply(Host(number, tiny_holdings()), world.announced)


def test_a_hosted_client_can_be_withdrawn(tiny_fed):
    hosted = tiny_fed.apply(Host(6, tiny_holdings(clients=8))).run(1)
    gone = hosted.apply(Withdraw(6))
    assert gone.world.hosted == ()
    assert gone.now.hosted == ()
    assert gone.world.members.all()


def test_what_is_erased_is_gone_from_hosted_data_too(tiny_fed):
    mine = lendable(tiny_fed.now.vault.holdings, 0)
    # The server as a client: a hosted client 6 that trains on the records that client 0 shared.
    copy = Holdings.of(mine + Records.of([6], [3]), torch.zeros(len(mine) + 1), 7, 12)
    gone = tiny_fed.apply(Share(mine)).apply(Host(6, copy)).apply(Erase(mine))
    assert not any(data.records.among(mine).any() for _, data in gone.world.hosted)
    assert not any(v.holdings.records.among(mine).any() for v in gone.now.hosted)


def test_a_federation_of_later_holdings_knows_their_block(tiny):
    later = tiny.apply(Arrive(Records.none(), torch.zeros(0), 6, 12))
    assert Federation.start(later, FedAvg(model=MF(dim=1))).world.block == 1


def test_a_federation_of_holdings_with_loans_knows_loans_and_members(tiny):
    own = lendable(tiny, 1)
    later = tiny.apply(Share(own)).apply(Withdraw(2))
    world = Federation.start(later, FedAvg(model=MF(dim=1))).world
    assert pairs(world.shared) == pairs(own)
    assert world.members.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("kind", [Erase, Withdraw])
def test_what_is_kept_of_a_forgotten_record_cannot_be_found_by_trying(tiny_fed, kind):
    own = tiny_fed.now.vault.holdings.records
    event = Withdraw(2) if kind is Withdraw else Erase(own[own.client == 2][:1])
    kept = tiny_fed.apply(event).events[-1][1]
    if kind is Withdraw:
        guesses = [Withdraw(client) for client in range(6)]
    else:
        guesses = [Erase(own[place : place + 1]) for place in range(len(own))]
    assert kept not in {guess.digest() for guess in guesses}


def test_a_loan_is_gone_from_the_server_however_it_ends(tiny_fed):
    own = tiny_fed.now.vault.holdings
    mine, theirs = lendable(own, 0), lendable(own, 1)
    lent = tiny_fed.apply(Share(mine + theirs))
    for end in (Unshare(mine), Erase(mine), Withdraw(0)):
        assert pairs(lent.apply(end).world.shared) == pairs(theirs)


def test_server_and_devices_agree_on_what_is_lent_of_a_pair_held_out_too():
    # The pair (0, 3) is trained on at time 1 and tested on at time 2; training records are shared.
    twice = Records.of([0, 0, 1], [3, 3, 2], [1, 2, 3])
    holdings = Holdings.of(twice, torch.tensor([0, 2, 0]), 2, 5)
    lent = Federation.start(holdings, FedAvg(model=MF(dim=1))).apply(Share(twice[ONE_AND_LAST]))
    device = lent.now.vault.holdings
    assert lent.world.shared.digest() == device.records[device.lent].digest()


ONE_AND_LAST = torch.tensor([0, 2])


def test_nobody_joins_under_a_number_that_is_hosted(tiny_fed):
    hosted = tiny_fed.apply(Host(6, tiny_holdings(clients=8)))
    with pytest.raises(ConsentError):
        hosted.apply(Join(6))


@pytest.mark.parametrize("data", [tiny_holdings(8, 40), replace(tiny_holdings(8), task="nodes")])
def test_hosted_data_must_fit_the_world(tiny_fed, data):
    with pytest.raises(RescindError):
        tiny_fed.apply(Host(6, data))
