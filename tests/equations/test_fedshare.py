"""FedShare, learning phase: the equations against slow, obvious versions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind import params
from rescind.federation import Federation
from rescind.methods.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.models.shared_graph import SharedGraph, graph_of
from rescind.records import Erase, Share, Unshare
from worlds import lendable, next_block, randoms, tiny_holdings


def dense_propagation(graph: SharedGraph, user, item, layers):
    """LightGCN by the whole normalised adjacency matrix."""
    size = graph.users + graph.items
    edges = torch.zeros(size, size, dtype=user.dtype)
    edges[graph.user, graph.users + graph.item] = 1
    edges = edges + edges.T
    degree = edges.sum(1).clamp(min=1)
    normal = edges / torch.sqrt(degree[:, None] * degree[None, :])
    layer = torch.cat([user, item])
    total = layer.clone()
    for _ in range(layers):
        layer = normal @ layer
        total = total + layer
    total = total / (layers + 1)
    return total[: graph.users], total[graph.users :]


@pytest.fixture
def graph() -> SharedGraph:
    user, item = [0, 0, 2, 2, 2, 3], [1, 4, 0, 1, 5, 4]
    return SharedGraph(torch.tensor(user), torch.tensor(item), torch.arange(5), 7)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_propagation_is_lightgcn_on_the_whole_adjacency_and_so_is_its_gradient(graph, layers):
    user = randoms(5, 4, seed=1).float().requires_grad_()
    item = randoms(7, 4, seed=2).float().requires_grad_()
    ours = graph.propagate(user, item, layers)
    theirs = dense_propagation(graph, user, item, layers)
    weight = [randoms(*t.shape, seed=3).float() for t in ours]
    for one, two in zip(ours, theirs, strict=True):
        assert_close(one, two)
    grads = [
        torch.autograd.grad(
            sum((t * w).sum() for t, w in zip(out, weight, strict=True)), [user, item]
        )
        for out in (ours, theirs)
    ]
    for one, two in zip(*grads, strict=True):
        assert_close(one, two)


def test_infonce_eq_17_by_hand(graph):
    # Two items with orthogonal unit views, local = global: logits [[5, 0], [0, 5]] at tau = .2,
    # so each loss is -log(e^5 / (e^5 + 1)) = log(1 + e^-5).
    method = FedShare(model=LightGCN(dim=2), contrast_items=2)
    two = SharedGraph(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.arange(1), 2)
    view = torch.eye(2) * torch.tensor([[3.0], [0.5]])  # lengths do not matter
    clock = Federation.start(tiny_holdings(), method).clock
    loss = method._contrast(two, view, view, clock)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-5)), rel=1e-5)


def test_server_bpr_is_taken_against_items_that_are_not_shared(graph):
    clock = Federation.start(tiny_holdings(), FedShare()).clock.at(3)
    owner, positive, negative = graph.sample(2000, clock)
    shared = {(int(u), int(i)) for u, i in zip(graph.user, graph.item, strict=True)}
    assert {(int(u), int(i)) for u, i in zip(owner, positive, strict=True)} == shared
    assert not {(int(u), int(i)) for u, i in zip(owner, negative, strict=True)} & shared


def begin(method: FedShare, share: bool = True) -> Federation:
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    return fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, 2))) if share else fed


SMALL = FedShare(model=LightGCN(dim=4), clients_per_round=4, refine_pairs=32, contrast_items=8)


def table(fed: Federation) -> str:
    return params.digest({"item": fed.now.state.public["item"]})


def test_with_nothing_shared_the_server_only_averages():
    alone = replace(SMALL, refine_bpr=0.0, contrast=0.0)
    assert table(begin(SMALL, share=False).run(3)) == table(begin(alone, share=False).run(3))
    assert table(begin(SMALL).run(3)) != table(begin(alone).run(3))


def test_each_part_of_the_refinement_is_felt_and_the_control_leaves_the_graph_out():
    runs = {
        name: table(begin(method).run(3))
        for name, method in {
            "whole": SMALL,
            "w/o CL": replace(SMALL, contrast=0.0),
            "w/o server BPR": replace(SMALL, refine_bpr=0.0),
            "control": replace(SMALL, view="self"),
        }.items()
    }
    assert len(set(runs.values())) == 4


@pytest.mark.parametrize("lenders", [(), (0,), tuple(range(9))])
def test_an_empty_graph_one_sharer_or_everybody_give_finite_numbers(lenders):
    fed = begin(SMALL, share=False)
    if lenders:
        fed = fed.apply(Share(lendable(fed.now.vault.holdings, *lenders)))
    after = fed.run(3)
    for value in (*after.now.state.public.values(), *after.now.state.own.values()):
        assert bool(torch.isfinite(value).all())
    assert all(math.isfinite(v) for v in after.evaluate(k=5).values())


def test_the_graph_is_exactly_what_is_shared_and_follows_events():
    fed = begin(SMALL)
    for after in (fed, fed.apply(Unshare(fed.lent(1))), fed.apply(Erase(fed.lent(0)))):
        graph = graph_of(after.world)
        who = graph.sharers[graph.user]
        pairs = set(zip(who.tolist(), graph.item.tolist(), strict=True))
        shared = after.world.shared
        assert pairs == set(zip(shared.client.tolist(), shared.item.tolist(), strict=True))


def test_the_last_tables_are_remembered_with_their_rounds():
    fed = begin(replace(SMALL, snapshots=2)).run(5)
    kept = fed.now.state.memory.named("item")
    assert [s.round for s in kept] == [4, 5]
    assert torch.equal(kept[-1].values["item"], fed.now.state.public["item"])


def test_a_newcomer_who_lends_gets_a_row_on_the_server():
    fed = begin(SMALL).run(2).apply(next_block(clients=11, items=16))
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 8)))
    after = fed.run(2)
    assert len(after.now.state.own["user"]) == 11
    assert bool(torch.isfinite(after.now.state.public["item"]).all())
    assert len(after.now.state.public["item"]) == 16
