"""The server's side: what it knows is the fold of the events, and leads to no device."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
from rescind.core.world import Announced, Host, Sizes, World
from rescind.errors import ConsentError, RescindError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import lendable, pairs, tiny_holdings


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
    with pytest.raises(ConsentError):
        hosted.apply(Join(3), world.announced)


@pytest.mark.parametrize(
    ("number", "text"), [(1, "is a member"), (5, "no training data"), (77, "no training data")]
)
def test_a_number_that_is_taken_or_has_no_data_cannot_be_hosted(number, text):
    flags = torch.ones(2, dtype=torch.bool)
    world = World.initial("ranking", Sizes(2, 3), Announced(flags, flags))
    with pytest.raises(ConsentError, match=text):
        world.apply(Host(number, tiny_holdings()), world.announced)


def test_what_is_erased_is_gone_from_hosted_data_too(tiny_fed):
    mine = lendable(tiny_fed.now.vault.holdings, 0)
    # The server as a client: a hosted client 6 that trains on the records that client 0 shared.
    copy = Holdings.of(mine + Records.of([6], [3]), torch.zeros(len(mine) + 1), 7, 12)
    gone = tiny_fed.apply(Share(mine)).apply(Host(6, copy)).apply(Erase(mine))
    assert not any(data.records.among(mine).any() for _, data in gone.world.hosted)
    assert not any(v.holdings.records.among(mine).any() for v in gone.now.hosted)


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


@pytest.mark.parametrize("data", [tiny_holdings(8, 40), replace(tiny_holdings(8), task="nodes")])
def test_hosted_data_must_fit_the_world(tiny_fed, data):
    with pytest.raises(RescindError):
        tiny_fed.apply(Host(6, data))
