"""`rs.GraphGram`: whatever comes and goes, it is a fit on what remains, bit for bit."""

from __future__ import annotations

import gc
import stat
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy.sparse import coo_matrix

import rescind as rs
from graphs import tiny_graph, tiny_subgraphs
from rescind.core.holdings import TEST, TRAIN
from rescind.errors import ConfigError, DataError
from rescind.methods.additive._solve import WEIGHTS
from rescind.models import hops

WORDS = np.array(
    [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 2.5, 1], [0, 0, 1], [1, 0, 1]], dtype=np.float32
)
NODES = {
    "node": ["a", "b", "c", "d", 7, "7"],
    "label": ["x", "x", "y", None, "y", "z"],
    "client": ["one", "one", "one", "two", "two", "two"],
}
EDGES = [("a", "b"), ("b", "c"), ("d", 7), (7, "7"), ("c", "d"), ("b", "a"), ("a", "a")]


def learner(**changed):
    return rs.GraphGram(**{"random": 0, **changed})


def fitted(**changed):
    return learner(**changed).fit(NODES, EDGES, features=WORDS)


# -- the model ------------------------------------------------------------------------------------


def test_it_is_the_model_of_the_federation():
    held = tiny_subgraphs(4)
    fed = rs.Federation.start(held, rs.methods.GraphGram()).run(1)
    graph, split = (
        held.graph,
        dict(zip(held.records.item.tolist(), held.split.tolist(), strict=True)),
    )
    features = torch.zeros(len(graph.owner), graph.features)
    features[graph.node, graph.feature] = graph.value.float()
    label = [n if split.get(at) == TRAIN else -1 for at, n in enumerate(graph.label.tolist())]
    shuffled = np.arange(len(label)) * 7 % len(label)
    table = {"id": graph.index.numpy(), "part": graph.owner.numpy(), "y": np.array(label)}
    table = {name: column[shuffled] for name, column in table.items()}
    model = rs.GraphGram().fit(table, graph.edge.T.numpy(), features=features.numpy()[shuffled])
    assert torch.equal(model._weights(), fed.now.state.public[WEIGHTS])
    tested = {n: int(graph.label[n]) for n, part in split.items() if part == TEST}
    assert model.evaluate(list(tested.items())) == pytest.approx(fed.evaluate())
    assert all(isinstance(each, int) for each in model.predict(tested))


def test_a_graph_of_the_catalogue_is_learnt_from_its_published_split():
    graph, number = tiny_graph(60)[0], np.arange(60)
    graph = replace(graph, train_mask=number % 2 == 0, test_mask=number % 2 == 1)
    model = rs.GraphGram().fit(graph)
    known = np.where(graph.train_mask, graph.y, -1)
    again = rs.GraphGram().fit(
        {"node": np.arange(len(graph)), "label": known}, graph.edge_index.T, features=graph.features
    )
    assert model.digest() == again.digest()
    assert (len(model), model.clients) == (len(graph), ["all"])
    test = np.flatnonzero(graph.test_mask & (graph.y >= 0))
    right = np.array(model.predict(test)) == graph.y[test]
    assert model.evaluate(graph)["accuracy"] == pytest.approx(right.mean())
    assert right.mean() > 1 / graph.num_classes


def test_neighbours_of_another_client_do_not_count():
    alone = [edge for edge in EDGES if edge != ("c", "d")]
    assert learner().fit(NODES, alone, features=WORDS).digest() == fitted().digest()
    joined = {name: column for name, column in NODES.items() if name != "client"}
    assert learner().fit(joined, EDGES, features=WORDS).digest() != fitted().digest()


def test_two_classes_have_an_area_under_the_curve():
    model = learner().fit({**NODES, "label": ["x", "x", "y", None, "y", None]}, features=WORDS)
    assert set(model.evaluate([("d", "y"), ("7", "x")])) == {"accuracy", "ROC-AUC"}
    assert model.evaluate([("d", "a class that nobody has")])["accuracy"] == 0
    with pytest.raises(DataError, match="no known classes"):
        model.evaluate([("d", None)])


# -- inputs ---------------------------------------------------------------------------------------

