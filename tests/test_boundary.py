"""The privacy boundary: server functions are not given client data, and do without it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, replace

import pytest
import torch

from rescind import methods
from rescind.clock import Clock
from rescind.errors import BoundaryError
from rescind.executor import Vault
from rescind.federation import Federation, Moment
from rescind.holdings import Holdings
from rescind.method import Method
from rescind.records import Records, Share
from rescind.state import Private, ServerState
from rescind.update import Sum
from rescind.world import Announced, World
from worlds import next_block, tiny_holdings

FORBIDDEN = {"private", "cohort", "vault", "holdings", "fed"}
FOUND = {"Method": Method, **methods.found()}
RANKERS = {n: c for n, c in methods.found().items() if "ranking" in c.tasks}
CLOCK = Clock(1)


def server_functions(cls: type) -> dict[str, object]:
    return {n: f for n, f in inspect.getmembers(cls, callable) if n.startswith("server_")}


def asked_for(function) -> set[str]:
    """The names of the parameters of a function and of every function defined inside it."""
    names = set(inspect.signature(function).parameters)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return names | {a.arg for node in ast.walk(tree) if isinstance(node, ast.arguments)
                    for a in [*node.posonlyargs, *node.args, *node.kwonlyargs]}  # fmt: skip


def reached_for(function) -> set[str]:
    """The attributes and names a function's source reads that belong to the clients' side."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    calls = {name for name in read if name.startswith("client_")}
    return (read & {"vault", "holdings", "Holdings", "Vault"}) | calls


@pytest.mark.parametrize("name", FOUND)
def test_no_server_function_has_a_parameter_for_client_data(name):
    functions = server_functions(FOUND[name])
    assert {"server_init", "server_sample", "server_mail", "server_step", "server_turn"} <= set(
        functions
    )
    for verb, function in functions.items():
        assert not asked_for(function) & FORBIDDEN, verb


@pytest.mark.parametrize("name", FOUND)
def test_no_server_function_calls_the_clients_half(name):
    for verb, function in server_functions(FOUND[name]).items():
        assert not reached_for(function), verb


def test_the_reading_of_signatures_finds_what_is_planted():
    @dataclass(frozen=True, kw_only=True)
    class Curious(Method):
        def server_step(self, state, sums, world, clock, private=None):
            return self.client_train(state, private, world.hosted[0].holdings, clock)

    assert asked_for(Curious.server_step) & FORBIDDEN == {"private"}
    assert reached_for(Curious.server_step) == {"client_train", "holdings"}


def lending() -> Holdings:
    """Nine people, four of whom lend what they train on."""
    holdings = tiny_holdings(clients=9, items=14)
    mine = holdings.records[(holdings.split == 0) & (holdings.records.client < 4)]
    return holdings.apply(Share(mine))


def copied(records: Records) -> Records:
    return Records(records.client.clone(), records.item.clone(), records.time.clone())


def server_side(fed: Federation) -> tuple[World, ServerState]:
    """World and state as they would arrive over a wire: copies that share nothing."""
    world = fed.world
    announced = Announced(world.available.clone(), world.announced.keeps.clone())
    fresh = World(world.task, world.sizes, world.members.clone(), announced, copied(world.shared))
    state = fed.now.state
    public = {n: v.clone() for n, v in state.public.items()}
    own = {n: v.clone() for n, v in state.own.items()}
    return replace(fresh, block=world.block), replace(state, public=public, own=own)


def over_the_wire(total: Sum) -> Sum:
    """What a server receives; single updates come beside it where a method asks for them."""
    return replace(Sum.from_bytes(total.to_bytes()), parts=total.parts)


@pytest.mark.parametrize("name", RANKERS)
def test_server_functions_run_where_there_are_no_holdings(name, monkeypatch):
    method = replace(RANKERS[name](), clients_per_round=4)
    fed = Federation.start(lending(), method, seed=1)
    moments: list[Moment] = []
    after = fed.run(1, watch=[moments.append])
    world, state = server_side(fed)
    later, _ = server_side(after.apply(next_block(clients=10, items=16)))
    sums = {role: over_the_wire(total) for role, total in moments[0].sums.items()}
    expected = after.now.state.public
    del fed, after, moments

    def closed(self, attribute):
        raise BoundaryError(f"server code reached for client data: {attribute}")

    for kind in (Holdings, Vault, Private):
        monkeypatch.setattr(kind, "__getattribute__", closed)
    first, clock = method.server_init(world, CLOCK), CLOCK.at(1)
    assert first.public.keys() == state.public.keys()
    ids = method.server_sample(state, world, clock)
    assert len(ids) == 4
    asked = inspect.signature(method.server_mail).parameters
    method.server_mail(state, world, ids, *([clock] if "clock" in asked else []))
    stepped = method.server_step(state, sums, world, clock)
    assert stepped.round == 1
    for table, value in expected.items():
        assert torch.equal(stepped.public[table], value)
    grown = method.server_turn(stepped, later, clock)
    for table in method.model.tables:
        assert len(grown.public[table]) == 16


def test_closed_holdings_really_are_closed(monkeypatch):
    holdings = tiny_holdings()

    def closed(self, attribute):
        raise BoundaryError(attribute)

    monkeypatch.setattr(Holdings, "__getattribute__", closed)
    with pytest.raises(BoundaryError, match="records"):
        _ = holdings.records
