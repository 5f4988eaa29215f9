"""Recipes that forget: unlearners on one request, measured beside models that never had it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphs import tiny_graph
from rescind.cli import main as entry
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.data.partition import subgraphs
from rescind.errors import ConfigError, ConsentError
from rescind.experiments import learning_run as experiment
from rescind.experiments import unlearning_run as trials
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import read
from rescind.experiments.tables import collect
from rescind.experiments.unlearning_run import run_one
from rescind.storage.federations import load_federation

RECIPE = """
[data]
name = "synthetic"
users = 80
items = 60
interactions = 2000
[sharing]
ratio = [3, 3, 4]
[method]
name = "FedShare"
clients_per_round = 40
snapshots = 0
[run]
rounds = 6
evaluate_every = 3
[forget]
draw = 0.3
[axes]
forget = [
  { label = "Retrain", name = "Retrain" },
  "no-op",
  "score shift",
  "another seed",
  { label = "by contrast", name = "FedShareUnlearn", learner = { snapshots = 3 }, rounds = 2 },
  { label = "FRU", name = "FRU", learner = true },
  { label = "own, unshare", name = "own", event = "unshare" },
]
[table]
columns = ["NDCG@20", "forget.verdict", "forget.kept.server"]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every cell of the recipe, run once through the real door."""
    home = tmp_path_factory.mktemp("trials")
    path = home / "small.toml"
    path.write_text(RECIPE)
    say("run", str(path), "--record", "--out", str(home / "runs"), "--workers", "1")
    return path, {line["cell"]: line for line in lines_of(path)}


def say(*words: str) -> None:
    given, sys.argv = sys.argv, ["rescind", *words]
    try:
        entry()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"rescind {words} ended with {stop.code}") from stop
    finally:
        sys.argv = given


def lines_of(path: Path) -> list[dict]:
    return [json.loads(x) for x in path.with_suffix(".jsonl").read_text().splitlines()]


def test_every_unlearner_gives_one_line_with_its_own_figures(made):
    path, lines = made
    assert list(lines) == list(read(path).names)
    retrain, again = lines["Retrain"]["forget"], lines["another seed"]["forget"]
    assert retrain["distance"] == 0
    assert again["distance"] > 0
    assert retrain["client_rounds"] == 6 * 40
    assert retrain["exact"]
    assert lines["by contrast"]["forget"]["client_rounds"] == 2 * 40
    assert lines["by contrast"]["forget"]["rounds"] == 2
    assert lines["FRU"]["forget"]["learnt_as_the_method"]
    for name, line in lines.items():
        assert line["forget"]["traces"] == 0, name
        assert line["forget"]["value"].keys() == retrain["value"].keys()
        assert set(line["test"]) == set(line["forget"]["before"]["test"])


def test_controls_do_what_is_known_of_them(made):
    _, lines = made
    nothing, shift = lines["no-op"], lines["score shift"]
    assert nothing["test"] == pytest.approx(nothing["forget"]["before"]["test"], abs=1e-6)
    assert nothing["forget"]["distance"] == 1
    assert nothing["forget"]["client_rounds"] == 0
    # Lower scores rank alike.
    assert shift["test"] == nothing["test"]
    # Rows of people over the graph that still has the loans tell of them.
    assert nothing["forget"]["value"]["kept"] > lines["Retrain"]["forget"]["value"]["kept"] + 0.1
    assert nothing["forget"]["escalates"]
    assert not lines["Retrain"]["forget"]["escalates"]


def test_the_request_is_that_of_the_settings(made):
    path, lines = made
    assert lines["own, unshare"]["forget"]["event"] == "Unshare"
    assert lines["Retrain"]["forget"]["event"] == "Erase"
    (base,) = [p for p in (path.parent / "runs/learned").iterdir() if not method_of(p)["snapshots"]]
    fed = load_federation(base / "model")
    people = torch.unique(fed.world.shared.client)
    for line in lines.values():
        assert line["forget"]["people"] == round(0.3 * len(people))
        assert line["forget"]["records"] < len(fed.world.shared)


def method_of(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["configuration"]["method"]


def test_learning_and_retrains_are_shared(made):
    path, _ = made
    # FedShare without snapshots and with them; FRU's log is not written down.
    learned = [method_of(p) for p in (path.parent / "runs/learned").iterdir()]
    assert sorted(m["snapshots"] for m in learned) == [0, 3]
    assert {m["name"] for m in learned} == {"FedShare"}
    kept = list((path.parent / "runs/retrains").iterdir())
    # Five to compare with for each of two events, a sixth for the control.
    assert sum(p.name.startswith("retrain-") for p in kept) == 5 + 1 + 5
    assert sum(p.name.startswith("exact-") for p in kept) == 2


def test_what_is_kept_for_forgetting_is_measured(made):
    path, lines = made
    assert lines["Retrain"]["forget"]["kept"] == {"server": 0, "client": 0}
    folder = next(p for p in (path.parent / "runs/learned").iterdir() if method_of(p)["snapshots"])
    table = load_federation(folder / "model").now.state.public["item"]
    kept = lines["by contrast"]["forget"]["kept"]
    assert kept["client"] == 0
    assert kept["server"] == pytest.approx(3 * table.numel() * 4, rel=0.05)
    assert lines["FRU"]["forget"]["kept"]["client"] > 10 * kept["server"]


def test_a_finished_trial_is_not_made_again(made, capfd):
    path, lines = made
    say("run", str(path), "--record", "--out", str(path.parent / "runs"), "--resume")
    assert capfd.readouterr().err.count("finished before") == len(lines)
    assert len(lines_of(path)) == len(lines)


def test_a_table_shows_what_the_recipe_asks_for(made):
    path, lines = made
    found = {(e.cell, e.metric): e for e in collect(read(path)).entries}
    assert found["no-op", "forget.verdict"].ours() == lines["no-op"]["forget"]["verdict"]
    assert found["FRU", "NDCG@20"].values == (lines["FRU"]["test"]["NDCG@20"],)


def test_a_line_counts_while_its_unlearners_defaults_stay(made):
    path, lines = made
    cell = next(c for c in read(path).cells if c.name == "by contrast")
    line = lines["by contrast"]
    assert cell.made(line)
    other = {**line["settings"]["unlearner"], "unlearn_rate": 0.5}
    assert not cell.made({**line, "settings": {**line["settings"], "unlearner": other}})
    asked = {**line["settings"]["forget"], "draw": 0.4}
    assert not cell.made({**line, "settings": {**line["settings"], "forget": asked}})


def test_a_cell_that_does_not_forget_has_the_digest_it_always_had(made, tmp_path):
    path, _ = made
    plain = tmp_path / "plain.toml"
    plain.write_text(RECIPE.split("[forget]", maxsplit=1)[0])
    (cell,) = read(plain).cells
    assert {replace(c, forget=None).digest for c in read(path).cells} == {cell.digest}
    assert len({c.digest for c in read(path).cells}) == len(read(path).cells)


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ('name = "Retrain"', "and draw = 0.3"),
        ('name = "Retrain"\nclient = 3', "client = 3 with 'withdraw'"),
        ('name = "Retrain"\nevent = "withdraw"\ndraw = 0.3', "client = 3 with 'withdraw'"),
        ('name = "Retrain"\ndraw = 1.5', "at most 1"),
        ('name = "Retrian"\ndraw = 0.3', "did you mean 'Retrain'"),
        ('name = "Retrain"\ndraw = 0.3\nround = 3', "no field 'round'"),
        ('name = "no-op"\ndraw = 0.3\nrounds = 3', "no field 'rounds'"),
        ('name = "own"\ndraw = 0.3\nlearner = true', "no field 'learner'"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(tmp_path, forget, said):
    path = tmp_path / "bad.toml"
    path.write_text(f'[method]\nname = "FedShare"\n[forget]\n{forget}\n')
    with pytest.raises(ConfigError, match=said):
        read(path)


def test_a_row_of_the_method_axis_may_be_a_request(tmp_path):
    path = tmp_path / "rows.toml"
    path.write_text("""
    [forget]
    draw = 0.3
    [axes]
    method = [
      { label = "learning", name = "FedShare" },
      { label = "unlearning", name = "FedShare", forget = { name = "Retrain" } },
    ]
    """)
    one, two = read(path).cells
    assert one.forget is None
    assert two.forget is not None
    assert two.forget.draw == 0.3


def test_nobody_who_lends_cannot_take_back(tmp_path):
    path = tmp_path / "alone.toml"
    text = RECIPE.replace("[sharing]\nratio = [3, 3, 4]\n", "").replace("rounds = 6", "rounds = 1")
    path.write_text(text.replace("evaluate_every = 3", "evaluate_every = 1"))
    cell = read(path, only="Retrain").cells[0]
    with pytest.raises(ConsentError, match="no user shares"):
        trials.run_cell(cell, tmp_path / "out", trials.TrialCache(tmp_path))


def test_several_leavers_are_reported_as_their_mean():
    found = trials.mean_of(
        [
            {"a": 1, "b": {"c": 0.5, "w": "PASS"}, "f": True, "n": None},
            {"a": 2, "b": {"c": 1.0, "w": "FAIL"}, "f": True, "n": 3.0},
        ]
    )
    assert found == {"a": 1.5, "b": {"c": 0.75, "w": "PASS 1, FAIL 1"}, "f": True, "n": 3.0}


NODES = """
[data]
name = "cora"
[method]
name = "GraphFedAvg"
[run]
rounds = 4
evaluate_every = 2
[forget]
event = "withdraw"
client = [0, 3]
[axes]
forget = ["own", "no-op"]
"""


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A recipe on a small graph of our own in place of Cora."""
    graph, part = tiny_graph(nodes=360)
    monkeypatch.setattr("rescind.experiments.prepared_data.prepare_graph", lambda _: graph)
    monkeypatch.setattr(
        experiment, "subgraphs", lambda g, _, clients, seed: subgraphs(g, part, seed=seed)
    )
    path = tmp_path / "nodes.toml"
    path.write_text(NODES)
    return path


