"""Attacks on the sums of GraphGram find what is there, and nothing that is not."""

from __future__ import annotations

import numpy as np
import pytest

import rescind as rs
from graphs import tiny_graph, tiny_subgraphs
from rescind.data.partition import subgraphs
from rescind.experiments.graph_leaks import graph_leaks, peeled
from rescind.methods.additive.graph_gram import GraphGram
from rescind.models.hops import UNIT, Hops


def test_a_row_with_a_word_of_its_own_is_read_and_then_the_next():
    # Columns: three words, the constant, two classes. Word 0 is of node 0 alone; when node 0 is
    # gone, word 1 is of node 1 alone. Nodes 2 and 3 share word 2 and stay hidden.
    rows = np.array(
        [
            [700, 300, 100, UNIT, UNIT, 0],
            [0, 500, 400, UNIT, 0, UNIT],
            [0, 0, 600, UNIT, UNIT, 0],
            [0, 0, 600, UNIT, 0, UNIT],
        ]
    )
    found = list(peeled(rows.T @ rows, 4))
    assert np.array_equal(found, rows[:2])


def test_a_sum_of_many_hides_rows_that_a_part_shows():
    graph, part = tiny_graph(300, 10)
    held = subgraphs(graph, part, seed=0, ratio=(10, 45, 45))
    fed = rs.Federation.start(held, GraphGram(model=Hops(random=0, hops=1))).run(1)
    alone, together = graph_leaks(fed)
    assert alone["view"] == "one client's part"
    assert together["nodes"] == pytest.approx(10 * alone["nodes"])
    assert alone["rows read"] > together["rows read"]
    # Fewer nodes than columns: whoever was trained on is found, with the label.
    assert alone["label of a known node"] == 1.0
    assert alone["member AUC"] > together["member AUC"]


def test_another_method_is_refused_by_name():
    fed = rs.Federation.start(tiny_subgraphs(3), rs.methods.GraphFedSGD())
    with pytest.raises(rs.ConfigError, match="needs a run of GraphGram; got GraphFedSGD"):
        graph_leaks(fed)
