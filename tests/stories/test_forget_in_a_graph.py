"""Nodes, edges and labels are erased from a graph run on disk, and do not come back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from graphs import tiny_graph
from requesting import ask, ask_of, receipt_of, write_rows
from rescind.cli import app
from rescind.core import params
from rescind.data.blocklist import Blocklist, of_run
from rescind.data.importing import import_file
from rescind.experiments.learning_run import append_facts, run_cell
from rescind.experiments.recipe import Cell, DataSettings, Recipe, RunSettings
from rescind.methods.additive.graph_gram import SUM, GraphGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import read_facts

DATA = DataSettings(name="cora", parts="louvain", clients=3)
CELL = Cell(
    "tiny", DATA, None, GraphGram(), RunSettings(rounds=1, measure="accuracy", evaluate_every=1)
)


def graph():
    """A graph as a publisher has it; its source makes it data about people."""
    return replace(tiny_graph(90)[0], name="tiny-graph", source="publisher")


@pytest.fixture
def run(tmp_path):
    run_cell(CELL, tmp_path / "run", dataset=graph())
    return tmp_path / "run"


def some_edge(run):
    held = load_federation(run / "model").now.vault.holdings.graph
    return tuple(held.index[held.edge[:, 3]].tolist())


def asked_of(run, kind):
    held = load_federation(run / "model").now.vault.holdings
    trained = held.records.item[held.split == 0].tolist()
    one, other = some_edge(run)
    return {"nodes": (str(trained[0]), str(trained[5])), "labels": (str(trained[7]),),
            "edges": (f"{other}-{one}",)}[kind]  # fmt: skip


def forget(run, kind, items):
    """Ask for parts of a graph, as `--nodes 1,2` does."""
    return ask_of(run, kind, "", items=items)


def facts(fed):
    """All that a graph run learns from."""
    held = fed.now.vault.holdings
    ends = held.graph.index[held.graph.edge]
    return {
        "records": sorted(held.records.item.tolist()),
        "nodes": held.graph.index.tolist(),
        "labels": held.graph.label.tolist(),
        "edges": sorted(ends.T.tolist()),
        "sum": params.digest({SUM: fed.now.state.own[SUM]}),
    }


@pytest.mark.parametrize("kind", ["nodes", "edges", "labels"])
def test_what_is_erased_is_left_out_by_every_later_run(run, kind):
    before, asked = facts(load_federation(run / "model")), asked_of(run, kind)
    done = forget(run, kind, asked)
    left = facts(load_federation(run / "model"))
    assert left["sum"] != before["sum"]
    assert receipt_of(done).done.level == "L3"
    assert facts(run_cell(CELL, run, dataset=graph()).fed) == left
    assert forget(run, kind, asked).code == "not-held"


def test_a_rerun_states_the_digest_of_what_is_left_of_the_graph(run, tmp_path):
    before = read_facts(run)["data"]["digest"]
    assert before == graph().digest, "control: a run without a request states the whole graph"
    forget(run, "nodes", asked_of(run, "nodes"))
    left = load_federation(run / "model").now.vault.holdings.digest()
    again, path = run_cell(CELL, run, dataset=graph()), tmp_path / "results" / "t.toml"
    assert read_facts(run)["data"]["digest"] == again.facts["data"]["digest"] == left
    path.parent.mkdir()
    append_facts(Recipe(path, "", "", (), ()), again.facts)
    line = json.loads(path.with_suffix(".jsonl").read_text())
    assert line["data"] == left != before


def test_parts_that_are_drawn_anew_leave_it_out_too(run):
    one, other = some_edge(run)
    (node,) = asked_of(run, "labels")
    forget(run, "edges", (f"{one}-{other}",))
    forget(run, "nodes", (node,))
    together = replace(CELL, data=replace(DATA, clients=1))
    held = run_cell(together, run, dataset=graph()).fed.now.vault.holdings.graph
    assert int(node) not in held.index.tolist()
    assert [one, other] not in held.index[held.edge].T.tolist()


def test_a_client_that_left_stays_away_with_all_its_nodes(run):
    assert ask_of(run, "leave", "2").outcome == "ERASED"
    left = facts(load_federation(run / "model"))
    again = run_cell(CELL, run, dataset=graph()).fed
    assert facts(again) == left
    assert not bool(again.world.members[2])


def test_the_list_tells_nothing_without_the_key(run):
    one, other = some_edge(run)
    forget(run, "edges", (f"{one}-{other}",))
    listed = Blocklist.of_dataset(of_run(read_facts(run)["artefact"]))
    assert len(listed.graph) == 1
    assert all(len(digest) == 32 for digest in listed.graph)
    assert not listed.erased


@pytest.mark.parametrize(
    ("kind", "items", "code"),
    [
        ("nodes", ("9999",), "not-held"),
        ("nodes", ("2",), "not-held"),  # it has no label
        ("labels", ("3",), "not-held"),
        ("edges", ("4-5",), "not-held"),
        ("nodes", ("twelve",), "form"),
        ("nodes", (), "form"),
        ("edges", ("12",), "form"),
    ],
)
def test_what_is_not_there_changes_nothing(run, kind, items, code):
    before = facts(load_federation(run / "model"))
    assert forget(run, kind, items).code == code
    assert facts(load_federation(run / "model")) == before


def test_data_without_a_graph_has_no_nodes(tmp_path):
    run_cell(replace(CELL, data=DataSettings(name="synthetic", users=20, items=20,
             interactions=200), method=FedAvg(model=MF(dim=2)),
             run=RunSettings(rounds=1)), tmp_path / "ranking")  # fmt: skip
    assert forget(tmp_path / "ranking", "nodes", ("1",)).code == "no-graph"
    rows = [(f"c{n}", f"p{k}") for n in range(5) for k in range(4)]
    import_file(write_rows(tmp_path / "shop.csv", rows), "shop")
    assert ask("shop", "nodes", "", items=("1",)).code == "no-graph"


def test_the_command_takes_node_numbers(run):
    one, other = some_edge(run)
    words = ["forget", str(run), "--edges", f"{one}-{other}", "--case", "DSR-117", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["case"] == "DSR-117"
    held = load_federation(run / "model").now.vault.holdings.graph
    assert [one, other] not in held.index[held.edge].T.tolist()
