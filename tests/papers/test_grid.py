"""Cells that travel to another machine: packed, run there, and told as `rescind run` tells them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rescind.data import import_file, load
from rescind.experiments.recipe import read
from rescind.experiments.stream_run import run_cell

REMOTE = Path(__file__).parents[2] / "papers" / "remote"
RECIPE = """
[data]
name = "mine"
variant = "blocks"
[method]
name = "F3CRec"
top_n = 5
[run]
rounds = 2
evaluate_every = 1
[axes]
seed = [0, 1]
"""


@pytest.fixture
def grid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grid", REMOTE / "grid.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LEARNERS = """
[data]
name = "mine"
variant = "blocks"
[run]
rounds = 4
evaluate_every = 1
[axes]
seed = [0]
method = [
  { label = "FT", name = "FineTune" },
  { label = "FT again", name = "FineTune", reset_private = true },
  { label = "other rate", name = "FineTune", rate = 0.5 },
  { label = "Reg", name = "Reg" },
  { label = "KD", name = "KD", top_n = 5 },
  { label = "SPP", name = "SPP", reach = 5, reset_private = true },
  { label = "F3CRec", name = "F3CRec", top_n = 5, carry = "last" },
  { label = "RLP2", name = "ReLoop2" },
  { label = "RLP2 again", name = "ReLoop2", carry = "last" },
  { label = "RLP2, more trust", name = "ReLoop2", trust = 0.5 },
]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = "".join(f"u{n * 7 % 13},i{(n * n + n // 13) % 17},{1000 + n}\n" for n in range(300))
    (tmp_path / "mine.csv").write_text("user,item,time\n" + rows, encoding="utf-8")
    import_file(tmp_path / "mine.csv", "mine")


def test_a_shared_first_block_changes_no_line(grid: ModuleType, tmp_path: Path, mine: None) -> None:
    path = tmp_path / "f3crec" / "small.toml"
    path.parent.mkdir()
    path.write_text(LEARNERS, encoding="utf-8")
    data, lines = load("mine", variant="blocks"), {}
    plan = grid.groups([path])
    assert sorted(len(tasks) for tasks in plan) == [1, 1, 2, 6]
    for tasks in plan:
        firsts = grid.FirstBlocks()
        for _, cell in tasks:
            lines[cell.name] = shared = grid.one(cell, data, "cpu", firsts)
            alone = grid.one(cell, data, "cpu")
            differ = {k for k in alone if alone[k] != shared[k]} - {"seconds", "date"}
            assert not differ, cell.name
        assert len(firsts.known) == 1
    assert lines["FT"]["valid"] != lines["FT again"]["valid"]
    # Lines come back once; a line that was cut off is made again.
    for name in ("FT", "Reg"):
        grid.write_line(tmp_path, "f3crec/small", lines[name])
    found = tmp_path / "lines.jsonl"
    found.write_text(found.read_text("utf-8")[:-10], "utf-8")
    assert [grid.merge([found], tmp_path) for _ in range(2)] == [1, 0]
    assert "FT" not in {cell.name for tasks in grid.groups([path]) for _, cell in tasks}


def test_a_stream_gives_the_same_line_there_as_here(
    grid: ModuleType, tmp_path: Path, mine: None
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    first, second = read(path).cells
    grid.prepare(tmp_path / "packed.npz", [path])
    data = grid.load_dataset(tmp_path / "packed.npz", grid.name_of(first))
    assert data.digest == load("mine", variant="blocks").digest
    assert np.bincount(data.block).tolist() == [180, 40, 40, 40]
    line = grid.one(first, data, "cpu")
    here = run_cell(first, tmp_path / "run")
    assert line["test"]["NDCG@20"] == pytest.approx(here.metrics["NDCG@20"], abs=1e-6)
    assert (line["digest"], line["round"]) == (first.digest, here.facts["round"])
    # A run whose line stands beside the recipe is not made again.
    assert [cell.run.seed for _, cell in grid.missing_cells(read(path))] == [0, 1]
    read(path).results.write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert [cell.run.seed for _, cell in grid.missing_cells(read(path))] == [1]
    assert second.run.seed == 1
