"""Whoever has one machine needs no Flower: people leave and come back without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from requesting import ask
from rescind.data.importing import append_file, import_file
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import SharingSettings
from rescind.methods.additive.gram import Gram

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flwr":
            raise ModuleNotFoundError("No module named 'flwr'", name="flwr")

sys.meta_path.insert(0, Missing())
from rescind.cli import main
main()
"""
CELL = Cell(
    "c",
    DataSettings(name="shop"),
    SharingSettings(ratio=(1, 1, 1), part=0.5),
    Gram(),
    RunSettings(rounds=1, evaluate_every=1),
)


def rescind(*words: str) -> tuple[int, str]:
    """Run a command on a machine on which Flower is not installed."""
    command = [sys.executable, "-c", WITHOUT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_a_customer_who_returns_is_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bought = [f"c{user},p{(3 * user + 5 * n) % 23}" for user in range(12) for n in range(11)]
    Path("bought.csv").write_text("\n".join(["user,item", *bought]) + "\n")
    import_file("bought.csv", "shop")
    run_cell(CELL, tmp_path / "run")
    assert ask("shop", "leave", "c3").outcome == "ERASED"
    Path("more.csv").write_text("user,item\nc3,p90\n")
    assert append_file("shop", "more.csv").withheld == 1, "control: she is away"

    code, said = rescind("request", "readmit", "--user", "c3")
    assert code == 0, said
    Path("later.csv").write_text("user,item\nc3,p91\n")
    assert append_file("shop", "later.csv").rows == 1

    code, said = rescind("flower", "simulate", "basics/floor", "--silos", "2")
    assert code != 0, "control: a command of silos needs it"
    assert "Flower is not installed" in said
