"""Each client's own model: what one client learns does not depend on the others."""

from __future__ import annotations

from dataclasses import replace

import torch

from graphs import tiny_graph
from rescind.core.federation import Federation
from rescind.core.records import Withdraw
from rescind.data.partition import subgraphs
from rescind.methods.graphs.fedavg import GraphFedAvg
from rescind.methods.graphs.local_models import LocalModels
from rescind.models.gcn import GCN

METHOD = LocalModels(model=GCN(hidden=8))


def started(method=METHOD) -> Federation:
    return Federation.start(subgraphs(*tiny_graph()), method, 3)


def test_nothing_reaches_the_server():
    fed = started()
    after = fed.run(3)
    for name, value in fed.now.state.public.items():
        assert torch.equal(after.now.state.public[name], value)
    assert not torch.equal(after.now.vault.private["mine/one/weight"][0], value)


def test_a_client_learns_the_same_when_another_leaves():
    alone, all_ = started().apply(Withdraw(1)).run(3), started().run(3)
    stay = alone.world.members.nonzero().squeeze(1)
    for name in ("mine/one/weight", "mine/two/bias"):
        mine, theirs = alone.now.vault.private[name], all_.now.vault.private[name]
        assert torch.equal(mine[stay], theirs[stay])
    assert alone.evaluate(clients=stay) == all_.evaluate(clients=stay)


def test_the_first_round_is_the_local_part_of_averaging():
    one = torch.tensor([0])
    held = subgraphs(*tiny_graph())
    mine = Federation.start(held, METHOD, 3).run(1)
    shared = GraphFedAvg(model=METHOD.model)
    fed = Federation.start(held, shared, 3)
    cohort = fed.executor.cohort(shared, fed.now.vault, one)
    public, private = fed.now.state.public, fed.now.vault.read(one)
    update, _ = shared.client_train(public, private, cohort, fed.clock.at(1))
    expected = public["one/weight"] + update.entries["one/weight"][0]
    torch.testing.assert_close(mine.now.vault.private["mine/one/weight"][0], expected)


def test_before_the_first_round_all_models_are_alike():
    plain = replace(started(), method=GraphFedAvg(model=METHOD.model))
    assert started().evaluate() == plain.evaluate()