def test_nodes_are_learnt_and_forgotten_by_the_measures_of_their_task(nodes, tmp_path):
    own, nothing = read(nodes).cells
    room = trials.TrialCache(tmp_path / "home", workers=1)
    mine = trials.run_cell(own, tmp_path / "own", room).facts
    theirs = trials.run_cell(nothing, tmp_path / "nothing", room).facts
    assert own.run.measure == "accuracy"
    assert set(mine["metrics"]["test"]) == {"accuracy"}
    assert mine["forget"]["distance"] == 0
    assert mine["forget"]["leaver"]["MIA gap"] == 0
    assert theirs["forget"]["distance"] == 1
    # The mean over two leavers, each alone: two requests of one person.
    assert mine["forget"]["people"] == 1
    assert mine["forget"]["client_rounds"] == 4 * 8
    each = mine["forget"]["each"]
    assert len(each["test"]["accuracy"]) == len(each["leaver"]["loss AUC"]) == 2
    assert sum(each["test"]["accuracy"]) / 2 == pytest.approx(
        mine["metrics"]["test"]["accuracy"], abs=1e-6
    )


def test_accuracy_is_that_of_the_clients_who_stay(nodes, tmp_path):
    cell = replace(read(nodes).cells[0])
    assert cell.forget is not None
    cell = replace(cell, forget=replace(cell.forget, client=3))
    facts = trials.run_cell(
        cell, tmp_path / "own", trials.TrialCache(tmp_path / "home", workers=1)
    ).facts
    graph, part = tiny_graph(nodes=360)
    fed = Federation.start(subgraphs(graph, part, seed=0), cell.method, 0)
    (gone,) = trials.events(cell, fed)
    best = facts["round"]
    slow = fed.apply(gone).run(best)
    ids = torch.tensor([c for c in range(9) if c != 3])
    assert facts["metrics"]["test"] == pytest.approx(slow.evaluate(clients=ids))
    assert facts["model"]["public"] == params.digest(slow.now.state.public)


