"""The lifecycle of a graph: silos hold parts of it, and what is erased must not stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from graphs import tiny_graph
from rescind.core.records import Arrive, EraseEdges, EraseLabels, Records, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.life import lines
from rescind.life.cells import cells_of
from rescind.life.entry import Asked
from rescind.life.find import find
from rescind.life.nodes import NodeLedger, joined_nodes
from rescind.life.nodes_rows import NODE_ROWS, ExactSilos, NoOpSilos
from rescind.life.nodes_story import GraphPlot, write_node_story
from rescind.life.run import play, setting_of
from rescind.life.story import Story
from rescind.methods.graphs.fedavg import GraphFedSGD

Facts = list[dict[str, Any]]


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    made, part = tiny_graph(120, 4)
    monkeypatch.setattr("rescind.life.nodes.published_parts", lambda _: part)
    return made


@pytest.fixture
def nodes(graph: Any) -> Story:
    return write_node_story(graph, 0, 4, GraphPlot(away=1))


def played(story: Story, row: str) -> Facts:
    setting = setting_of(story)
    return play(story, lambda seed: NODE_ROWS[row].build(setting, seed), 0)


def test_everything_happens_that_the_page_promises(nodes: Story) -> None:
    whys = [(step.block, step.why) for step in nodes.steps]
    for block in range(4):
        assert {(block, why) for why in ("arrive", "erase", "edges", "labels")} <= set(whys)
    assert {(1, "burst"), (2, "silo"), (3, "back")} <= set(whys)
    assert write_node_story(nodes.graph, 1, 4).digest != nodes.digest  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ["GraphGram", "GraphFedSGD + retraining"])
def test_exact_rows_are_equal_after_each_step(nodes: Story, row: str) -> None:
    facts = played(nodes, row)
    steps = [step for block in facts for step in block["steps"]]
    assert {step["why"] for step in steps} == {"erase", "edges", "labels", "burst", "silo"}
    assert all(step["equal"] for step in steps)
    assert all(block["equal"] for block in facts)
    assert facts[-1]["old"]["accuracy"] > 0.5


class IgnoresEdges(ExactSilos):
    """A method that forgets nodes and labels, and not edges."""

    def forget(self, asked: Asked) -> None:
        if asked.kind != "edges":
            super().forget(asked)


def test_an_edge_that_stays_is_seen(nodes: Story) -> None:
    begun = replace(nodes, about={**nodes.about, "blocks": 1})
    setting = setting_of(begun)
    facts = play(begun, lambda seed: IgnoresEdges(setting, seed, GraphFedSGD(), 2), 0)
    found = {step["why"]: step["equal"] for step in facts[0]["steps"]}
    assert found == {"erase": True, "edges": False, "labels": False}


def test_doing_nothing_is_at_the_distance_of_doing_nothing(nodes: Story) -> None:
    begun = replace(nodes, about={**nodes.about, "blocks": 1})
    setting = setting_of(begun)
    facts = play(begun, lambda seed: NoOpSilos(setting, seed, GraphFedSGD(), 4), 0)
    far = {step["why"]: step["distance"] for step in facts[0]["steps"]}
    assert far["erase"] == far["labels"] == 1.0
    assert facts[0]["verdict"]["verdict"] != "PASS"


def test_the_ledger_by_hand(graph: Any) -> None:
    ledger = NodeLedger(graph)
    (low, high), home = ledger.edges[0], ledger.home
    silo = int(home[low])
    many = [n for n in range(len(graph)) if home[n] == silo]
    split = np.zeros(len(many), dtype=np.int8)
    ledger.apply(Arrive(Records.of([silo] * len(many), many), torch.from_numpy(split), 4, 120))
    (block,) = ledger.blocks()
    assert (low, high) in set(zip(*block.edge.tolist(), strict=True))
    ledger.apply(EraseEdges.of(silo, [(high, low)]))
    ledger.apply(EraseLabels(Records.of([silo], [low])))
    (block,) = ledger.blocks()
    assert (low, high) not in set(zip(*block.edge.tolist(), strict=True))
    assert block.label[block.item == low].tolist() == [-1]
    assert ledger.gone(0) == [(silo, low)]
    with pytest.raises(ConsentError, match="no training node"):
        ledger.apply(EraseLabels(Records.of([silo], [low])))
    ledger.apply(Withdraw(silo))
    assert not len(ledger.blocks()[0])
    assert len(ledger.ever_there()) == len(many)


def test_of_a_node_that_arrives_twice_the_first_counts(graph: Any) -> None:
    ledger = NodeLedger(graph)
    mine = Records.of([int(ledger.home[0])], [0])
    ledger.apply(Arrive(mine, torch.zeros(1, dtype=torch.int8), 4, 120))
    (piece,) = ledger.blocks()
    again = replace(piece, label=piece.label * 0 - 1)
    assert joined_nodes([piece, again]).label.tolist() == piece.label.tolist()


def test_a_graph_has_rows_of_its_own(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [cell.row for cell in cells_of(["cora"], [0])] == list(NODE_ROWS)
    assert "GraphFedSGD" in str(find("no-op", "nodes").make(setting_of_tiny(graph), 0).settings())
    with pytest.raises(ConfigError, match="no method 'Gram'"):
        find("Gram", "nodes")
    monkeypatch.setattr("rescind.data.load", lambda _: graph)
    with pytest.raises(DataError, match="task is 'nodes'"):
        lines.story_of("another graph", "ranking", 0, 4)


def setting_of_tiny(graph: Any) -> Any:
    return setting_of(write_node_story(graph, 0, 4))
