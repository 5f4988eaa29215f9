"""The first page shows committed results, and what forgetting costs is measured, not claimed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from rescind.errors import ConfigError
from rescind.experiments.learning_run import Meter, start
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import read
from rescind_papers import costs, first_page
from rescind_papers.first_page import CENTRAL, FILE, OURS, PAPERS, PICTURE, tasks
from rescind_papers.index import Shelf
from rescind_papers.leaderboard import with_results
from rescind_papers.pages import filled

ROOT = Path(__file__).resolve().parents[2]
SHELF = Shelf(ROOT / "recipes")
SMALL = """
[data]
name = "synthetic"
users = 40
items = 30
interactions = 500
[sharing]
[run]
rounds = 3
evaluate_every = 1
[axes]
method = [
  { label = "sum", name = "Gram", run = { rounds = 1 } },
  { label = "trained", name = "FedAvg", clients_per_round = 5 },
]
"""


def script(path: str):
    """Import a script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_script", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_and_the_results_say_the_same_as_the_results():
    for name, block in (("README.md", "first-page small"), ("docs/results/index.md", "first-page")):
        text = (ROOT / name).read_text("utf-8")
        assert f"<!-- {block} -->" in text
        assert filled(text, SHELF) == text, "stale; run: python -m rescind_papers.pages --all"


def test_the_table_of_the_readme_fits_a_phone():
    """At 375 pixels a table has room for about forty letters in its longest words side by side."""
    rows = [line for line in first_page.small(SHELF).splitlines() if line.startswith("|")]
    cells = [
        [cell.split() for cell in row.strip("|").split("|")] for row in rows if "---" not in row
    ]
    longest = [max(len(word) for row in cells for word in row[n]) for n in range(len(cells[0]))]
    assert sum(longest) <= 45, longest
    assert all("ours" not in row for row in rows[1:])
    assert len(rows) == 2 + len(tasks(SHELF))


def test_the_picture_shows_the_numbers_of_today():
    assert first_page.about(SHELF) in (ROOT / PICTURE).read_text("utf-8")


def test_every_task_has_ours_with_its_cost_and_its_digest():
    found = tasks(SHELF)
    assert [t.name for t in found] == ["ranking", "stream", "sequence", "graph"]
    for task in found:
        assert CENTRAL in task.by
        assert PAPERS in task.by or task.no_papers
        ours = task.by[OURS]
        assert ours.measured["as never there"] is True
        assert None not in (ours.cost.ms, ours.cost.devices, ours.cost.mb)


def test_a_cell_without_results_is_said(tmp_path):
    text = (SHELF.folder / FILE).read_text("utf-8")
    (tmp_path / FILE).write_text(text)
    shutil.copytree(SHELF.folder / "findings", tmp_path / "findings")
    with pytest.raises(ConfigError, match=r"'additive/ml-1m: ml-1m/KernelGram, .*' has no res"):
        tasks(Shelf(tmp_path))


def test_costs_of_the_leaderboards_are_those_of_rows_that_exist():
    """Settings that changed have another digest, so old measurements must not stay in the file."""
    there = {cell.digest for _, cell, _ in with_results(SHELF)}
    old = [
        row["cell"] for row in costs.measured(SHELF.folder).values() if row["digest"] not in there
    ]
    assert not old, "remove these rows from recipes/findings/forgetting.json"


# -- the benchmark ---------------------------------------------------------------------------------


@pytest.fixture
def cells(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return read(tmp_path / "small.toml").cells


def test_people_leave_a_sum_as_if_they_had_never_been_there(cells):
    bench, cell = script("bench/forgetting.py"), cells[0]
    data = obtained(cell)
    row = bench.subtracted(cell, data)
    assert (row["way"], row["as never there"]) == ("subtract", True)
    assert row["devices"] == 1, "the one that leaves"
    assert row["MB"] > 0
    low, high = row["CPU ms, quartiles"]
    assert 0 < low <= row["CPU ms"] <= high


def test_a_digest_that_kept_somebody_is_told_from_one_that_did_not(cells, monkeypatch):
    bench, cell = script("bench/forgetting.py"), cells[0]
    learnt = bench.learnt
    monkeypatch.setattr(bench, "learnt", lambda c, d, without=(): learnt(c, d, without[1:]))
    assert bench.subtracted(cell, obtained(cell))["as never there"] is False


def test_the_devices_of_a_retraining_are_those_that_a_run_asks(cells):
    bench, cell = script("bench/forgetting.py"), cells[1]
    data, meter = obtained(cell), Meter()
    start(cell, data).run(cell.run.rounds, watch=(meter,))
    took_part = sum(count > 0 for count in meter.took_part)
    assert took_part > 5, "several rounds ask several people"
    assert bench.drawn(cell, data) == {"way": "retrain", "devices": took_part - 1}


def test_a_row_too_large_to_measure_says_so(cells):
    bench, cell = script("bench/forgetting.py"), cells[0]
    row = bench.measured(cell, [{"kept_bytes": {"server": 17e9}}], obtained(cell))
    cost = costs.cost_of(cell, [], {cell.digest: row})
    assert cost.shown == ("subtract", "", "", "")
    assert "17 GB" in cost.why


def test_a_learner_that_trains_again_besides_is_no_subtraction():
    from rescind.methods.additive.blend import Blend
    from rescind.methods.additive.gram import Gram

    assert costs.only_subtracts(Gram())
    assert not costs.only_subtracts(Blend())


# -- help ------------------------------------------------------------------------------------------
