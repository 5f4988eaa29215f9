"""GraphGram: sums of node rows, their solution, and everything that can be forgotten exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import rescind as rs
from graphs import tiny_graph, tiny_subgraphs
from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import OneByOne
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Event
from rescind.data.partition import subgraphs
from rescind.methods.additive._additive import sum_digest
from rescind.methods.additive._graph_sums import graph_from, part_of, weights_of
from rescind.methods.additive._pairs import mirrored
from rescind.methods.additive.graph_gram import PART, SUM, GraphGram
from rescind.models.hops import UNIT, Hops

WORDS = Hops(random=0)
RANDOM = Hops(random=20)
MODELS = pytest.mark.parametrize("model", [WORDS, RANDOM], ids=["words", "random"])


def started(model: Hops = WORDS, clients: int = 6, **fields: object) -> rs.Federation:
    method = GraphGram(model=model, **fields)  # type: ignore[arg-type]
    return rs.Federation.start(tiny_subgraphs(clients), method).run(1)


def trained_nodes(held: Holdings, client: int | None = None) -> np.ndarray:
    """The positions of training nodes."""
    mine = held.split == TRAIN
    mine &= torch.ones_like(mine) if client is None else held.records.client == client
    return held.graph.find(torch.unique(held.records.item[mine])).numpy()


def dense_rows(held: Holdings, hops: int = 3) -> np.ndarray:
    """The rows of words by loops over nodes: the oracle of `Hops`, in numpy."""
    graph = held.graph
    nodes = len(graph.owner)
    near = np.eye(nodes)
    near[graph.edge[0].numpy(), graph.edge[1].numpy()] = 1
    degree = near.sum(1)
    features = np.zeros((nodes, graph.features))
    features[graph.node.numpy(), graph.feature.numpy()] = graph.value.numpy()
    out = np.zeros((nodes, graph.features + 1))
    for node in range(nodes):
        total = np.zeros(graph.features)
        weight = np.eye(nodes)[node]
        for _ in range(hops + 1):
            seen = sum(
                weight[other] * features[other] / max(features[other].sum(), 1e-12)
                for other in range(nodes)
            )
            root = np.sqrt(seen)
            total += root / max(np.linalg.norm(root), 1e-12)
            weight = weight @ (near / np.sqrt(np.outer(degree, degree)))
        total /= max(np.linalg.norm(total), 1e-12)
        out[node] = [*np.round(UNIT * total), UNIT]
    return out


def test_rows_are_the_summed_roots_of_what_is_near():
    held = tiny_subgraphs(3)
    rows = WORDS.rows(held.graph).numpy()
    assert np.array_equal(rows, dense_rows(held))
    assert np.array_equal(rows[:, -1], np.full(len(rows), UNIT))


@MODELS
def test_the_sum_and_its_solution_are_those_of_plain_numpy(model):
    fed = started(model)
    held = fed.now.vault.holdings
    at = trained_nodes(held)
    rows = model.rows(held.graph).numpy()[at]
    known = np.eye(held.graph.classes)[held.graph.label.numpy()[at]]
    both = np.hstack([rows, UNIT * known]).astype(np.int64)
    assert np.array_equal(mirrored(fed.now.state.own[SUM]).numpy(), both.T @ both)
    # W = (P + ridge)^-1 R
    scaled = rows / UNIT
    weights = np.linalg.solve(
        scaled.T @ scaled + fed.method.ridge * np.eye(rows.shape[1]), scaled.T @ known
    )
    assert_close(fed.now.state.public["weights"].double().numpy(), weights, atol=1e-5, rtol=1e-5)


@MODELS
def test_primal_and_dual_solutions_are_equal(model):
    # W = (H^T H + r)^-1 H^T Y = H^T (H H^T + r)^-1 Y: from sums, and from rows.
    held = tiny_subgraphs(4)
    at = torch.from_numpy(trained_nodes(held))
    rows = model.rows(held.graph)[at] / UNIT
    known = torch.eye(held.graph.classes, dtype=torch.float64)[held.graph.label[at]]
    kernel = rows @ rows.T + 0.7 * torch.eye(len(at), dtype=torch.float64)
    dual = rows.T @ torch.linalg.solve(kernel, known)
    total = sum(
        part_of(model, held.graph, torch.from_numpy(trained_nodes(held, client)))
        for client in range(4)
    )
    assert_close(weights_of(total, held.graph.classes, 0.7), dual, atol=1e-10, rtol=1e-10)


def test_one_contributor_needs_no_federation():
    held = tiny_subgraphs(1, nodes=12)
    graph = held.graph
    features = torch.zeros(len(graph.owner), graph.features)
    features[graph.node, graph.feature] = graph.value.float()
    once = graph.edge[:, graph.edge[0] < graph.edge[1]]
    mine = graph_from(features, once, graph.label, graph.classes)
    at = torch.from_numpy(trained_nodes(held))
    assert torch.equal(part_of(WORDS, mine, at), part_of(WORDS, graph, at))
    with pytest.raises(rs.DataError, match="edges must join nodes 0 to 11"):
        graph_from(features, torch.tensor([[0], [12]]), graph.label, graph.classes)


@MODELS
def test_a_client_alone_makes_the_same_whole_numbers_as_in_a_crowd(model):
    held = tiny_subgraphs(5)
    many = rs.Federation.start(held, GraphGram(model=model)).run(1)
    alone = rs.Federation.start(held, GraphGram(model=model), executor=OneByOne()).run(1)
    assert params.digest(many.now.state.own) == params.digest(alone.now.state.own)


def test_one_round_is_enough_and_it_learns():
    graph, part = tiny_graph(200, 5)
    fed = rs.Federation.start(subgraphs(graph, part, seed=0), GraphGram(model=WORDS))
    one = fed.run(1)
    assert params.digest(one.run(3).now.state.public) == params.digest(one.now.state.public)
    assert one.evaluate()["accuracy"] > 0.6  # a third of the nodes are of each class


def test_secure_aggregation_needs_no_part_and_gives_the_same_sum():
    kept, summed = started(), started(keep_parts=False)
    assert not any(name.startswith(PART) for name in summed.now.state.own)
    assert sum_digest(kept.now.state.own) == sum_digest(summed.now.state.own)
    after = [fed.method.unlearn(fed, rs.Withdraw(2)) for fed in (kept, summed)]
    assert sum_digest(after[0].now.state.own) == sum_digest(after[1].now.state.own)
    _, evidence = rs.forget(summed, rs.Withdraw(2), audits="none")
    assert evidence.receipt.done.level == "L3"
    assert evidence.cost.rounds == 1
    assert evidence.cost.participants == {0, 1, 3, 4, 5}


# -- forgetting -----------------------------------------------------------------------------------


def requests(held: Holdings, clock: Clock, kinds: tuple[str, ...]) -> Event | None:
    """Draw one request that the present data allow; None if there is none of this kind."""
    kind = kinds[int(clock.integers("kind", torch.tensor(0), 0, len(kinds)))]

    def one(count: int) -> int:
        return int(clock.integers("which", torch.tensor(1), 0, count))

    members = held.members.nonzero().squeeze(1)
    if kind == "client":
        return rs.Withdraw(int(members[one(len(members))])) if len(members) > 2 else None
    if kind == "edge":
        if not held.graph.edge.shape[1]:
            return None
        edge = held.graph.edge[:, one(held.graph.edge.shape[1])]
        ends = held.graph.index[edge].tolist()
        return rs.EraseEdges.of(int(held.graph.owner[edge[0]]), [(ends[0], ends[1])])
    if not len(held.records):
        return None
    at = one(len(held.records))
    records = held.records[torch.tensor([at])]
    return rs.EraseLabels(records) if kind == "label" else rs.Erase(records)


def never_there(held: Holdings, method: GraphGram, clients: int) -> rs.Federation:
    """A federation that only ever had what remains."""
    assert held.clients == clients
    return rs.Federation.start(held, method).run(1)


def forget_many(count: int, clients: int, seed: int, kinds: tuple[str, ...]) -> dict[str, int]:
    """Forget random requests; after each seventh all values equal those of never-there."""
    graph, part = tiny_graph(12 * clients, clients, seed)
    held = subgraphs(graph, part, seed=seed, ratio=(60, 20, 20))
    fed = rs.Federation.start(held, GraphGram(model=WORDS)).run(1)
    done: dict[str, int] = {}
    for number in range(count):
        event = requests(fed.now.vault.holdings, Clock(seed).at(number), kinds)
        if event is None:
            continue
        fed = fed.method.unlearn(fed, event)
        done[type(event).__name__] = done.get(type(event).__name__, 0) + 1
        if number % 7 == 6:
            fresh = never_there(fed.now.vault.holdings, fed.method, clients)
            for mine, other in (
                (fed.now.state.own, fresh.now.state.own),
                (fed.now.state.public, fresh.now.state.public),
            ):
                assert params.digest(mine) == params.digest(other), number
            assert fed.method.rebuilt(fed) == sum_digest(fed.now.state.own)
    return done


KINDS = ("client", "node", "edge", "label")


def test_random_requests_leave_the_digest_of_never_there():
    done = forget_many(70, clients=12, seed=3, kinds=(*KINDS[1:], *KINDS))
    assert done.keys() == {"Withdraw", "Erase", "EraseEdges", "EraseLabels"}


@pytest.mark.slow
def test_a_thousand_random_requests_leave_the_digest_of_never_there():
    total = 0
    for seed in range(5):
        kinds = (*KINDS[1:] * 12, "client")
        done = forget_many(230, clients=40, seed=seed, kinds=kinds)
        total += sum(done.values())
    assert total >= 1000


def test_a_client_leaves_while_offline():
    fed = started()
    after, evidence = rs.forget(fed, rs.Withdraw(3), audits="none", away=[3])
    assert after.method.settled(after)
    assert evidence.cost.rounds == 0
    assert not evidence.cost.participants
    assert evidence.receipt.done.level == "L3"
    assert f"{PART}0003" not in after.now.state.own


def first_label(fed: rs.Federation) -> rs.Erase:
    held = fed.now.vault.holdings
    return rs.EraseLabels(held.records[(held.split == TRAIN) & (held.records.client == 1)][:1])


def test_a_device_that_is_away_owes_its_part_until_the_next_round():
    fed = started()
    event = first_label(fed)
    after, evidence = rs.forget(fed, event, audits="none", away=[1])
    assert not after.method.settled(after)
    assert evidence.receipt.done.level != "L3"
    assert any("1 clients" in line for line in evidence.receipt.not_covered)
    later = after.run(1)
    assert later.method.settled(later)
    assert sum_digest(later.now.state.own) == later.method.rebuilt(later)


@pytest.mark.parametrize("kind", ["label", "edge", "node"])
def test_receipts_of_nodes_edges_and_labels_are_exact(kind):
    fed = started()
    held = fed.now.vault.holdings
    edge = held.graph.edge[:, 0]
    one, other = held.graph.index[edge].tolist()
    event = {
        "label": first_label(fed),
        "edge": rs.EraseEdges.of(int(held.graph.owner[edge[0]]), [(one, other)]),
        "node": rs.Erase(held.records[:1]),
    }[kind]
    after, evidence = rs.forget(fed, event, audits="none")
    assert evidence.receipt.done.level == "L3"
    assert evidence.exact.asked.records == 1
    assert evidence.cost.participants == {int(event.records.client[0])}  # that device only
    graph = after.now.vault.holdings.graph
    assert len(graph.index) == len(held.graph.index) - (kind == "node")
    if kind == "edge":
        assert graph.edge.shape[1] == held.graph.edge.shape[1] - 2  # both directions


def test_an_edge_that_is_not_there_is_refused_and_named():
    fed = started()
    with pytest.raises(rs.ConsentError, match="client 2 has no edge between nodes 0 and 1"):
        rs.forget(fed, rs.EraseEdges.of(2, [(1, 0)]), audits="none")


@pytest.mark.parametrize("method", [GraphGram(model=WORDS), rs.methods.GraphFedSGD()])
def test_any_graph_learner_forgets_edges_and_labels_by_its_own_way(method):
    fed = rs.Federation.start(tiny_subgraphs(4), method).run(2)
    held = fed.now.vault.holdings
    edge = held.graph.edge[:, 0]
    one, other = held.graph.index[edge].tolist()
    edges = rs.EraseEdges.of(int(held.graph.owner[edge[0]]), [(one, other)])
    after, _ = rs.forget(fed, edges, audits="none")
    after, _ = rs.forget(after, first_label(after), audits="none")
    fresh = rs.Federation.start(after.now.vault.holdings, method).run(2)
    assert params.digest(after.now.state.public) == params.digest(fresh.now.state.public)


def test_measured_values_must_be_of_about_one():
    held = tiny_subgraphs(2)
    graph = replace(held.graph, value=held.graph.value * 1e4)
    with pytest.raises(rs.DataError, match="features reach 10000"):
        RANDOM.rows(graph)