def test_people_who_lend_nothing_erase_what_only_their_devices_have(tmp_path):
    path = tmp_path / "keepers.toml"
    path.write_text(RECIPE.replace("draw = 0.3", 'draw = 0.5\nof = "keepers"'))
    cell = next(c for c in read(path, only="Retrain").cells)
    fed = experiment.start(cell, obtained(cell))
    (event,) = trials.events(cell, fed)
    held, lent = fed.now.vault.holdings, set(fed.world.shared.client.tolist())
    trained = held.records[held.split == TRAIN]
    keepers = set(trained.client.tolist()) - lent
    asked = set(event.records.client.tolist())
    assert asked < keepers
    assert len(asked) == round(len(keepers) / 2)
    assert len(event.records) == sum(int((trained.client == who).sum()) for who in asked)
    with pytest.raises(ConfigError, match="who share nothing"):
        read(path, ["forget.event=unshare"], only="Retrain")
    alone = read(path, ["sharing.ratio=[1, 0, 0]"], only="Retrain").cells[0]
    with pytest.raises(ConsentError, match="no user keeps all records private"):
        trials.events(alone, experiment.start(alone, obtained(alone)))


def test_a_run_uses_one_thread_whatever_the_machine_has(tmp_path):
    path = tmp_path / "one.toml"
    path.write_text(RECIPE)
    cell = replace(read(path).cells[1], forget=None)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        watch = (lambda _: seen.append(torch.get_num_threads()),)
        run_one(cell, tmp_path / "run", trials.TrialCache(tmp_path, watch=watch))
        assert torch.get_num_threads() == 3  # the caller's number is back
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
