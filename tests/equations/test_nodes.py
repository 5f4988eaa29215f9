"""The node task: partition, splits, metrics, and invalid graphs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from graphs import tiny_graph, tiny_subgraphs
from rescind import Erase, Federation
from rescind.core.clock import Clock
from rescind.core.holdings import TEST, TRAIN, VALID, Holdings
from rescind.core.records import Records, Withdraw
from rescind.core.tasks.nodes import Classes
from rescind.data import GraphDataset, load, partition
from rescind.data.partition import METIS, louvain, node_split, published_parts, subgraphs
from rescind.errors import ConfigError, DataError
from rescind.methods.graphs.fedavg import GraphFedAvg, GraphFedSGD


def small(edges: list[tuple[int, int]], y: list[int], classes: int = 2) -> GraphDataset:
    """Make a graph by hand: node i has the features (1, i)."""
    mask = np.zeros(len(y), dtype=np.bool_)
    features = np.array([[1.0, i] for i in range(len(y))], dtype=np.float32)
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return GraphDataset("by hand", ends, features, np.array(y), mask, mask, mask, classes)


def test_a_split_is_counted_inside_each_client_and_class():
    # 7 nodes of client 0: 5 of class 0, 2 of class 1; 10 of client 1, class 0. With 20/40/40:
    # floor(1.0), floor(3.0): 1 2 2;  floor(.4), floor(1.2): 0 1 1;  2 4 4.
    owner = np.array([0] * 7 + [1] * 10)
    label = np.array([0, 1, 0, 0, 1, 0, 0] + [0] * 10)
    split = node_split(owner, label, np.arange(17), 3, (20, 40, 40))
    for client, class_, expected in ((0, 0, [1, 2, 2]), (0, 1, [0, 1, 1]), (1, 0, [2, 4, 4])):
        there = split[(owner == client) & (label == class_)]
        assert [int((there == s).sum()) for s in (TRAIN, VALID, TEST)] == expected


def test_a_split_depends_on_the_seed_and_not_on_other_clients():
    graph, part = tiny_graph()
    one, other = (subgraphs(graph, part, seed=s).split for s in (0, 1))
    assert not torch.equal(one, other)
    assert torch.equal(one, subgraphs(graph, part, seed=0).split)
    alone = np.where(part == 0, 0, 1)  # all others in one client
    whole, first = subgraphs(graph, alone, seed=0), subgraphs(graph, part, seed=0)
    mine = [h.split[h.records.client == 0].tolist() for h in (whole, first)]
    assert mine[0] == mine[1]


@pytest.mark.parametrize("ratio", [(20, 40), (50, 60, -10), (1, 1, 1)])
def test_an_invalid_ratio_is_refused(ratio):
    with pytest.raises(ConfigError, match="percentages"):
        node_split(np.array([0]), np.array([0]), np.array([0]), 0, ratio)


def test_edges_between_clients_self_loops_and_repeats_are_dropped():
    graph = small([(0, 1), (1, 0), (0, 1), (1, 1), (1, 2), (3, 2)], [0, 1, 0, 1])
    held = subgraphs(graph, np.array([0, 0, 1, 1]))
    assert held.graph.edge.T.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]


def test_nodes_without_a_label_are_in_the_graph_but_are_not_records():
    held = tiny_subgraphs(clients=6)
    assert held.graph.label[[2, 3]].tolist() == [-1, -1]
    assert not set(held.records.item.tolist()) & {2, 3}
    with pytest.raises(DataError, match="no labelled node 2"):
        Federation.start(held, GraphFedSGD()).query(Records.of([2], [2]), "loss")


def test_a_node_of_another_client_cannot_be_queried():
    fed = Federation.start(tiny_subgraphs(clients=6), GraphFedSGD())
    with pytest.raises(DataError, match="client 0 holds no labelled node 7"):
        fed.query(Records.of([0], [7]), "loss")
    with pytest.raises(DataError, match="client 0 holds no labelled node 6"):
        fed.apply(Withdraw(0)).query(Records.of([0], [6]), "loss")
    assert len(fed.query(Records.none(), "loss")) == 0


@pytest.mark.parametrize(
    ("part", "clients", "message"),
    [
        ([0, 1], None, "4 whole numbers"),
        ([0, 0, 0, -1], None, "are -1 to 0"),
        ([0, 1, 2, 5], 3, "use 0 to 2"),
        ([0, 1, 2, 3], 5, "at most 4 clients"),
        ([0.0, 1.0, 0.0, 1.0], None, "float64"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part, clients, message):
    with pytest.raises(DataError, match=message):
        subgraphs(small([(0, 1)], [0, 1, 0, 1]), np.array(part), clients=clients)


def test_a_feature_that_is_not_a_number_is_refused_by_name():
    graph = small([(0, 1)], [0, 1, 0])
    graph.features[2, 1] = np.nan
    with pytest.raises(DataError, match="node 2"):
        subgraphs(graph, np.array([0, 0, 0]))


def test_clients_without_edges_classes_or_training_nodes_are_allowed():
    # Client 0: isolated nodes of one class. Client 1: two nodes, too few for 20 %. Client 2: none.
    graph = small([(10, 11)], [0] * 10 + [1, 0])
    held = subgraphs(graph, np.array([0] * 10 + [1, 1]), clients=3)
    assert held.available.tolist() == [True, False, False]
    for method in (GraphFedAvg(), GraphFedSGD()):
        fed = Federation.start(held, method).run(3)
        assert all(bool(v.isfinite().all()) for v in fed.now.state.public.values())
        assert fed.evaluate()["accuracy"] >= 4 / 6  # the six held-out nodes: 4 + 2 of client 1
        after = fed.apply(Withdraw(0))
        assert not bool(after.world.available.any())
        assert after.run(1).now.state.round == 4  # no client is left, and nothing breaks


def test_an_unknown_graph_says_how_to_cut_it():
    graph, _ = tiny_graph()
    with pytest.raises(DataError, match=r"subgraphs\(graph, louvain"):
        Federation.start(graph, GraphFedAvg())


def test_louvain_gives_every_node_to_a_client_and_cuts_fewer_edges_than_chance():
    pytest.importorskip("networkx")
    graph, by_chance = tiny_graph()
    part = louvain(graph, clients=3, seed=0)
    assert set(part.tolist()) <= {0, 1, 2}
    start, end = graph.edge_index
    cut, chance = ((p[start] != p[end]).mean() for p in (part, by_chance % 3))
    assert cut < chance


@pytest.mark.parametrize("name", METIS)
def test_the_parts_in_the_package_match_their_digest(name, monkeypatch):
    stored = partition._read_parts(name)
    assert len(set(stored["part"])) == 10
    changed = {**stored, "part": stored["part"][::-1]}
    monkeypatch.setattr(partition.json, "loads", lambda _: changed)
    partition._read_parts.cache_clear()
    with pytest.raises(DataError, match="were changed"):
        partition._read_parts(name)
    partition._read_parts.cache_clear()


def test_parts_of_another_version_of_a_graph_are_refused():
    graph, _ = tiny_graph()
    with pytest.raises(DataError, match="no parts for this graph"):
        published_parts(replace(graph, name="cora"))


@pytest.mark.data
@pytest.mark.parametrize(("name", "count"), [("cora", 54), ("citeseer", 63), ("pubmed", 382)])
def test_a_client_has_as_many_training_nodes_as_the_papers_rates_are_made_of(name, count):
    held = subgraphs(load(name), seed=2025)
    train = held.records.client[held.split == TRAIN]
    assert count in torch.bincount(train).tolist()


def test_erased_nodes_leave_the_past_too():
    fed = Federation.start(tiny_subgraphs(clients=6), GraphFedSGD()).run(2)
    held = fed.now.vault.holdings
    gone = held.records[held.split == TRAIN][torch.arange(3)]
    after = fed.apply(Erase(gone))
    for graph in (after.now.vault.holdings.graph, after.past.origin.graph):
        assert not set(graph.index.tolist()) & set(gone.item.tolist())
    hosted = held.without_client(1)
    assert 1 not in hosted.graph.owner.tolist()
    again = fed.retrained(Erase(gone))
    fresh = Federation.start(without(held, gone), GraphFedSGD()).run(2)
    for name, value in fresh.now.state.public.items():
        assert torch.equal(again.now.state.public[name], value)


def without(held: Holdings, gone: Records) -> Holdings:
    """Build new holdings from the remaining records."""
    kept = ~held.records.among(gone)
    nodes = ~torch.isin(held.graph.index, gone.item)
    return Holdings.of(
        held.records[kept],
        held.split[kept],
        held.clients,
        held.items,
        task="nodes",
        graph=held.graph.keep(nodes),
    )


def test_accuracy_and_roc_auc_pool_the_nodes_of_all_clients():
    graph, part = tiny_graph(nodes=120, classes=2)
    fed = Federation.start(subgraphs(graph, part, seed=1), GraphFedSGD(), seed=1).run(4)
    held = fed.now.vault.holdings
    asked = held.records[held.split == TEST]
    cohort = held.cohort(torch.arange(9))
    logits = fed.method.client_scores(fed.now.state.public, fed.now.vault.read(cohort.ids), cohort)
    odds = (logits[:, 1] - logits[:, 0])[asked.item].double()
    label = held.graph.label[asked.item]
    above = [(a > b) + (a == b) / 2 for a in odds[label == 1] for b in odds[label == 0]]
    measured = fed.evaluate()
    assert measured["accuracy"] == ((odds > 0).long() == label).double().mean()
    assert measured["ROC-AUC"] == pytest.approx(float(sum(above)) / len(above), abs=2e-3)
    with pytest.raises(ConfigError, match="'train'"):
        Classes(split="train")


def test_the_loss_of_a_record_is_the_cross_entropy_of_its_class():
    fed = Federation.start(tiny_subgraphs(clients=6), GraphFedSGD()).run(2)
    held = fed.now.vault.holdings
    some = held.records[torch.tensor([0, 7, 30])]
    cohort = held.cohort(torch.arange(6))
    logits = fed.method.client_scores(fed.now.state.public, fed.now.vault.read(cohort.ids), cohort)
    p = torch.softmax(logits.double(), 1)[some.item, held.graph.label[some.item]]
    assert fed.query(some, "loss").tolist() == pytest.approx((-p.log()).tolist())
    assert fed.query(some).tolist() == pytest.approx((p / (1 - p)).log().tolist())


def test_draws_for_nodes_do_not_depend_on_the_cohort():
    bits = Clock(0).bits("node split", torch.arange(5))
    assert torch.equal(bits[2:], Clock(0).bits("node split", torch.tensor([2, 3, 4])))
    assert json.dumps(partition._read_parts("cora")["by"]).startswith('"METIS')
