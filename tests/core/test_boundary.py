"""The privacy boundary: server functions are not given client data, and do without it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, field, fields, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from rescind import methods
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, Vault
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.records import Erase, Records, Share, Unshare
from rescind.core.run_state import RoundResult
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import Announced, World
from rescind.errors import BoundaryError
from rescind.methods.baselines.fedavg import FedAvg
from worlds import next_block, tiny_holdings

FORBIDDEN = {"private", "cohort", "vault", "holdings", "fed"}
FOUND = {"Method": Method, **methods.all_methods()}
RANKERS = {n: c for n, c in methods.all_methods().items() if "ranking" in c.tasks}
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
    class Curious(RankingMethod):
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
    """What a server receives: copies that share nothing."""
    totals = {n: v.clone() for n, v in total.totals.items()}
    touched = {n: v.clone() for n, v in total.touched.items()}
    return replace(total, totals=totals, touched=touched, who=total.who.clone())


@pytest.mark.parametrize("name", RANKERS)
def test_server_functions_run_where_there_are_no_holdings(name, monkeypatch):
    method = replace(RANKERS[name](), clients_per_round=4)
    fed = Federation.start(lending(), method, seed=1)
    moments: list[RoundResult] = []
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


# -- what crosses ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wire(InProcess):
    """Devices behind a wire: sums travel as bytes, and everything that leaves is written down."""

    crossed: list[tuple[str, Tensor, dict[str, Sum]]] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)

    def open(self, method, holdings, clock):
        vault = super().open(method, holdings, clock)
        self.announced.append(vault.announced)
        return vault

    def train(self, method, public, mail, vault, ids, roles, clock):
        sums, vault = super().train(method, public, mail, vault, ids, roles, clock)
        sums = {role: over_the_wire(total) for role, total in sums.items()}
        self.crossed.append(("train", ids, sums))
        return sums, vault

    def measure(self, method, public, vault, ids, metric):
        total = over_the_wire(super().measure(method, public, vault, ids, metric))
        self.crossed.append(("measure", ids, {"measure": total}))
        return total

    def apply(self, method, public, event, vault, clock):
        vault = super().apply(method, public, event, vault, clock)
        self.announced.append(vault.announced)
        return vault


# What a sum may hold beside tables of items: (method, name): why no person's kept record is in it.
ROOM_FOR_PEOPLE = {
    ("PDCFRSR", "contributed"): "perturbed copies of lent items; see the test on kept records",
}


def early(name: str, **more: int) -> Method:
    """A method that does all it ever does within a few rounds."""
    method = RANKERS[name]()
    soon = {
        n: v
        for n, v in {"warm_up": 1, "mend_after": 1, "mend_every": 1}.items()
        if hasattr(method, n)
    }
    return replace(method, **soon, **more)


def begin(
    name: str, executor: InProcess, holdings: Holdings | None = None, few: int = 4
) -> Federation:
    method = early(name, clients_per_round=few)
    return Federation.start(lending() if holdings is None else holdings, method, 1, executor)


@cache
def wired(name: str) -> tuple[Federation, Federation, Wire]:
    """Three rounds over a wire and a measurement, once for all tests: the first and the last."""
    wire = Wire()
    first = begin(name, wire)
    last = first.run(3)
    last.evaluate(k=5)
    return first, last, wire


@pytest.mark.parametrize("name", RANKERS)
def test_a_run_over_a_wire_of_sums_is_the_run_itself(name):
    """The loop needs nothing of the devices but copies of sums."""
    (_, one, wire), two = wired(name), begin(name, InProcess()).run(3)
    assert [kind for kind, _, _ in wire.crossed[:3]] == ["train"] * 3
    for side in ("public", "own"):
        left, right = getattr(one.now.state, side), getattr(two.now.state, side)
        assert left.keys() == right.keys()
        for table, value in left.items():
            assert torch.equal(value, right[table]), table
    with_wire = replace(one, executor=Wire())  # a new one: what crossed before is read by others
    assert with_wire.evaluate(k=5) == two.evaluate(k=5)


@pytest.mark.parametrize("name", RANKERS)
def test_only_sums_cross_and_they_name_only_who_was_asked(name):
    _, fed, wire = wired(name)
    assert len(wire.crossed) == 4
    for kind, ids, sums in wire.crossed:
        for role, total in sums.items():
            assert type(total) is Sum
            assert role in ("train", "measure")
            tensors = {**total.totals, **total.touched, "who": total.who}
            assert all(type(t) is Tensor and not t.requires_grad for t in tensors.values())
            assert set(total.who.tolist()) <= set(ids.tolist())
            assert total.clients <= len(ids)
            assert total.parts == () or fed.method.individual
            assert kind == "train" or not len(total.who)
            assert all(isinstance(n, int) for n in (total.up, total.down, *total.refused.values()))


def shapes(wire: Wire, name: str) -> dict[str, tuple[int, ...]]:
    """By name, of everything that crossed; what has room for people by permission is left out."""
    found: dict[str, tuple[int, ...]] = {}
    for kind, _, sums in wire.crossed:
        for total in sums.values():
            for drawer in (total.totals, total.touched):
                for table, value in drawer.items():
                    if (name, table) not in ROOM_FOR_PEOPLE:
                        found[f"{kind} {table} {value.dim()}"] = tuple(value.shape)
    return found


def rooms(name: str, cls: type[Method] | None = None) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of what crosses, when few or many take part and when few or many are there."""
    out = []
    for clients, few in ((9, 4), (9, 7), (13, 7)):
        if cls is None and (clients, few) == (9, 4):
            out.append(shapes(wired(name)[2], name))
            continue
        holdings = tiny_holdings(clients=clients, items=14)
        mine = holdings.records[(holdings.split == 0) & (holdings.records.client < 4)]
        wire = Wire()
        fed = begin(name, wire, holdings.apply(Share(mine)), few)
        if cls is not None:
            fed = replace(fed, method=cls(clients_per_round=few))
        fed.run(3).evaluate(k=5)
        out.append(shapes(wire, name))
    return out


