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


def test_a_stream_gives_the_same_line_there_as_here(
    grid: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = "".join(f"u{n * 7 % 13},i{(n * n + n // 13) % 17},{1000 + n}\n" for n in range(300))
    (tmp_path / "mine.csv").write_text("user,item,time\n" + rows, encoding="utf-8")
    import_file(tmp_path / "mine.csv", "mine")
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
