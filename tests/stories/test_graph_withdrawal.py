"""A client lends its part of a graph to a federation, leaves, and gets a receipt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rescind as rs
from graphs import tiny_graph, tiny_subgraphs
from rescind.data.partition import subgraphs
from rescind.errors import BoundaryError, ConsentError
from rescind.forgetting.examine import examine
from rescind.methods.graphs.fedavg import GraphFedAvg, GraphFedSGD
from rescind.methods.graphs.fedgcv import FedGCV


@pytest.mark.parametrize("base", [GraphFedAvg(), GraphFedSGD()])
@pytest.mark.parametrize("unlearner", [None, FedGCV(forget_rounds=6, repair_rounds=2)])
def test_a_hospital_leaves_and_nothing_of_it_is_left(base, unlearner):
    fed = rs.Federation.start(tiny_subgraphs(clients=5, nodes=100), base, seed=3).run(6)
    event = rs.Withdraw(1)
    after, evidence = rs.forget(fed, event, method=unlearner, audits="none")
    held = after.now.vault.holdings
    for graph in (held.graph, after.past.origin.graph):
        assert 1 not in graph.owner.tolist()
        assert not bool((graph.edge >= len(graph.owner)).any())
    assert 1 not in held.records.client.tolist()
    assert not bool(after.world.members[1])
    assert after.evaluate()["accuracy"] > 0.5
    assert after.run(2).now.state.round == after.now.state.round + 2
    done = evidence.receipt.done if hasattr(evidence.receipt, "done") else evidence.receipt
    assert ("FedGCV" in str(done)) == (unlearner is not None)
    with pytest.raises(ConsentError, match="not a member"):
        rs.forget(after, event, audits="none")


def test_exact_forgetting_is_what_would_have_been_without_the_client():
    graph, part = tiny_graph(100, 5)
    method = GraphFedSGD()
    fed = rs.Federation.start(subgraphs(graph, part, seed=3), method, seed=3).run(6)
    after, _ = rs.forget(fed, rs.Withdraw(1), audits="none")
    never = subgraphs(graph, part, seed=3)
    alone = rs.Federation.start(never, method, seed=3).apply(rs.Withdraw(1)).run(6)
    for name, value in alone.now.state.public.items():
        assert torch.equal(after.now.state.public[name], value)


def test_the_last_client_may_leave_too():
    graph, _ = tiny_graph(30, 1)
    fed = rs.Federation.start(subgraphs(graph, np.zeros(30, dtype=np.int64)), GraphFedSGD()).run(3)
    for method in (None, FedGCV(forget_rounds=2)):
        after, _ = rs.forget(fed, rs.Withdraw(0), method=method, audits="none")
        assert not bool(after.world.available.any())
        assert all(bool(v.isfinite().all()) for v in after.now.state.public.values())


def test_a_recommender_is_not_given_a_graph():
    with pytest.raises(BoundaryError, match="works on ranking"):
        rs.Federation.start(tiny_subgraphs(), rs.methods.FedAvg())


def test_an_audit_asks_about_nodes_that_left_among_their_neighbours():
    fed = rs.Federation.start(tiny_subgraphs(clients=4, nodes=120), GraphFedSGD(), seed=3).run(5)
    after, _ = rs.forget(fed, rs.Withdraw(1), audits="none")
    report = examine(fed, after, rs.Withdraw(1), workers=1)
    found = {finding.check: finding for finding in report.findings}
    held = fed.now.vault.holdings
    asked = fed.with_(state=after.now.state)
    mine = held.records.client == 1
    member, other = (
        asked.query(held.records[mine & part], "loss")
        for part in (held.split == 0, held.split != 0)
    )
    less = (member.unsqueeze(1) < other).double() + (member.unsqueeze(1) == other).double() / 2
    assert found["Q1 population"].value == pytest.approx(float(less.mean()), abs=1e-9)
    # Thirty nodes cannot tell a forgetting from none, and the audit says so instead of PASS.
    assert report.verdict == "INCONCLUSIVE"
