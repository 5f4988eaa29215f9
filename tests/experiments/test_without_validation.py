"""Data whose own split has train and test rows only: the last round counts, nothing is chosen."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rescind.cli import main
from rescind.data.blocks import arrange
from rescind.errors import ConfigError
from rescind.experiments import stream_run, validation
from rescind.experiments.prepared_data import prepare
from rescind.experiments.recipe import read

SHORT = (
    *("--set", "method.model.dim=4", "--set", "run.rounds=5"),
    *("--set", "run.evaluate_every=2", "--set", "run.checkpoint_every=2"),
)


@pytest.fixture
def rescind(monkeypatch, capsys, tmp_path):
    """The command line in an empty folder, with `parts` (train and test) and `whole` (no split)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(validation, "_TOLD", set())

    def ask(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out + out.err

    pairs = sorted({(u, (u * 7 + n * n) % 40) for u in range(40) for n in range(9)})
    parts = {
        "parts": ["train", "train", "train", "test"],
        "three": ["train", "train", "valid", "test"],
        "whole": [""],
    }
    for name, labels in parts.items():
        table = [("user,item,split" if labels[0] else "user,item")]
        for row, (user, item) in enumerate(pairs):
            label = labels[row % len(labels)]
            table.append(f"u{user},i{item}" + (f",{label}" if label else ""))
        Path(f"{name}.csv").write_text("\n".join(table) + "\n")
        assert ask("data", "import", f"{name}.csv", "--name", name)[0] == 0
    return ask


def strict(text: str) -> Any:
    """Read JSON as strict readers do, which refuse NaN."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_the_last_round_counts_and_the_run_says_so(rescind):
    code, said = rescind("run", "--data", "parts", "--method", "FedAvg", *SHORT, "--seeds", "2")
    assert code == 0, said
    assert said.count("'parts' has no validation rows") == 1, "once, not for each seed"
    assert "the last one counts" in said
    assert "nan" not in said
    for path in Path("runs/data").glob("parts-*/run.json"):
        facts = strict(path.read_text())
        assert (facts["round"], facts["rounds"]) == (5, 5)
        assert (facts["metrics"]["valid"], facts["per_round"]) == ({}, [])
        assert facts["metrics"]["test"]["NDCG@20"] > 0
    code, said = rescind("run", "--data", "three", "--method", "FedAvg", *SHORT)
    assert "no validation rows" not in said, "control"
    assert "round 4: valid NDCG@20 0." in said
    (path,) = Path("runs/data").glob("three-*/run.json")
    facts = strict(path.read_text())
    assert facts["round"] in (2, 4)
    assert facts["metrics"]["valid"]["NDCG@20"] > 0


def test_a_run_that_is_to_stop_by_validation_is_refused(rescind):
    words = ("--method", "FedAvg", *SHORT, "--set", "run.patience=2", "--out", "out")
    code, said = rescind("run", "--data", "parts", *words)
    assert code == 2
    assert "run.patience = 2" in said
    assert "'parts' has no validation rows" in said
    assert not Path("out/run.json").exists()
    assert rescind("run", "--data", "three", *words)[0] == 0, "control"
    again = ("run", "--data", "parts", *words[:-1], "again", "--set", "data.split=random")
    assert rescind(*again)[0] == 0, "a way that the message names"


def test_a_request_to_such_a_run_leaves_no_nan(rescind):
    assert rescind("run", "--data", "parts", "--method", "FedAvg", *SHORT, "--out", "run")[0] == 0
    code, said = rescind("forget", "run", "--user", "u3")
    assert code == 0, said
    facts = strict(Path("run/run.json").read_text())
    assert (facts["metrics"]["valid"], facts["round"]) == ({}, 5)


def test_what_cannot_be_chosen_is_not_tuned(rescind, monkeypatch):
    words = ("--method", "FedAvg", "--rounds", "3", "--set", "method.model.dim=4")
    with monkeypatch.context() as patch:
        patch.setattr("rescind.core.federation.Federation.run", lambda *_, **__: 1 / 0)
        code, said = rescind("tune", "parts", *words)
    assert code == 2
    assert "'parts' has no validation rows" in said
    assert not Path("tuned-parts.toml").exists()
    code, said = rescind("tune", "whole", *words)
    assert code == 0, f"control: the product divides it. {said}"
    code, said = rescind("tune", "parts", *words, "--set", "data.split=random")
    assert code == 0, f"a way that the message names. {said}"
    assert {c.data.split for c in read(Path("tuned-parts.toml")).cells} == {"random"}


STREAM = """
[data]
name = "synthetic"
users = 30
items = 40
interactions = 600
[run]
rounds = 3
evaluate_every = 1
[method]
name = "F3CRec"
top_n = 5
"""


def test_a_stream_without_validation_is_told_or_refused_too(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(validation, "_TOLD", set())
    path = tmp_path / "small.toml"
    path.write_text(STREAM)
    (cell,) = read(path).cells
    data = arrange(prepare(cell.data))
    whole = replace(data, split=np.where(np.arange(len(data)) % 4 == 3, 2, 0))
    result = stream_run.run_cell(cell, tmp_path / "run", dataset=whole)
    assert "'synthetic' has no validation rows" in caplog.text
    assert [b["round"] for b in result.facts["blocks"]] == [3, 3, 3, 3]
    assert result.facts["metrics"]["valid"] == {}
    strict((tmp_path / "run" / "run.json").read_text())
    halting = replace(cell, run=replace(cell.run, patience=2))
    with pytest.raises(ConfigError, match=r"run\.patience = 2.*has no validation rows"):
        stream_run.run_cell(halting, tmp_path / "halting", dataset=whole)
    caplog.clear()
    some = replace(data, split=np.where((data.block == 1) & (whole.split == 0), 1, whole.split))
    stream_run.run_cell(halting, tmp_path / "some", dataset=some)
    assert "no validation rows" not in caplog.text, "control: one block has some"
