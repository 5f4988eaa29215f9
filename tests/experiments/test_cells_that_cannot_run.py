"""A cell of a recipe that cannot run does not stop the others."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

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
