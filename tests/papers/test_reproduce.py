"""The tables of a paper from one command: planned, run side by side, resumed, written."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rescind.cli import reproduce as door
from rescind.errors import ConfigError, DataError
from rescind.experiments.unlearning_run import TrialCache, run_one
from rescind.storage.provenance import commit
from rescind.storage.run_folder import read_facts
from rescind_papers.index import Shelf, chosen
from rescind_papers.reproduction import ROUNDS, Plan, planned, quick_form, run, short_line, written
from rescind_papers.verdicts import MEANINGS

ROOT = Path(__file__).resolve().parents[2]
MAP = """
[one]
title = "One"
source = "Somebody, 2026"
absent = []

[[one.exhibit]]
name = "table1"
title = "Table 1: all"
[[one.exhibit.part]]
recipe = "one/table"
title = "Here"

[[one.exhibit]]
name = "fig2"
title = "Fig. 2: negatives"
[[one.exhibit.part]]
recipe = "one/sweep"
title = "There"
"""
DATA = '[data]\nname = "synthetic"\nusers = 40\nitems = 30\ninteractions = 600\n'
TABLE = f"""
{DATA}
[sharing]
[run]
rounds = 6
evaluate_every = 3
[forget]
draw = 0.5
audits = "none"
[axes]
method = [
  "Popularity",
  "FedAvg",
  {{ label = "goes", name = "FedAvg", forget = {{ name = "Retrain" }} }},
  {{ label = "stays", name = "FedAvg", forget = {{ name = "PurgeOnly" }} }},
]
seed = [0, 1]
[paper."FedAvg"]
"HR@20" = 0.3
"""
SWEEP = f"""
{DATA}
[sharing]
[run]
rounds = 6
evaluate_every = 3
[axes]
method = [
  {{ label = "1", name = "FedAvg" }},
  {{ label = "2", name = "FedAvg", negatives = 2 }},
]
seed = [0]
[plot]
x = "method.negatives"
"""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    (tmp_path / "recipes" / "one").mkdir(parents=True)
    (tmp_path / "recipes" / "papers.toml").write_text(MAP)
    (tmp_path / "recipes" / "one" / "table.toml").write_text(TABLE)
    (tmp_path / "recipes" / "one" / "sweep.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(home: Path, quick: bool = False, seeds: int | None = None) -> Plan:
    shelf = Shelf(home / "recipes")
    return planned(chosen(shelf.folder, None), shelf, home / "out", quick, seeds)


def test_a_cell_of_two_recipes_is_run_once(home):
    jobs = plan_of(home).jobs
    # Four cells at two seeds, and two of a sweep at one: FedAvg with one negative is both.
    assert len(jobs) == 4 * 2 + 2 - 1
    shared = [job for job in jobs if len(job.counts_for) == 2]
    assert [[name for _, name in job.counts_for] for job in shared] == [["FedAvg", "1"]]
    assert len({job.folder for job in jobs}) == len(jobs)
    assert len(plan_of(home, seeds=1).jobs) == 5


def test_trials_of_one_federation_share_a_room(home):
    trials = [job for job in plan_of(home).jobs if job.cell.forget is not None]
    assert len({job.cache for job in trials}) == 2
    assert {job.cell.run.seed for job in trials} == {0, 1}


def test_a_quick_form_says_what_is_smaller():
    shelf = Shelf(ROOT / "recipes")
    cells = {c.name: c for c in reversed(shelf.recipe("fedgcv/large").cells)}
    small, said = quick_form(cells["tolokers/FedGCV"])
    assert (small.data.name, small.run.rounds, small.forget.clients) == ("cora", ROUNDS, (0,))
    leavers = len(cells["tolokers/FedGCV"].forget.clients)
    assert leavers > 1
    assert said == f"one seed, cora for tolokers, 4 rounds for 30, 1 leaver for {leavers}"
    assert small.method == cells["tolokers/FedGCV"].method


def test_everything_of_the_papers_has_a_quick_form():
    shelf = Shelf(ROOT / "recipes")
    plan = planned(chosen(shelf.folder, None), shelf, Path("nowhere"), quick=True)
    assert {job.cell.data.name for job in plan.jobs} <= {"ml-100k", "cora", "citeseer"}
    assert max(job.cell.run.rounds for job in plan.jobs) <= ROUNDS
    for exhibit in plan.exhibits:
        for part in exhibit.parts:
            assert plan.shelf.recipe(part.recipe).results.is_relative_to("nowhere")


def test_tables_and_figures_are_run_written_and_resumed(home, capsys):
    door.command("one", out=home / "out", workers=1, as_json=True)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["runs"], said["done"], said["failed"]) == (9, 9, {})
    endings = {Path(name).name for name in said["files"]}
    tables = {f"one-{name}.{end}" for name in ("table1", "fig2") for end in ("md", "csv", "tex")}
    assert endings == tables | {"one-fig2.svg", "one-fig2.png", "runs.jsonl"}
    with open(home / "out" / "one-table1.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["cell"]: row["runs"] for row in rows} == dict.fromkeys(
        ("Popularity", "FedAvg", "goes", "stays"), "2"
    )
    # The same run is in both recipes under the name it has there.
    sweep = (home / "out" / "results" / "one" / "sweep.jsonl").read_text().splitlines()
    assert {json.loads(line)["cell"] for line in sweep} == {"1", "2"}
    # The recipes' own results are as they were: there are none.
    assert not list((home / "recipes").rglob("*.jsonl"))

    dates = {path: path.stat().st_mtime_ns for path in (home / "out" / "runs").rglob("run.json")}
    gone = next(iter(dates))
    gone.unlink()
    door.command("one", out=home / "out", workers=1)
    after = {path: path.stat().st_mtime_ns for path in (home / "out" / "runs").rglob("run.json")}
    assert {path for path in dates if after[path] != dates[path]} == {gone}
    lines = (home / "out" / "results" / "one" / "table.jsonl").read_text().splitlines()
    assert len({(json.loads(x)["cell"], json.loads(x)["seed"]) for x in lines}) == 8


def test_data_that_cannot_be_had_stops_nothing_else(home, monkeypatch):
    monkeypatch.delenv("RESCIND_DATA", raising=False)
    both = 'data = [{ label = "h", name = "synthetic" }, { label = "f", name = "no-such" }]'
    far = TABLE.replace("[axes]", f"[axes]\n{both}")
    (home / "recipes" / "one" / "table.toml").write_text(far)
    plan = plan_of(home, seeds=1)
    at = run(plan, 1, lambda _: None)
    assert at.failed
    assert all(name.startswith("one/table: f/") for name in at.failed)
    assert at.done == len(plan.jobs) - len(at.failed)
    assert written(plan)


def test_wrong_requests_are_refused(home):
    with pytest.raises(ConfigError, match="did you mean 'one/table1'"):
        door.command("one/tabel1")
    with pytest.raises(ConfigError, match="give one of"):
        door.command("one", quick=True, seeds=2)


def test_the_list_says_which_recipes_are_behind_what(home, capsys):
    door.command(None, list_only=True)
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.startswith("one/table1")
    assert second.split() == ["recipes:", "one/table"]
    assert third.startswith("one/fig2")
    assert fourth.split() == ["recipes:", "one/sweep"]


def test_committed_results_are_written_without_a_run(home, capsys):
    door.command("one/table1", out=home / "out", committed=True)
    text = (home / "out" / "one-table1.md").read_text()
    assert f"- *not run yet*: {MEANINGS['not run yet']}." in text
    assert MEANINGS["better"] not in text, "nothing was"
    assert not (home / "out" / "runs").exists()


QUICK = ROOT / "recipes" / "quick.jsonl"


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:Eq. .25. as written")  # a recipe of the paper's own reading
def test_one_quick_cell_chosen_by_the_commit_gives_what_it_gave(tmp_path):
    """Another one with every commit, so that in time all of them are run again."""
    shelf = Shelf(ROOT / "recipes")
    jobs = planned(chosen(shelf.folder, None), shelf, tmp_path, quick=True).jobs
    here = commit().split("-")[0].split(" ")[0] or "0"
    job = jobs[int(here, 16) % len(jobs)]
    try:
        facts = run_one(job.cell, job.folder, TrialCache(job.cache, workers=1)).facts
    except DataError as error:
        pytest.skip(f"the data of {job.cell.name} is not at hand: {error}")
    assert read_facts(job.folder)["digest"] == job.cell.digest
    measured = short_line(facts)["test"]
    assert all(0 <= value <= 1 for value in measured.values())
    assert measured, f"{job.cell.name} measured nothing"
    made = [json.loads(text) for text in QUICK.read_text().splitlines()]
    before = [x for x in made if (x["digest"], x["seed"]) == (job.cell.digest, job.cell.run.seed)]
    # Settings that are newer than the file have no line; noise of a guard is drawn by the system.
    if before and job.cell.guards is None:
        assert measured == pytest.approx(before[-1]["test"], abs=0.005), job.cell.name


def test_the_quick_results_are_those_of_the_recipes_of_today():
    """Most of them: what was changed since is made again by `rescind reproduce --quick`."""
    shelf = Shelf(ROOT / "recipes")
    jobs = planned(chosen(shelf.folder, None), shelf, Path("nowhere"), quick=True).jobs
    made = {json.loads(text)["digest"] for text in QUICK.read_text().splitlines()}
    assert sum(job.cell.digest in made for job in jobs) > len(jobs) / 2