FLAT = {**NODES, "node": list("abcdef"), **{f"word {n}": WORDS[:, n] for n in range(3)}}
JOINED = [("a", "b"), ("b", "c"), ("d", "e"), ("e", "f")]
TABLES = {
    "columns": (FLAT, JOINED, None),
    "pandas": (pandas.DataFrame(FLAT), pandas.DataFrame(JOINED, columns=["from", "to"]), None),
    "arrow": (pyarrow.table(FLAT), pyarrow.table({"src": list("abde"), "dst": list("bcef")}), None),
    "sparse": ({k: FLAT[k] for k in NODES}, JOINED, coo_matrix(WORDS)),
    "dense": ({k: FLAT[k] for k in NODES}, np.array(JOINED)[:, ::-1], WORDS.astype(float)),
    "numbers for labels": (
        pandas.DataFrame({**FLAT, "label": [0.0, 0, 1, np.nan, 1, 2]}).astype({"label": float}),
        JOINED,
        None,
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_gives_the_same_model(kind):
    nodes, edges, features = TABLES[kind]
    model = learner().fit(nodes, edges, features=features)
    known = learner().fit(FLAT, JOINED)
    assert torch.equal(model._state.total, known._state.total)
    assert (model.nodes, model.clients) == (list("abcdef"), ["one", "two"])
    expected = [0, 1, 2] if kind.startswith("numbers") else ["x", "y", "z"]
    assert model.classes == expected
    assert model.predict(["a", "b"]) == expected[:1] * 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nodes": {**NODES, "node": [*"abcde", "a"]}}, "node 'a' is there already"),
        ({"nodes": {**NODES, "node": [*"abcde", 1.5]}}, "node 1.5 is a float"),
        ({"nodes": {**NODES, "label": ["x"]}}, "equally long; got node 6, label 1, client 6"),
        ({"features": WORDS[:2]}, "equally long; got node 6.*features 2"),
        ({"features": WORDS * np.nan}, "a feature is not a finite number"),
        ({"features": None}, "nodes have no features"),
        ({"nodes": {**NODES, "word": ["much"] * 6}, "features": None}, "a matrix of numbers"),
        ({"edges": [("a", "q")]}, "there is no node 'q' among 6 nodes"),
        ({"edges": np.zeros((2, 5), int)}, r"pairs of node ids, \[E, 2\]"),
        ({"columns": {"node": "who"}}, "there is no column 'who'"),
        ({"nodes": {"label": ["x"]}}, "no column of label is the node"),
    ],
)
def test_what_cannot_be_read_changes_nothing(given, told):
    model = fitted()
    before = model.digest()
    with pytest.raises((DataError, ConfigError), match=told):
        model.fit(**{"nodes": NODES, "edges": EDGES, "features": WORDS, **given})
    assert model.digest() == before


def test_features_must_stay_as_wide_and_as_small_as_they_are():
    model = fitted()
    with pytest.raises(DataError, match="nodes have 2 features, those before had 3"):
        model.add({"node": ["new"]}, features=[[1, 2]])
    with pytest.raises(DataError, match=r"features reach 2000.*Divide the columns"):
        rs.GraphGram().fit({"node": [1]}, features=[[2000.0]])
    with pytest.raises(ConfigError, match="max_width is 3"):
        learner(max_width=3).fit(NODES, EDGES, features=WORDS)


def test_settings_count_at_the_next_use_and_wrong_ones_change_nothing():
    model = fitted()
    model.predict(["a"])
    model.set_params(hops=1, ridge=5.0)
    again = fitted(hops=1, ridge=5.0)
    assert model.digest() == again.digest()
    assert torch.equal(model._weights(), again._weights())
    for wrong, told in [({"ridge": -1.0}, "ridge must be above 0"), ({"hops": 40}, "0 to 20")]:
        with pytest.raises(ConfigError, match=told):
            model.set_params(**wrong).forget(nodes=["a"])
        model.set_params(hops=1, ridge=5.0)
    assert model.digest() == again.digest()
    assert repr(model) == "GraphGram(ridge=5.0, hops=1, random=0)"


# -- forgetting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"nodes": ["a", "q"]}, "there is no node 'q' among 6 nodes"),
        ({"nodes": ["a"], "clients": ["three"]}, "there is no client 'three' among 2 clients"),
        ({"edges": [("a", "b"), ("a", "c")]}, "no edge between 'a' and 'c'.*Nothing was"),
        ({"labels": ["a", "d"]}, "node 'd' has no label. Nothing"),
        ({}, "nothing to forget"),
        ({"nodes": "a"}, r"nodes must be a list of ids; got 'a'. Write nodes=\['a'\]"),
    ],
)
def test_what_is_not_there_cannot_be_forgotten(asked, told):
    model = fitted()
    with pytest.raises((DataError, ConfigError), match=told):
        model.forget(**asked)
    assert model.digest() == fitted().digest()
    assert len(model) == 6


def test_nothing_of_what_left_is_reachable(tmp_path):
    gc.collect()
    before = len(hops._LAST)
    model = fitted()
    model.predict(["d"])
    model.forget(clients=["two"], nodes=["b"], labels=["a"])
    gc.collect()
    assert len(hops._LAST) <= before + 1  # rows of client "one" as it is now
    model.save(tmp_path / "model")
    everything = repr(vars(model)) + repr(vars(model._ledger))
    for gone in ("'b'", "'d'", "two", "'x'", "'z'"):
        assert gone not in everything
        assert gone.strip("'").encode() not in (tmp_path / "model").read_bytes().split(b"__meta")[0]
    assert model.classes == ["y"]


def test_everybody_may_leave_and_another_graph_may_come():
    model = fitted().forget(clients=["one", "two"])
    assert model.digest() == rs.GraphGram().digest()
    assert (model.nodes, model.clients, model.classes, len(model)) == ([], [], [], 0)
    model.add({"node": [1, 2], "label": [0, 1]}, [(1, 2)], features=np.eye(2))
    again = learner().fit({"node": [1, 2], "label": [0, 1]}, [(1, 2)], features=np.eye(2))
    assert model.digest() == again.digest()
    with pytest.raises(DataError, match="no node has a label"):
        model.forget(labels=[1, 2]).predict([1])


