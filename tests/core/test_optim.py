"""Optimisers for several clients at once, compared with torch.optim on each client."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rescind.core import jagged
from rescind.core.cohort import Cohort, Lot
from rescind.core.optim import LocalOptimiser, Step, server_move
from rescind.core.plan import Plan, Work
from rescind.core.state import Private
from worlds import randoms

ITEMS, DIM, BATCH = 6, 3, 2
# Five, one, no and three samples: three waves, in which fewer and fewer clients take part.
SAMPLES = [[0, 3, 5, 0, 2], [4], [], [1, 2, 3]]
CLIENTS = len(SAMPLES)
RATES = {"item": 0.3, "bias": 0.2, "user": 0.1}
EXACT = 1e-12


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def first_values() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    public = {"item": randoms(ITEMS, DIM), "bias": randoms(2, seed=1)}
    return public, {"user": randoms(CLIENTS, DIM, seed=2)}


def cohort() -> Cohort:
    distinct = [sorted(set(items)) for items in SAMPLES]
    owner = ints([c for c, items in enumerate(distinct) for _ in items])
    lot = Lot(owner, ints([i for items in distinct for i in items]), CLIENTS)
    return Cohort(torch.arange(CLIENTS), ITEMS, lot, lot)


def plan() -> Plan:
    owner = ints([c for c, items in enumerate(SAMPLES) for _ in items])
    item = ints([i for items in SAMPLES for i in items])
    return Plan.of(owner, CLIENTS, BATCH, None, {"item": item})


def train_together(step: Step, epochs: int, private: Private, keep: bool = False):
    """Returns the leaves by name, the shelf, and what the devices keep."""
    public, _ = first_values()
    work = Work.begin([plan()], RATES, ("item",), public, private.values, cohort())
    optimiser = LocalOptimiser.begin(work, private, keep)
    for _ in range(epochs):
        for batch in work.batches(plan()):
            leaves = work.leaves(RATES)
            score = (leaves["user"][batch.owner] * leaves["item"][batch.rows["item"]]).sum(1)
            score = score + leaves["bias"][batch.owner].sum(1)
            loss = jagged.segment_sum(functional.softplus(-score), batch.owner, CLIENTS)
            grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            optimiser.step(step, dict(zip(leaves, grads, strict=True)), batch)
    return work, optimiser.kept()


def optimiser_of(kind: str, groups: list, decay: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(groups, weight_decay=decay)
    return torch.optim.Adam(groups, weight_decay=decay)


def train_alone(client: int, kind: str, decay: float, rounds: int, epochs: int):
    """The same client by torch.optim: public leaves restart each round, private ones continue."""
    public, private = first_values()
    user = private["user"][client].clone().requires_grad_()
    mine = optimiser_of(kind, [{"params": [user], "lr": RATES["user"]}], decay)
    for _ in range(rounds):
        item, bias = (public[n].clone().requires_grad_() for n in ("item", "bias"))
        groups = [{"params": [p], "lr": RATES[n]} for n, p in (("item", item), ("bias", bias))]
        theirs = optimiser_of(kind, groups, decay)
        for _ in range(epochs):
            for start in range(0, len(SAMPLES[client]), BATCH):
                chosen = SAMPLES[client][start : start + BATCH]
                score = (item[chosen] * user).sum(1) + bias.sum()
                for optimiser in (mine, theirs):
                    optimiser.zero_grad()
                functional.softplus(-score).sum().backward()
                for optimiser in (mine, theirs):
                    optimiser.step()
    return {"item": item.detach(), "bias": bias.detach(), "user": user.detach()}


def assert_same(work: Work, client: int, expected: dict[str, torch.Tensor]) -> None:
    shelf = work.shelf
    assert shelf.item[shelf.owner == client].tolist() == sorted(set(SAMPLES[client]))
    rows = work.rows["item"].detach()[shelf.owner == client]
    there = expected["item"][sorted(set(SAMPLES[client]))]
    assert float((rows - there).abs().sum()) < EXACT
    assert float((work.dense["bias"].detach()[client] - expected["bias"]).abs().max()) < EXACT
    assert float((work.own["user"].detach()[client] - expected["user"]).abs().max()) < EXACT


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_clients_in_waves_move_as_each_does_alone_under_torch_optim(kind):
    private = Private(first_values()[1])
    work, kept = train_together(Step(RATES, kind), 3, private)
    assert plan().sizes == (5, 3, 1)
    assert kept == {}
    for client in range(CLIENTS):
        assert_same(work, client, train_alone(client, kind, 0.0, 1, 3))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_weight_decay_is_that_of_torch_on_the_rows_a_client_has(kind):
    work, _ = train_together(Step(RATES, kind, decay=0.1), 2, Private(first_values()[1]))
    for client in range(CLIENTS):
        assert_same(work, client, train_alone(client, kind, 0.1, 1, 2))


def test_kept_moments_go_on_for_private_values_and_end_for_shelf_rows():
    private = Private(first_values()[1])
    for _ in range(3):
        work, kept = train_together(Step({**RATES}, "adam"), 2, private, keep=True)
        # As `bias` restarts each round, its moments must too for this comparison.
        kept = {n: v for n, v in kept.items() if n.endswith("/user")}
        private = private.with_(user=work.own["user"].detach(), **kept)
    assert sorted(kept) == ["adam/first/user", "adam/second/user", "adam/steps/user"]
    assert kept["adam/steps/user"].flatten().tolist() == [18.0, 6.0, 0.0, 12.0]
    for client in range(CLIENTS):
        assert_same(work, client, train_alone(client, "adam", 0.0, 3, 2))


def test_a_name_without_a_gradient_and_a_name_not_asked_for_stay():
    public, private = first_values()
    work = Work.begin([plan()], RATES, ("item",), public, private, cohort())
    batch = next(work.batches(plan()))
    grads = {"user": torch.ones(CLIENTS, DIM, dtype=torch.float64), "bias": None}
    LocalOptimiser.begin(work, Private(private), False).step(
        Step({"user": 1.0, "bias": 1.0}), grads, batch
    )
    assert torch.equal(work.dense["bias"][0], public["bias"])
    assert torch.equal(work.rows["item"], public["item"][work.shelf.item])
    moved = work.own["user"].detach() - private["user"]
    assert float((moved + 1).abs().max()) < EXACT


def moved_by(kind: str, directions: list[torch.Tensor], rate: float = 0.1):
    public, own = {"w": randoms(3, 2), "still": torch.ones(1)}, {"note": torch.ones(1)}
    for direction in directions:
        public, own = server_move(public, own, {"w": direction}, kind, rate)
    assert torch.equal(public["still"], torch.ones(1))
    assert torch.equal(own["note"], torch.ones(1))
    return public["w"], own


DIRECTIONS = [randoms(3, 2, seed=seed) for seed in range(4, 9)]


def test_a_plain_server_adds_the_mean_update():
    expected = randoms(3, 2) + 0.1 * sum(DIRECTIONS)
    assert float((moved_by("plain", DIRECTIONS)[0] - expected).abs().max()) < EXACT
    assert moved_by("plain", DIRECTIONS)[1].keys() == {"note"}


def by_torch(optimiser: type, **settings) -> torch.Tensor:
    weight = randoms(3, 2).requires_grad_()
    moving = optimiser([weight], lr=0.1, **settings)
    for direction in DIRECTIONS:
        weight.grad = -direction
        moving.step()
    return weight.detach()


def test_the_servers_optimisers_are_those_of_torch():
    momentum, adam = by_torch(torch.optim.SGD, momentum=0.9), by_torch(torch.optim.Adam)
    assert float((moved_by("momentum", DIRECTIONS)[0] - momentum).abs().max()) < EXACT
    assert float((moved_by("adam", DIRECTIONS)[0] - adam).abs().max()) < EXACT


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_moments_grow_with_their_table(kind):
    short, long = randoms(3, 2, seed=4), randoms(5, 2, seed=5)
    public, own = server_move({"w": torch.zeros(3, 2)}, {}, {"w": short}, kind, 1.0)
    public["w"] = torch.cat([public["w"], torch.zeros(2, 2)])
    public, own = server_move(public, own, {"w": long}, kind, 1.0)
    assert own["server/first/w"].shape == (5, 2)
    fresh = (1 - 0.9) * long[3:] if kind == "adam" else long[3:]
    assert float((own["server/first/w"][3:] - fresh).abs().max()) < EXACT
