"""Spare models against retraining, which they must equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import rescind as rs
from graphs import tiny_subgraphs
from rescind.core.executor import OneByOne
from rescind.experiments.recipe import read
from rescind.experiments.tables import lines
from rescind.methods.graphs.fedavg import GraphFedSGD
from rescind.methods.graphs.leave_one_out import SPARE, SpareModels
from rescind.models.gcn import GCN

SMALL = GCN(hidden=5)
ROUNDS = 6


def started(method, **given) -> rs.Federation:
    fed = rs.Federation.start(tiny_subgraphs(clients=4, nodes=60), method, seed=5, **given)
    wide = {n: v.double() for n, v in fed.now.state.public.items()}
    return fed.with_(state=replace(fed.now.state, public=wide))


@pytest.mark.parametrize("executor", [None, OneByOne()])
@pytest.mark.parametrize("client", [0, 2])
def test_a_spare_is_what_a_retraining_without_the_client_gives(client, executor):
    fed = started(SpareModels(model=SMALL), executor=executor).run(ROUNDS)
    plain = started(GraphFedSGD(model=SMALL)).run(ROUNDS)
    never = started(GraphFedSGD(model=SMALL)).apply(rs.Withdraw(client)).run(ROUNDS)
    after = fed.method.unlearn(fed, rs.Withdraw(client))
    for name, value in never.now.state.public.items():
        assert_close(fed.now.state.public[name], plain.now.state.public[name])
        assert_close(after.now.state.public[name], value)
        assert float((value - plain.now.state.public[name]).abs().max()) > 1e-3
    # It goes on as the retraining would: moments and their steps were the spare's, too.
    assert_close(
        dict(after.run(3).now.state.public), dict(never.run(3).now.state.public), rtol=1e-6, atol=0
    )


def test_no_round_is_needed_and_nothing_made_with_the_leaver_stays():
    fed = started(SpareModels(model=SMALL)).run(ROUNDS)
    seen = []
    after, evidence = rs.forget(replace(fed, watch=(seen.append,)), rs.Withdraw(1), audits="none")
    assert seen == []
    assert evidence.exact.done.rounds == 0
    assert not any(n.startswith(SPARE) for n in after.now.state.public)
    assert not any(SPARE in n for n in after.now.state.own)
    assert after.now.state.round == ROUNDS


def test_a_second_leaving_client_is_forgotten_by_retraining():
    fed = started(SpareModels(model=SMALL)).run(ROUNDS)
    once = fed.method.unlearn(fed, rs.Withdraw(1))
    never = started(GraphFedSGD(model=SMALL)).apply(rs.Withdraw(1)).apply(rs.Withdraw(3))
    expected = never.run(ROUNDS).now.state.public
    after = once.method.unlearn(once, rs.Withdraw(3))
    for name, value in expected.items():
        assert_close(after.now.state.public[name], value.float(), atol=1e-4, rtol=0)


def test_where_clients_are_drawn_a_leaver_is_forgotten_by_training_again():
    fed = started(SpareModels(model=SMALL, clients_per_round=2)).run(ROUNDS)
    one = fed.method.unlearn(fed, rs.Withdraw(1)).now.state.public
    two = fed.retrained(rs.Withdraw(1)).now.state.public
    assert all(torch.equal(one[n], two[n]) for n in two)


@pytest.mark.parametrize("graph", ["cora", "citeseer"])
def test_the_committed_rows_of_spares_are_those_of_a_retraining(graph):
    recipe = read(Path(__file__).parents[2] / "recipes/fedgcv/fedsgd.toml")
    rows = {(line["cell"], line["seed"]): line["forget"] for line in lines(recipe)}
    seeds = {seed for cell, seed in rows if cell == f"{graph}/spare model, 10 rounds"}
    assert len(seeds) == 5
    for seed in seeds:
        spare, again = (
            rows[f"{graph}/{name}, 10 rounds", seed] for name in ("spare model", "retrain")
        )
        assert spare["rounds"] == 0 < again["rounds"]
        for part, name in (("test", "accuracy"), ("leaver", "accuracy"), ("leaver", "MIA")):
            assert spare["each"][part][name] == again["each"][part][name]  # every leaver