def test_a_saved_model_comes_back(tmp_path):
    model = fitted(ridge=7.0)
    model.save(tmp_path / "model")
    again = rs.GraphGram.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.predict(model.nodes) == model.predict(model.nodes)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o600
    with pytest.raises(DataError, match="holds GraphGram, format 1; Gram"):
        rs.Gram.load(tmp_path / "model")


# -- whatever comes and goes ----------------------------------------------------------------------

IDS = st.sampled_from([0, 1, 2, "1", "zoë", "a node, with 'quotes'", -5, 8])
CLIENTS = st.sampled_from([0, "0", "silo"])
LABELS = st.sampled_from([None, 0, 1, "1", ""])
ROWS = st.lists(st.sampled_from([0.0, 1.0, 0.3, -2.0]), min_size=3, max_size=3)


class Machine(RuleBasedStateMachine):
    """Nodes, edges and labels come and go at random; plain dictionaries say what remains."""

    def __init__(self):
        super().__init__()
        self.nodes, self.edges = {}, set()  # node -> (client, label, row)
        self.model = learner(hops=2)

    @initialize()
    def fit(self):
        self.model.fit({"node": []}, features=np.zeros((0, 3)))

    @rule(data=st.data())
    def add(self, data):
        given = data.draw(st.dictionaries(IDS, st.tuples(CLIENTS, LABELS, ROWS), max_size=4))
        new = {node: row for node, row in given.items() if node not in self.nodes}
        known = [*self.nodes, *new]
        pair = st.tuples(st.sampled_from(known), st.sampled_from(known)) if known else st.nothing()
        edges = data.draw(st.lists(pair, max_size=6)) if known else []
        nodes = columns(new) if new else None
        self.model.add(nodes, edges, features=features(new) if new else None)
        self.nodes.update(new)
        for one, other in edges:
            if one != other and self.nodes[one][0] == self.nodes[other][0]:
                self.edges.add(frozenset([one, other]))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def forget_a_client(self, data):
        gone = data.draw(st.sampled_from(sorted({c for c, _, _ in self.nodes.values()}, key=repr)))
        self.model.forget(clients=[gone])
        self.without([n for n, row in self.nodes.items() if row[0] == gone])

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def forget_nodes(self, data):
        known = st.sampled_from(sorted(self.nodes, key=repr))
        gone = data.draw(st.lists(known, min_size=1, max_size=3))
        self.model.forget(nodes=gone)
        self.without(gone)

    def without(self, gone):
        self.nodes = {n: row for n, row in self.nodes.items() if n not in gone}
        self.edges = {edge for edge in self.edges if not edge & set(gone)}

    @precondition(lambda self: self.edges)
    @rule(data=st.data(), turned=st.booleans())
    def forget_an_edge(self, data, turned):
        edge = data.draw(st.sampled_from(sorted(self.edges, key=lambda e: sorted(map(repr, e)))))
        ends = sorted(edge, key=repr, reverse=turned)
        self.model.forget(edges=[tuple(ends)])
        self.edges.discard(edge)

    @precondition(lambda self: any(label is not None for _, label, _ in self.nodes.values()))
    @rule(data=st.data())
    def forget_a_label(self, data):
        labelled = [n for n, (_, label, _) in self.nodes.items() if label is not None]
        gone = data.draw(st.sampled_from(sorted(labelled, key=repr)))
        self.model.forget(labels=[gone])
        client, _, row = self.nodes[gone]
        self.nodes[gone] = client, None, row

    @rule()
    def save_and_load(self):
        with TemporaryDirectory() as folder:
            self.model.save(Path(folder) / "model")
            self.model = rs.GraphGram.load(Path(folder) / "model")

    @invariant()
    def is_a_fit_on_what_remains(self):
        turned = dict(reversed(self.nodes.items()))
        again = learner(hops=2)
        if turned:
            edges = [tuple(sorted(edge, key=repr)) for edge in self.edges]
            again.fit(columns(turned), edges, features=features(turned))
        assert self.model.digest() == again.digest()
        assert (self.model.nodes, self.model.clients) == (again.nodes, again.clients)
        assert contents(self.model) == contents(again)
        if again.classes:
            assert torch.equal(self.model._weights(), again._weights())
            assert self.model.predict(again.nodes) == again.predict(again.nodes)


def columns(nodes):
    clients, labels, _ = zip(*nodes.values(), strict=True)
    return {"node": list(nodes), "client": list(clients), "label": list(labels)}


def features(nodes):
    return [row for _, _, row in nodes.values()]


def contents(model):
    """Everything that is written to a file."""
    tensors, notes = model._packed()
    return [*((n, v.tolist()) for n, v in sorted(tensors.items())), *sorted(notes.items())]


TestGraphGram = Machine.TestCase
TestGraphGram.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
