"""Graphs that are not as one hopes: trained on, left, asked about, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import rescind as rs
from graphs import tiny_graph
from rescind import methods
from rescind.audits import mait
from rescind.audits.case import Case
from rescind.audits.ulira import asked_about
from rescind.core.clock import Clock
from rescind.core.records import Withdraw
from rescind.data.partition import louvain, subgraphs
from rescind.errors import ConfigError, DataError
from rescind.forgetting.examine import examine
from rescind.methods.graphs._block_model import BlockModel, Release
from rescind.methods.graphs._vgae import VGAE
from rescind.methods.graphs.fedavg import GraphFedAvg, GraphFedSGD
from rescind.models.gcn import GCN

SMALL = GCN(hidden=4)
ODD = 2
UNLEARNERS = [
    "FedGCV", "GraphAscent", "PGA", "SGARandom", "SGADegree", "EWCSGA", "NoisyGD", "ULKD",
    "ReGEnProxy", "FedOSD", "Drop", "SpareModels",
]  # fmt: skip


def odd(kind: str):
    """Four clients, one of them odd."""
    graph, part = tiny_graph(80, 4)
    mine = part == ODD
    edge = graph.edge_index
    if kind == "no edges":
        edge = edge[:, ~(mine[edge[0]] | mine[edge[1]])]
    if kind == "one class":
        graph.y[mine] = 1
    if kind == "one training node":
        graph.y[mine] = -1
        graph.y[np.flatnonzero(mine)[:3]] = 0  # of three nodes of a class, floor(.6 * 3) = 1
    if kind == "no features":
        graph.features[mine] = 0.0
    if kind == "loops and repeats":
        loops = np.stack([np.arange(80), np.arange(80)])
        edge = np.concatenate([edge, edge[:, ::-1], loops, edge], axis=1)
    return subgraphs(replace(graph, edge_index=edge), part, ratio=(60, 20, 20))


KINDS = ["no edges", "one class", "one training node", "no features", "loops and repeats"]


@pytest.mark.parametrize("name", UNLEARNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_client_leaves_by_every_method(kind, name):
    cls = methods.all_methods()[name]
    learner = {"ULKD": cls, "SpareModels": cls}.get(name, GraphFedAvg)
    fed = rs.Federation.start(odd(kind), learner(model=SMALL), seed=1).run(3)
    fields = {f: 2 for f in ("forget_rounds", "repair_rounds") if hasattr(cls, f)}
    after = cls(model=SMALL, **fields).unlearn(fed, rs.Withdraw(ODD))
    assert not bool(after.world.members[ODD])
    assert all(bool(v.isfinite().all()) for v in after.now.state.public.values())
    assert 0 <= after.evaluate()["accuracy"] <= 1


@pytest.mark.parametrize("form", ["virtual", "private_virtual", "literal"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_client_leaves_by_every_form_of_fedgcv(kind, form):
    fed = rs.Federation.start(odd(kind), GraphFedSGD(model=SMALL), seed=1).run(3)
    method = methods.FedGCV(model=SMALL, forget_rounds=2, repair_rounds=2, **{form: True})
    after = method.unlearn(fed, rs.Withdraw(ODD))
    assert all(bool(v.isfinite().all()) for v in after.now.state.public.values())
    assert after.world.hosted == ()  # whoever stood in is gone, too
    assert not bool(after.world.members[ODD])


def test_noise_that_leaves_no_node_leaves_nobody_to_stand_in(monkeypatch):
    """A client of one node, and a draw below zero: it is forgotten all the same."""
    told = Release(torch.full((3,), -1.0), torch.zeros(3, 8), torch.zeros(3, 3))
    monkeypatch.setattr(BlockModel, "release", lambda self, graph: told)
    fed = rs.Federation.start(odd("one training node"), GraphFedSGD(model=SMALL), seed=1).run(3)
    plain = methods.FedGCV(model=SMALL, forget_rounds=2, repair_rounds=2)
    after = replace(plain, private_virtual=True).unlearn(fed, rs.Withdraw(ODD))
    alone = plain.unlearn(fed, rs.Withdraw(ODD))
    for name, value in alone.now.state.public.items():
        assert torch.equal(value, after.now.state.public[name])
    assert after.world.hosted == ()


def test_loops_and_repeats_change_nothing():
    graph, part = tiny_graph(80, 4)
    plain = subgraphs(graph, part, ratio=(60, 20, 20)).graph
    assert torch.equal(odd("loops and repeats").graph.edge, plain.edge)


def test_a_graph_without_labels_is_held_but_not_learnt():
    graph, part = tiny_graph(40, 4)
    graph.y[:] = -1
    fed = rs.Federation.start(subgraphs(graph, part), GraphFedSGD(model=SMALL), seed=1)
    first = fed.now.state.public["one/weight"]
    after = fed.run(2)
    assert not bool(after.world.available.any())
    assert torch.equal(after.now.state.public["one/weight"], first)
    gone = after.method.unlearn(after, rs.Withdraw(1))
    assert torch.equal(gone.now.state.public["one/weight"], first)
    with pytest.raises(DataError, match="no client has a training node"):
        mait.losses(after)
    with pytest.raises(DataError, match="no record that the model was trained on"):
        examine(after, gone, rs.Withdraw(1))


def test_a_leaver_with_nothing_held_out_shares_out_what_there_is():
    graph, part = tiny_graph(80, 4)
    fed = rs.Federation.start(
        subgraphs(graph, part, ratio=(100, 0, 0)), GraphFedSGD(model=SMALL), seed=1
    ).run(1)
    case = Case.of(fed, Withdraw(ODD))
    assert len(asked_about(case)) == len(case.forgotten)
    assert np.isnan(mait.loss_auc(fed, fed, ODD))  # no pair to compare


def test_more_clients_than_communities_or_nodes():
    graph, _ = tiny_graph(12, 1)
    lonely = replace(graph, edge_index=np.zeros((2, 0), dtype=np.int64))
    assert sorted(np.bincount(louvain(lonely, 4), minlength=4).tolist()) == [3, 3, 3, 3]
    whole = np.arange(12)
    linked = replace(graph, edge_index=np.stack([whole, (whole + 1) % 12]))
    part = louvain(linked, 12)
    held = subgraphs(linked, part, clients=12)  # the last ones hold nothing, and take no part
    fed = rs.Federation.start(held, GraphFedSGD(model=SMALL)).run(1)
    assert fed.now.state.public["one/weight"].isfinite().all()
    with pytest.raises(DataError, match="at most 12 clients"):
        subgraphs(linked, part, clients=13)
    with pytest.raises(ConfigError, match="1 client or more"):
        louvain(linked, 0)


def test_a_stand_in_of_one_node_is_refused():
    graph, _ = tiny_graph(12, 1)
    whole = subgraphs(graph, np.zeros(12, dtype=np.int64)).graph
    alone = whole.keep(torch.arange(12) == 7)
    with pytest.raises(DataError, match="2 to 4000 nodes; this client has 1"):
        VGAE().stand_in(alone, Clock(0))