@pytest.mark.parametrize("name", RANKERS)
def test_a_sum_has_no_room_for_single_people(name):
    """Its shapes do not depend on how many take part, nor on how many there are."""
    first, *others = rooms(name)
    assert first
    assert all(other == first for other in others)


@pytest.mark.parametrize("by", ["place", "number"])
def test_room_for_single_people_is_found_where_it_is_planted(by):
    @dataclass(frozen=True, kw_only=True)
    class Telling(FedAvg):
        def client_train(self, public, private, cohort, clock):
            update, private = super().client_train(public, private, cohort, clock)
            slots = len(cohort) if by == "place" else 9 + 4 * (int(cohort.ids.max()) > 8)
            index = cohort.train.owner if by == "place" else cohort.ids[cohort.train.owner]
            rows = Rows(cohort.train.owner, index, cohort.train.item[:, None].float(), slots)
            return Update(update.clients, {**update.entries, "told": rows}), private

        def client_sum(self, public, private, cohort, clock):
            return RankingMethod.client_sum(self, public, private, cohort, clock)

        def server_step(self, state, sums, world, clock):
            kept = {r: replace(s, totals={"item": s.totals["item"]}) for r, s in sums.items()}
            return super().server_step(state, kept, world, clock)

    first, *others = rooms("FedAvg", Telling)
    assert any("told" in table for table in first)
    assert any(other != first for other in others)


@pytest.mark.parametrize("name", RANKERS)
def test_what_crosses_is_the_sum_over_devices(name):
    """A sum of several is the sum of what each would send alone."""
    fed = begin(name, InProcess()).run(1)
    method, state, vault, clock = fed.method, fed.now.state, fed.now.vault, fed.clock.at(2)
    ids = method.server_sample(state, fed.world, clock)
    mail = method.server_mail(state, fed.world, ids, clock)

    def sent(some: Tensor) -> Sum | None:
        sums, _ = fed.executor.train(method, state.public, mail, vault, some, None, clock)
        return sums.get("train")

    together, alone = sent(ids), [sent(ids[n : n + 1]) for n in range(len(ids))]
    if together is None:
        assert not any(alone)
        return
    each = [one for one in alone if one is not None]
    assert together.weight == pytest.approx(sum(one.weight for one in each))
    for table, total in together.totals.items():
        parts = [one.totals[table] for one in each if table in one.totals]
        added = torch.stack([p.double() for p in parts]).sum(0)
        torch.testing.assert_close(total.double(), added, atol=1e-5, rtol=1e-4)


