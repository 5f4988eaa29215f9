"""The leaderboards: a method file and its recipe make a row, and nothing else has to be edited."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import rescind.methods
from rescind.core.settings import look_again
from rescind.experiments.recipe import read
from rescind_papers.index import Shelf
from rescind_papers.leaderboard import SCRIPT, markdown, standings, task_of

METHOD = """
from dataclasses import dataclass
from typing import ClassVar

from rescind.methods.baselines.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Newcomer(FedAvg):
    paper: ClassVar[str] = "ours"
    pull: float = 0.1
"""
RECIPE = """
[axes]
data = ["ml-100k", { label = "cored", name = "ml-1m", core = 5, split = "random" }]
method = ["FedAvg", { label = "new", name = "Newcomer" }]
seed = [0, 1]
"""


def results(path: Path, text: str, values: dict[str, tuple[float, ...]]) -> Path:
    """A recipe with results: NDCG@20 by cell, seed by seed."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    digests = {cell.name: cell.digest for cell in read(path).cells}
    lines = [
        {"cell": cell, "seed": seed, "digest": digests[cell], "test": {"NDCG@20": value},
         "seconds": {"cpu": 2.0}, "bytes": {"up": 3e6, "down": 5e6},
         "kept_bytes": {"server": 1e6, "devices": 2e6}}
        for cell, seeds in values.items()
        for seed, value in enumerate(seeds)
    ]  # fmt: skip
    path.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def with_a_newcomer(tmp_path, monkeypatch):
    """A method file in a folder of its own that the package looks into, too."""
    home = tmp_path / "methods"
    home.mkdir()
    (home / "newcomer.py").write_text(METHOD)
    monkeypatch.setattr(rescind.methods, "__path__", [*rescind.methods.__path__, str(home)])
    look_again()
    yield
    look_again()


def test_a_method_file_and_its_recipe_make_a_row(tmp_path, with_a_newcomer):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    text = markdown("learning", Shelf(recipes))
    assert "| new |" not in text
    assert "Newcomer" in text.splitlines()[-1]
    results(recipes / "mine" / "table.toml", RECIPE, {
        "ml-100k/FedAvg": (0.2, 0.4), "ml-100k/new": (0.5, 0.7), "cored/new": (0.1,)})  # fmt: skip
    plain = read(recipes / "mine" / "table.toml").cells[0].digest
    (recipes / "findings").mkdir()
    known = {"rows": [{"digest": plain, "way": "retrain", "devices": 7}]}
    (recipes / "findings" / "forgetting.json").write_text(json.dumps(known))
    text = markdown("learning", Shelf(recipes))
    found = [line for line in text.splitlines() if line.startswith("| ml")]
    # The better comes first on its data; a cell without results has no row.
    rest = "2.0 | 1.0 | 2.0 | 3 | 5 | mine/table |"
    assert found == [
        f"| ml-100k | new | Newcomer | retrain | 2,000 |  | 8 | 2 | 0.6000 | {rest}",
        f"| ml-100k | FedAvg | FedAvg | retrain | 2,000 | 7 | 8 | 2 | 0.3000 | {rest}",
        f"| ml-1m (core 5, random) | new | Newcomer | retrain | 2,000 |  | 8 | 1 | 0.1000 | {rest}",
    ]
    assert "Newcomer" not in text.splitlines()[-1]
    assert text.splitlines()[-3].endswith("does it): mine/table: new, mine/table: new.")


def test_searches_and_sweeps_have_no_rows_and_the_same_settings_have_one(tmp_path):
    plain = '[axes]\nmethod = ["FedAvg"]\nseed = [0, 1, 2]\n'
    home = tmp_path / "a"
    results(home / "tuning.toml", plain, {"FedAvg": (0.9,)})
    results(home / "sweep.toml", plain + '[plot]\nx = "method.negatives"\n', {"FedAvg": (0.8,)})
    assert standings(Shelf(tmp_path)) == []
    results(home / "one.toml", plain, {"FedAvg": (0.5,)})
    results(home / "two.toml", plain, {"FedAvg": (0.5, 0.6)})
    (found,) = standings(Shelf(tmp_path))
    assert (found.recipe, found.seeds) == ("a/two", 2)


def test_a_cell_stands_on_the_page_of_its_task(tmp_path):
    path = tmp_path / "kinds.toml"
    path.write_text("""
    [sharing]
    [forget]
    draw = 0.3
    [axes]
    method = [
      "FedAvg",
      { label = "stream", name = "FineTune" },
      { label = "goes", name = "FedAvg", forget = { name = "Retrain" } },
    ]
    """)
    learns, _, goes = read(path).cells
    assert (task_of(learns), task_of(goes)) == ("learning", "unlearning")
    stream = read(path, ["data.variant=f3crec"]).cells[1]
    assert task_of(stream) == "continual"


STUB = """
function cell(text) { return { textContent: text }; }
var rows = [["b", "1,200.5"], ["a", ""], ["c", "3"], ["d", "20 ± 1"]].map(
  function (texts) { return { cells: texts.map(cell) }; });
var body = { rows: rows, appendChild: function (row) {
  rows.splice(rows.indexOf(row), 1); rows.push(row); } };
var heads = [0, 1].map(function () {
  return { style: {}, dataset: {}, addEventListener: function (_, f) { this.click = f; } }; });
var table = { tBodies: [body], querySelectorAll: function () { return heads; } };
var document = { querySelectorAll: function () { return [table]; } };
SCRIPT
function said() { return rows.map(function (r) { return r.cells[0].textContent; }).join(""); }
heads[1].click(); var down = said();
heads[1].click(); var up = said();
heads[0].click();
console.log([down, up, said()].join(" "));
"""


def test_the_script_sorts_numbers_as_numbers_and_empty_cells_last(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no JavaScript here to run it with")
    body = SCRIPT.removeprefix("<script>").removesuffix("</script>")
    (tmp_path / "sort.js").write_text(STUB.replace("SCRIPT", body))
    found = subprocess.run(
        [node, str(tmp_path / "sort.js")], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["bdca", "cdba", "dcba"]
