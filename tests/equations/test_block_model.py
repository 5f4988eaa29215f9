"""The private stand-in: its sums by hand, its noise, and what it gives away beside the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rescind as rs
from graphs import tiny_graph, tiny_subgraphs
from rescind.audits.virtual_client import auc, leak
from rescind.core.clock import Clock
from rescind.data.partition import subgraphs
from rescind.errors import ConfigError
from rescind.methods.graphs._block_model import BlockModel, Release
from rescind.methods.graphs._vgae import VGAE
from rescind.methods.graphs.fedgcv import FedGCV
from rescind.models.gcn import GCN
from rescind.privacy.gaussian import epsilon_of


def whole(nodes: int = 120):
    graph, _ = tiny_graph(nodes, 1)
    return subgraphs(graph, np.zeros(nodes, dtype=np.int64)).graph


def test_the_sums_are_counts_by_class():
    graph = whole(40)
    told = BlockModel(clip=1.0).counted(graph)
    for k in range(3):
        mine = [n for n in range(40) if int(graph.label[n]) == k]
        assert int(told.classes[k]) == len(mine)
        total = torch.zeros(graph.features, dtype=torch.float64)
        for n in mine:
            row = torch.zeros(graph.features, dtype=torch.float64)
            for node, feature in zip(graph.node.tolist(), graph.feature.tolist(), strict=True):
                if node == n:
                    row[feature] = 1.0
            total += row / max(float(row.norm()), 1.0)
        assert torch.allclose(told.features[k], total)
    expected = torch.zeros(3, 3)
    for a, b in graph.edge.T.tolist():
        low, high = sorted((int(graph.label[a]), int(graph.label[b])))
        if a < b and low >= 0:
            expected[low, high] += 1
    assert torch.equal(told.edges, expected.double())


def test_noise_has_the_size_that_its_epsilon_says_and_is_drawn_anew():
    graph, model = whole(40), BlockModel(clip=2.0, noise=3.0, edge_noise=4.0)
    plain = model.counted(graph)
    many = [model.release(graph) for _ in range(400)]
    errors = torch.stack([r.features - plain.features for r in many])
    assert float(errors.std()) == pytest.approx(3.0 * 5**0.5, rel=0.05)
    counts = torch.stack([r.classes - plain.classes for r in many])
    assert float(counts.std()) == pytest.approx(3.0 * 5**0.5, rel=0.1)
    edges = torch.stack([(r.edges - plain.edges)[0, 1] for r in many])
    assert float(edges.abs().mean()) == pytest.approx(4.0, rel=0.2)
    assert model.epsilon() == {"nodes": epsilon_of(3.0, 1e-5), "edges": 0.25}
    with pytest.raises(ConfigError, match="edge_noise"):
        BlockModel(edge_noise=0.0)


def test_a_drawn_graph_has_the_told_sizes():
    told = Release(
        torch.tensor([60.0, 40.0, -3.0]).double(),
        torch.tensor([[60.0, 0.0], [0.0, 20.0], [5.0, 5.0]]).double(),
        torch.tensor([[300.0, 12.0, 9.0], [0.0, 200.0, -4.0], [0.0, 0.0, 7.0]]).double(),
    )
    found = BlockModel().sample(told, 1000, Clock(0))
    assert torch.bincount(found.label, minlength=3).tolist() == [60, 40, 0]
    one, other = found.label[found.edge]
    inside = int(((one == 0) & (other == 0)).sum()) // 2
    across = int(((one == 0) & (other == 1)).sum())
    assert inside == pytest.approx(300, abs=4 * 300**0.5)
    assert across == pytest.approx(12, abs=4 * 12**0.5)
    assert torch.equal(found.edge[:, : found.edge.shape[1] // 2].flip(0),
                       found.edge[:, found.edge.shape[1] // 2 :])  # fmt: skip
    assert float(found.features[found.label == 0, 0].min()) == 1.0
    assert float(found.features[found.label == 1, 1].mean()) == pytest.approx(0.5, abs=0.3)
    assert len(BlockModel().sample(told, 10, Clock(0)).label) == 10


def test_it_gives_away_less_than_the_published_one():
    graph = whole(120)
    published = VGAE(steps=60).stand_in(graph, Clock(0))
    # Even without noise: edges are as likely as their classes say, and nodes are nobody's.
    model = BlockModel()
    told = model.counted(graph)
    double = model.sample(told, 1000, Clock(0))
    linked = torch.zeros(120, 120, dtype=torch.bool)
    linked[graph.edge[0], graph.edge[1]] = True
    above, known = torch.triu(torch.ones_like(linked), 1), graph.label >= 0
    above &= known.unsqueeze(0) & known.unsqueeze(1)
    chance = double.likely[double.label == 0][:, double.label == 1]
    assert float(chance.max()) == float(chance.min())
    same = graph.label.unsqueeze(0) == graph.label.unsqueeze(1)
    by_class = same.double()
    assert (
        auc(by_class[linked & above], by_class[~linked & above])
        < leak(graph, published.likely, published.features).edge_auc
    )


def test_it_takes_part_in_the_repair_and_leaves():
    fed = rs.Federation.start(
        tiny_subgraphs(clients=5, nodes=150), rs.methods.GraphFedSGD(), seed=3
    )
    fed = fed.run(6)
    seen: list[set[str]] = []
    watched = rs.Federation(**{**vars(fed), "watch": (lambda m: seen.append(set(m.sums)),)})
    method = FedGCV(model=GCN(), forget_rounds=2, repair_rounds=3, private_virtual=True)
    after = method.unlearn(watched, rs.Withdraw(1))
    assert ["host" in roles for roles in seen] == [False, False, True, True, True]
    assert after.world.hosted == ()
    assert after.evaluate()["accuracy"] > 0.4
