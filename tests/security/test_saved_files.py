"""Saved files with wrong content under a right digest end in `DataError`, never in a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rescind as rs
from mutating import MADE
from rescind.core import params
from rescind.errors import DataError

MUTATING = Path(__file__).parents[1] / "helpers" / "mutating.py"
OUTCOMES = {"read", "refused"}


def played(folder: Path, kinds: str, seed: int, count: int, *more: str) -> dict:
    """Read mutated files in a process of its own, where a crash is seen."""
    words = [sys.executable, str(MUTATING), kinds, str(folder), str(seed), str(count), *more]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict = json.loads(ended.stdout)
    return found


def test_mutated_files_are_read_or_refused(tmp_path):
    found = played(tmp_path, ",".join(MADE), 1, 30)
    assert len(found) == 10
    for kind, outcomes in found.items():
        assert outcomes.keys() <= OUTCOMES, (kind, outcomes)
        assert outcomes["refused"] >= 10


@pytest.mark.slow
def test_control_without_the_checks_there_are_tracebacks(tmp_path):
    found = played(tmp_path, "Gram,GraphGram", 1, 30, "unchecked")
    assert all(outcomes.keys() - OUTCOMES for outcomes in found.values())


@pytest.mark.slow
@pytest.mark.security
@pytest.mark.parametrize("kind", [*MADE])
def test_2000_mutated_files_of_each_kind_are_read_or_refused(tmp_path, kind):
    (outcomes,) = played(tmp_path, kind, 2, 2000).values()
    assert outcomes.keys() == OUTCOMES, outcomes


SHORT = """
import sys
sys.path.insert(0, sys.argv[1])
import rescind as rs
from mutating import unchecked
if sys.argv[3:]:
    unchecked()
model = rs.Gram.load(sys.argv[2])
model.recommend(history=[1], k=3)
"""


@pytest.mark.parametrize("checks", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_short_sum_is_refused_and_the_control_reads_on(tmp_path, checks):
    import pyarrow.parquet

    items, path = 4000, tmp_path / "model"
    table = pyarrow.table({"user": [n % 50 for n in range(items)], "item": [*range(items)]})
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    rs.Gram().fit(tmp_path / "log.parquet").save(path)
    tensors, notes = params.load(path)
    params.save(path, {**tensors, "total": torch.ones(1, dtype=torch.int64)}, notes)
    words = [sys.executable, "-c", SHORT, str(MUTATING.parent), str(path)]
    ended = subprocess.run(words if checks else [*words, "off"], capture_output=True, check=False)
    refused = ended.returncode == 1 and b"DataError" in ended.stderr
    assert refused == checks  # without them it reads beyond its memory, and mostly ends by a signal


@pytest.mark.parametrize("notes", ["[" * 100_000, "[1]", '{"a": 1}', "3", '{"digest": []}'])
def test_notes_of_foreign_files_are_refused_in_words(tmp_path, notes):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "file", {"rescind.notes": notes})
    with pytest.raises(DataError, match="file"):
        params.load(tmp_path / "file")