def test_kept_records_leave_no_trace_in_contributed_slots():
    """PDC-FRS: other kept records and the same loans contribute the same perturbed copies."""
    contributed, trained = [], []
    for swap in (False, True):
        wire = Wire()
        method = replace(early("PDCFRSR", clients_per_round=None), warm_up=0)  # one table for both
        Federation.start(lending_parts(swap), method, 1, wire).run(1)
        ((_, _, sums),) = wire.crossed
        contributed.append(sums["train"].totals["contributed"])
        trained.append(sums["train"].totals["item"])
    assert int((contributed[0] > 0).sum()) > 4
    assert torch.equal(*contributed)
    assert not torch.equal(*trained)  # what they keep does move the item table, in the sum


def lending_parts(swap: bool) -> Holdings:
    """Four people lend half of what they train on; with `swap` they keep other things."""
    holdings = tiny_holdings(clients=9, items=14)
    records, train = holdings.records, (holdings.split == 0) & (holdings.records.client < 4)
    lent = train & (records.item % 2 == 0)
    if swap:
        gone = train & ~lent & (records.item % 4 == 1)
        holdings, keep = holdings.without(records[gone]), ~gone
        records, lent = records[keep], lent[keep]
    return holdings.apply(Share(records[lent]))


@pytest.mark.parametrize("name", RANKERS)
def test_devices_announce_two_bits_each(name):
    wire = Wire()
    fed = begin(name, wire).run(1)
    own = fed.now.vault.holdings
    lent = own.records[own.lent & (own.records.client == 1)]
    fed = fed.apply(Unshare(lent)).apply(Erase(lent))
    assert len(wire.announced) == 3
    for said in wire.announced:
        assert {f.name for f in fields(said)} == {"available", "keeps"}
        for bits in (said.available, said.keeps):
            assert (bits.dtype, tuple(bits.shape)) == (torch.bool, (9,))
    held = fed.now.vault.holdings
    rows = zip(held.records.client.tolist(), held.split.tolist(), held.lent.tolist(), strict=True)
    training = [(client, loan) for client, split, loan in rows if split == 0]
    trains, keeps = {c for c, _ in training}, {c for c, loan in training if not loan}
    assert set(fed.world.available.nonzero().squeeze(1).tolist()) == trains
    assert set(fed.world.announced.keeps.nonzero().squeeze(1).tolist()) == keeps
    assert keeps < trains


# -- worlds at the edge ---------------------------------------------------------------------------


def nothing_shared(holdings: Holdings) -> Holdings:
    return holdings


def everything_shared(holdings: Holdings) -> Holdings:
    return holdings.apply(Share(holdings.records[holdings.split == 0]))


def one_item_shared(holdings: Holdings) -> Holdings:
    mine = (holdings.split == 0) & (holdings.records.item == 3)
    return holdings.apply(Share(holdings.records[mine]))


def one_record_shared(holdings: Holdings) -> Holdings:
    return holdings.apply(Share(holdings.records[(holdings.split == 0).nonzero()[:1, 0]]))


def most_without_data(holdings: Holdings) -> Holdings:
    """Two people train, and one of them lends it all; everybody is measured."""
    gone = (holdings.split == 0) & (holdings.records.client > 1)
    rest = holdings.without(holdings.records[gone])
    return rest.apply(Share(rest.records[(rest.split == 0) & (rest.records.client == 0)]))


def items_nobody_has(holdings: Holdings) -> Holdings:
    return replace(everything_shared(holdings), items=holdings.items + 5)


def only_one_device(holdings: Holdings) -> Holdings:
    rest = holdings.without(holdings.records[holdings.records.client != 2])
    return rest.apply(Share(rest.records[(rest.split == 0).nonzero()[:1, 0]]))


EDGES = [nothing_shared, everything_shared, one_item_shared, one_record_shared,
         most_without_data, items_nobody_has, only_one_device]  # fmt: skip


@pytest.mark.parametrize("name", RANKERS)
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e.__name__)
def test_a_world_at_the_edge_trains_and_is_measured(name, edge):
    holdings = edge(tiny_holdings(clients=9, items=14))
    fed = Federation.start(holdings, early(name), seed=1).run(2)
    assert fed.now.state.round == 2
    for values in (fed.now.state.public, fed.now.state.own, fed.now.vault.private):
        for table, value in values.items():
            assert bool(value.isfinite().all()), table
    measured = fed.evaluate(k=5)
    assert all(0 <= value <= 1 for value in measured.values()), measured  # no NaN is
