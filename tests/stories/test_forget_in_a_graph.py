"""Nodes, edges and labels are erased from a graph run on disk, and do not come back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rescind.experiments.forget_run import answer, read_request

from graphs import tiny_graph
from rescind.cli import main
from rescind.core import params
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, ConsentError, DataError
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


def ask(run, kind):
    held = load_federation(run / "model").now.vault.holdings
    trained = held.records.item[held.split == 0].tolist()
    one, other = some_edge(run)
    return {"nodes": f"{trained[0]},{trained[5]}", "labels": str(trained[7]),
            "edges": f"{other}-{one}"}[kind]  # fmt: skip


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
def test_what_is_erased_is_left_out_by_every_later_run(run, tmp_path, kind):
    before, asked = facts(load_federation(run / "model")), ask(run, kind)
    done = answer(run, kind, asked, audits="none", everywhere=True)
    left = facts(done.fed)
    assert left["sum"] != before["sum"]
    assert done.evidence.receipt.done.level == "L3"
    elsewhere = run_cell(CELL, tmp_path / "elsewhere", dataset=graph())
    assert facts(elsewhere.fed) == left, "the list of the dataset"
    assert facts(run_cell(CELL, run, dataset=graph()).fed) == left, "the list of the run"
    with pytest.raises(ConsentError, match=r"erased|no edge"):
        answer(done.folder, kind, asked, audits="none")


def test_a_rerun_states_the_digest_of_what_is_left_of_the_graph(run, tmp_path):
    before = read_facts(run)["data"]["digest"]
    assert before == graph().digest, "control: a run without a request states the whole graph"
    done = answer(run, "nodes", ask(run, "nodes"), audits="none")
    left, path = done.fed.now.vault.holdings.digest(), tmp_path / "results" / "t.toml"
    again = run_cell(CELL, run, dataset=graph())
    assert read_facts(run)["data"]["digest"] == again.facts["data"]["digest"] == left
    path.parent.mkdir()
    append_facts(Recipe(path, "", "", (), ()), again.facts)
    line = json.loads(path.with_suffix(".jsonl").read_text())
    assert line["data"] == left != before


def test_parts_that_are_drawn_anew_leave_it_out_too(run, tmp_path):
    one, other = some_edge(run)
    node = int(ask(run, "labels"))
    later = answer(run, "edges", f"{one}-{other}", audits="none", everywhere=True).folder
    answer(later, "nodes", str(node), audits="none", everywhere=True)
    together = replace(CELL, data=replace(DATA, clients=1))
    held = run_cell(together, tmp_path / "one", dataset=graph()).fed.now.vault.holdings.graph
    assert node not in held.index.tolist()
    assert [one, other] not in held.index[held.edge].T.tolist()


def test_a_client_that_left_stays_away_with_all_its_nodes(run, tmp_path):
    done = answer(run, "withdraw", "2", audits="none", everywhere=True)
    again = run_cell(CELL, tmp_path / "again", dataset=graph()).fed
    assert facts(again) == facts(done.fed)
    assert not bool(again.world.members[2])


def test_the_list_tells_nothing_without_the_key(run):
    one, other = some_edge(run)
    folder = answer(run, "edges", f"{one}-{other}", audits="none").folder
    listed = Blocklist.read(folder)
    assert len(listed.graph) == 1
    assert all(len(digest) == 32 for digest in listed.graph)
    assert not listed.erased


def test_bad_requests_are_told_what_to_do(run, tmp_path):
    fed = load_federation(run / "model")
    file = tmp_path / "request.csv"
    file.write_text("one,two\n1,2\n")
    for kind, source, error, told in [
        ("nodes", "9999", ConsentError, "there is no node 9999 in this run.*90 nodes"),
        ("nodes", "2", ConsentError, "node 2 has no label.*Only nodes with a label"),
        ("labels", "3", ConsentError, "node 3 has no label"),
        ("nodes", "twelve", DataError, "'twelve' is not node by number. Write 12,40"),
        ("nodes", "", DataError, "'' is not node by number"),
        ("edges", "12", DataError, "'12' is not node and other by number. Write 12-40,12-55"),
        ("edges", str(file), DataError, "no column 'node'; it has one, two"),
    ]:
        with pytest.raises(error, match=told):
            read_request(fed, kind, source)
    with pytest.raises(ConsentError, match="has no edge between nodes 4 and 5"):
        fed.apply(read_request(fed, "edges", "4-5"))
    ranking = Cell("r", DataSettings(name="synthetic"), None, FedAvg(model=MF(dim=2)),
                   RunSettings(rounds=1))  # fmt: skip
    run_cell(ranking, tmp_path / "ranking")
    with pytest.raises(ConfigError, match=r"--nodes names parts of a graph.*Use --erase FILE"):
        read_request(load_federation(tmp_path / "ranking" / "model"), "nodes", "1")


def test_a_file_names_as_many_as_you_like(run, tmp_path):
    fed, file = load_federation(run / "model"), tmp_path / "edges.csv"
    one, other = some_edge(run)
    file.write_text(f"node,other\n{one},{other}\n{one},{other}\n")
    assert read_request(fed, "edges", str(file)) == read_request(fed, "edges", f"{one}-{other}")
    assert len(read_request(fed, "edges", str(file)).records) == 1


def test_the_command_takes_node_numbers(run, tmp_path, capsys, monkeypatch):
    one, other = some_edge(run)
    asked = ["--edges", f"{one}-{other}", "--audits", "none", "--out", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", ["rescind", "forget", str(run), *asked])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "edges: 1 record." in capsys.readouterr().out
    held = load_federation(tmp_path / "new" / "model").now.vault.holdings.graph
    assert [one, other] not in held.index[held.edge].T.tolist()
