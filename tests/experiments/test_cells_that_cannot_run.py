"""A cell of a recipe that cannot run does not stop the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rescind as rs
from rescind.cli import app
from rescind.errors import ConfigError, RescindError

RECIPE = """
[data]
name = "synthetic"
users = 30
items = 20
interactions = 300
[run]
rounds = 1
evaluate_every = 1
[axes]
method = [
  { label = "graph", name = "GraphFedAvg" },
  { label = "popular", name = "Popularity" },
]
"""


def test_the_rest_runs_and_the_failure_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    words = ["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, ConfigError), said.output
    assert "1 of 2 runs cannot run; the others are finished.\n  graph seed 0: " in str(
        said.exception
    )
    made = [json.loads(p.read_text())["cell"] for p in (tmp_path / "out").rglob("run.json")]
    assert made == ["popular"]
    alone = CliRunner().invoke(app, [*words, "--cell", "graph"])
    assert isinstance(alone.exception, RescindError)
    assert "runs cannot run" not in str(alone.exception)


def test_a_dataset_that_is_not_there_is_told_once_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace("synthetic", "synthetik"))
    words = ["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "out"), "--seeds", "3"]
    said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, ConfigError)
    assert "unknown dataset 'synthetik'; did you mean 'synthetic'?" in str(said.exception)
    assert "cannot run" not in said.output + str(said.exception)


def test_a_learner_of_order_is_refused_where_nothing_says_what_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = [(user, item) for user in range(30) for item in range(user % 5, 20, 3)]
    frame = {"user": [user for user, _ in rows], "item": [item for _, item in rows]}
    rs.from_frame(frame, "timeless", keep=True)
    timed = {**frame, "time": [1_600_000_000 + 60 * n for n in range(len(rows))]}
    rs.from_frame(timed, "timed", keep=True)
    for name, method in (("timeless", "SeqGram"), ("timeless", "LocalSeqGram")):
        words = ["run", "--data", name, "--method", method, "--out", str(tmp_path / method)]
        said = CliRunner().invoke(app, words)
        assert isinstance(said.exception, ConfigError), said.output
        assert f"{method} learns from the order" in str(said.exception)
        assert not list((tmp_path / method).rglob("run.json"))
        with pytest.raises(ConfigError, match=f"{method} learns from the order.*--time COLUMN"):
            rs.Federation.start(rs.load(name), getattr(rs.methods, method)())
    assert rs.Federation.start(rs.load("timed"), rs.methods.SeqGram()).run(1), "control"
    words = ["run", "--data", "timed", "--method", "SeqGram", "--out", str(tmp_path / "timed")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    axes = '[data]\nname = "timeless"\n[run]\nrounds = 1\nevaluate_every = 1\n'
    axes += '[axes]\nmethod = ["SeqGram", "Gram"]\n'
    (tmp_path / "both.toml").write_text(axes)
    words = ["run", str(tmp_path / "both.toml"), "--out", str(tmp_path / "both")]
    said = CliRunner().invoke(app, words)
    assert "1 of 2 runs cannot run; the others are finished" in str(said.exception)
    made = [json.loads(p.read_text())["cell"] for p in (tmp_path / "both").rglob("run.json")]
    assert made == ["Gram"]


@pytest.mark.parametrize("wrong", [True, False])
def test_a_run_in_which_every_update_was_refused_has_no_result(tmp_path: Path, wrong: bool) -> None:
    recipe = RECIPE[: RECIPE.index("[axes]")] + '[method]\nname = "FedAvg"\n'
    recipe += f"rate = {'1e30' if wrong else '0.1'}\n[method.model]\nname = 'MF'\ndim = 2\n"
    (tmp_path / "r.toml").write_text(recipe)
    words = ["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, words)
    if wrong:
        assert isinstance(said.exception, ConfigError), said.output
        assert "every update of FedAvg was refused" in str(said.exception)
    assert bool(list((tmp_path / "out").rglob("run.json"))) is not wrong
