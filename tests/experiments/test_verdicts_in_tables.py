"""Tables of recipes that forget show what the audit said: by accuracy a no-op looks perfect."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rescind.cli import main as entry
from rescind.cli import table as door
from rescind.errors import ConfigError
from rescind.experiments import unlearning_run
from rescind.experiments.recipe import Recipe, read
from rescind.experiments.tables import collect, remarks

RECIPE = """
[sharing]
[method]
name = "FedShare"
[forget]
draw = 0.3
[axes]
forget = ["Retrain", "no-op", { label = "few", name = "FedShareUnlearn", rounds = 2 }]
seed = [0, 1, 2]
[plot]
x = "forget.name"
"""
PASSED = {"kept": "PASS", "stale, carried": "PASS"}
FAILED = {"kept": "FAIL", "stale, carried": "PASS"}
FOUND = {
    "Retrain": [("PASS", PASSED), ("PASS", PASSED), ("INCONCLUSIVE", PASSED)],
    "no-op": [("FAIL", FAILED), ("FAIL", {**FAILED, "stale, carried": "FAIL"}), ("FAIL", FAILED)],
}


def written(folder: Path, text: str = RECIPE, found=FOUND) -> Recipe:
    """A recipe with results: the verdict and those of the checks, by cell and seed."""
    path = folder / "mine.toml"
    path.write_text(text)
    recipe = read(path)
    digests = {cell.name: cell.digest for cell in recipe.cells}
    lines = [
        {
            "cell": cell,
            "seed": seed,
            "digest": digests[cell],
            "test": {"HR@20": 0.5, "NDCG@20": 0.25},
            "forget": {"verdict": verdict, "verdicts": checks} if verdict else {"rounds": 0},
        }
        for cell, seeds in found.items()
        for seed, (verdict, checks) in enumerate(seeds)
    ]
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return recipe


def test_a_table_of_cells_that_forget_ends_with_their_verdicts(tmp_path, capsys):
    door.command(str(written(tmp_path).path), as_markdown=True)
    rows = capsys.readouterr().out.splitlines()
    assert rows[1] == "| cell | seeds | HR@20 | NDCG@20 | verdict |"
    assert rows[3].endswith("| 0.2500 ± 0.0000 | PASS 2, INCONCLUSIVE 1 |")
    assert rows[4].endswith("| 0.2500 ± 0.0000 | FAIL |")
    assert rows[5].endswith("| not run | not run |")
    assert rows[6] == "Checks that 'no-op' failed: kept; stale, carried (1 of 3 seeds)."
    assert "Checks that 'Retrain'" not in "".join(rows)


def test_other_forms_of_the_table_have_the_verdicts_too(tmp_path, capsys):
    recipe = written(tmp_path)
    door.command(str(recipe.path), as_csv=True)
    out, err = capsys.readouterr()
    words = {r["cell"]: r["words"] for r in csv.DictReader(out.splitlines())
             if r["metric"] == "verdict"}  # fmt: skip
    assert words == {"Retrain": "PASS; PASS; INCONCLUSIVE", "no-op": "FAIL; FAIL; FAIL", "few": ""}
    assert "Checks that 'no-op' failed" in err
    door.command(str(recipe.path), as_latex=True)
    assert r"& PASS 2, INCONCLUSIVE 1 \\" in capsys.readouterr().out
    door.command(str(recipe.path), as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert {e["metric"] for e in facts["entries"]} == {"HR@20", "NDCG@20", "verdict"}
    assert facts["failed_checks"] == {"no-op": {"kept": 3, "stale, carried": 1}}


def test_a_cell_that_claims_to_be_exact_and_is_not_is_named(tmp_path):
    """On small data its audit says INCONCLUSIVE, as that of a true retraining does."""
    recipe = written(tmp_path)
    lines = [json.loads(line) for line in recipe.results.read_text().splitlines()]
    far = {"Retrain": 7e-5, "no-op": 0.98}  # the first is the arithmetic of another processor
    for line in lines:
        line["forget"] |= {"exact": True, "distance": far[line["cell"]] - 0.01 * line["seed"]}
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (told,) = collect(recipe).not_as_claimed
    assert told.startswith("'no-op' claims to be exact (exact = True) and is not")
    assert "distance 0.98" in told
    assert told in remarks(collect(recipe))
    for line in lines:
        line["forget"]["exact"] = False
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert collect(recipe).not_as_claimed == (), "control: nothing was claimed"


@pytest.mark.parametrize("name", ["verdict", "forget.verdict"])
def test_verdicts_can_be_asked_for_by_both_names(tmp_path, capsys, name):
    recipe = written(tmp_path)
    door.command(str(recipe.path), metric=[name], as_markdown=True)
    out = capsys.readouterr().out
    assert f"| cell | seeds | {name} |" in out
    assert "| no-op | 3 | FAIL |" in out
    assert "Checks that 'no-op' failed" in out
    with pytest.raises(ConfigError, match=r"Allowed: HR@20, NDCG@20, forget\.verdict\."):
        door.command(str(recipe.path), metric=["verdcit"])
    door.command(str(recipe.path), metric=["HR@20"])
    assert "FAIL" not in capsys.readouterr().out, "the control: what is asked for, and no more"


def test_a_table_that_its_recipe_spells_out_stays_as_it_is(tmp_path):
    table = collect(written(tmp_path, RECIPE + '[table]\ncolumns = ["HR@20", "forget.verdict"]\n'))
    assert {e.metric for e in table.entries} == {"HR@20", "forget.verdict"}
    assert not table.failed


def test_a_check_that_failed_for_one_of_several_requests_is_named(tmp_path):
    found = {"Retrain": [("PASS 2, FAIL 1", {"kept": "PASS 2, FAIL 1"}), ("PASS", PASSED)]}
    table = collect(written(tmp_path, found=found))
    assert table.failed["Retrain"].told("x") == "Checks that 'x' failed: kept (1 of 2 seeds)."


SMALL = """
[data]
name = "synthetic"
users = 30
items = 30
interactions = 300
[sharing]
[method]
name = "FedShare"
snapshots = 0
[run]
rounds = 2
evaluate_every = 1
[forget]
draw = 0.3
audits = "none"
[axes]
forget = ["no-op"]
seed = [0, 1]
"""


def test_the_mean_over_seeds_of_a_run_is_told_with_the_verdicts(tmp_path, monkeypatch, capfd):
    answer = unlearning_run._trial

    def judged(cell, *more):
        after, facts = answer(cell, *more)
        return after, {**facts, "verdict": ("INCONCLUSIVE", "FAIL")[cell.run.seed]}

    monkeypatch.setattr(unlearning_run, "_trial", judged)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SMALL)
    monkeypatch.setattr(sys, "argv", ["rescind", "run", "mine.toml", "--json"])
    with suppress(SystemExit):
        entry()
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("no-op seed 0: INCONCLUSIVE, HR@20")
    assert out[2].startswith("no-op, 2 seeds (mean ± standard deviation): HR@20 ")
    assert out[2].endswith("; verdict: INCONCLUSIVE 1, FAIL 1")
    assert [run["verdict"] for run in json.loads(out[-1])["runs"]] == ["INCONCLUSIVE", "FAIL"]
