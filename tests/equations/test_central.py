"""A server that learns alone: LightGCN and BPR-MF against a plain loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Records, Share, Unshare
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import GraphSteps
from rescind.methods.sharing.central import USER, Central
from rescind.models.lightgcn import LightGCN
from worlds import begin, scores

SMALL = Central(model=LightGCN(dim=4), graph_steps=3, graph_pairs=16, graph_rate=0.05)
MF = Central.bpr_mf(model=LightGCN(dim=4), graph_steps=3, graph_pairs=16, graph_rate=0.05)


def test_steps_go_down_the_mean_pair_loss():
    fed = begin(replace(MF, graph_optimiser="plain"), *range(9))
    graph, steps = graph_of(fed.world), MF._steps
    users = graph.sharers
    user = fed.now.state.own["user"][users].clone().requires_grad_()
    item = fed.now.state.own["item"].clone().requires_grad_()
    clock = fed.clock.at(1)
    for step in range(3):
        owner, positive, negative = steps.draw(graph, step, clock)
        loss = torch.zeros(())
        for u, i, j in zip(owner, positive, negative, strict=True):
            gap = user[u] @ item[i] - user[u] @ item[j]
            size = user[u].square().sum() + item[i].square().sum() + item[j].square().sum()
            loss = loss - functional.logsigmoid(gap) + 0.01 * size
        down = torch.autograd.grad(loss / len(owner), [user, item])
        user, item = (
            (v - 0.05 * g).detach().requires_grad_()
            for v, g in zip((user, item), down, strict=True)
        )
    after = fed.run(1).now.state
    assert_close(after.own["item"], item.detach(), atol=1e-5, rtol=1e-4)
    assert_close(after.own["user"][users], user.detach(), atol=1e-5, rtol=1e-4)
    assert torch.equal(after.public["item"], after.own["item"]), "no layers, so nothing is mixed"


def test_pairs_are_shared_ones_against_others_and_all_of_them_where_none_are_drawn():
    fed = begin(SMALL, 0, 1, 2)
    graph, clock = graph_of(fed.world), fed.clock.at(1)
    shared = set(zip(graph.user.tolist(), graph.item.tolist(), strict=True))
    owner, positive, negative = GraphSteps().draw(graph, 0, clock)
    assert list(zip(owner.tolist(), positive.tolist(), strict=True)) == sorted(shared)
    assert not set(zip(owner.tolist(), negative.tolist(), strict=True)) & shared
    one, two = (GraphSteps(pairs=50).draw(graph, step, clock) for step in (0, 1))
    assert not torch.equal(one[0], two[0])
    assert not torch.equal(one[2], two[2])


@pytest.mark.parametrize("method", [SMALL, MF])
def test_sharers_are_scored_with_their_learnt_vector_and_others_with_their_items(method):
    fed = begin(method, 0, 1, 2).run(2)
    item, told = fed.now.state.public["item"], fed.now.state.public[USER]
    assert bool((told[:3] != 0).any(1).all())
    assert not bool(told[3:].any())
    own = fed.now.vault.holdings.of_clients("own", torch.tensor([4])).item
    by_itself = item[own].sum(0) / math.sqrt(len(own))
    for client, user in ((1, told[1]), (4, by_itself)):
        expected = item @ user
        if method.score == "cosine":
            expected = functional.cosine_similarity(item, user[None])
        assert_close(scores(fed, client)[0], expected, atol=1e-6, rtol=1e-4)


def test_a_person_who_takes_everything_back_is_a_stranger_again():
    fed = begin(SMALL, 0, 1, 2).run(2)
    back = fed.apply(Unshare(fed.lent(1))).run(1)
    assert not bool(back.now.state.public[USER][1].any())


def test_it_finds_the_planted_half_of_the_catalogue():
    # Even clients own even items, odd clients odd ones: the rest of a half must come first.
    pairs = [(u, i) for u in range(8) for i in range(10) if (u + i) % 2 == 0 and i != u]
    records = Records.of([u for u, _ in pairs], [i for _, i in pairs])
    held = Holdings.of(records, torch.zeros(len(pairs)), 8, 10)
    for method in (replace(SMALL, graph_steps=40), replace(MF, graph_steps=40)):
        fed = Federation.start(held, method).apply(Share(records)).run(2)
        for user in range(8):
            assert int(fed.recommend(user, k=1)[0].item) == user
