"""A request that one run alone answered: later runs and tables say so, and how to undo it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.data import import_file

RECIPE = """
[data]
name = "plays"
[sharing]
ratio = [1, 1, 1]
[axes]
method = ["Popularity", "Gram"]
seed = [0, 1]
"""
GRAM = Path("runs/mine/Gram/seed-0")


@pytest.fixture(autouse=True)
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe on imported data, run and recorded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = [f"u{n},i{(n * 5 + k) % 17}" for n in range(20) for k in range(8)]
    Path("plays.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(Path("plays.csv"), "plays")
    Path("mine.toml").write_text(RECIPE)
    assert rescind("run", "mine.toml", "--record").exit_code == 0


def rescind(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def said_of_rows() -> list[str]:
    table: list[str] = json.loads(rescind("table", "mine.toml", "--json").stdout)["mixed_data"]
    return table


def test_running_again_does_not_help_and_deleting_the_folder_does(caplog):
    words = ("--withdraw", "u7", "--audits", "none", "--yes")
    assert rescind("forget", str(GRAM), *words, "--only-here").exit_code == 0
    assert said_of_rows() == [], "the results are those from before"
    caplog.clear()
    assert rescind("run", "mine.toml", "--record").exit_code == 0
    told = [line for line in caplog.messages if "a request was answered in" in line]
    assert len(told) == 1
    assert str(GRAM) in told[0]
    (said,) = said_of_rows()
    assert "a request was answered in Gram seed 0 and nowhere else" in said
    assert f"delete its folder ({GRAM}), then: rescind run mine.toml --record" in said
    compared = rescind("table", "mine.toml", "--against", "Popularity").stdout
    assert "on different rows (MIXED DATA) left out" in compared
    assert "Do what MIXED DATA says above" in compared
    shutil.rmtree(GRAM)
    assert rescind("run", "mine.toml", "--record").exit_code == 0
    assert said_of_rows() == []


def test_what_every_run_leaves_out_is_no_trial(caplog):
    """The control: of the list of the data, running all again is the advice, and it helps."""
    words = ("--withdraw", "u7", "--audits", "none", "--yes", "--request", "none")
    assert rescind("forget", str(GRAM), *words).exit_code == 0
    assert rescind("run", "mine.toml", "--record", "--cell", "Gram").exit_code == 0
    assert "a request was answered in" not in caplog.text
    (said,) = said_of_rows()
    assert "run all of them again with --record" in said
    assert "nowhere else" not in said
    assert rescind("run", "mine.toml", "--record").exit_code == 0
    assert said_of_rows() == []


def test_loans_that_one_run_gave_back_make_no_pair_either(caplog):
    assert rescind("forget", str(GRAM), "--unshare", "draw:0.5", "--audits", "none",
                   "--only-here").exit_code == 0  # fmt: skip
    assert rescind("run", "mine.toml", "--record").exit_code == 0
    assert "Gram seed 0 and nowhere else" in said_of_rows()[0]
    compared = rescind("table", "mine.toml", "--against", "Popularity").stdout
    assert "on different rows (MIXED DATA) left out" in compared
