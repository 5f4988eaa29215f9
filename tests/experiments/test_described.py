"""A table of results is read without the code of methods: settings come from a description."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rescind.errors import ConfigError
from rescind.experiments import described
from rescind.experiments.recipe import read
from rescind.experiments.tables import cells_by_name
from rescind.storage.kinds import METHODS, MODELS, UNLEARNERS

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*/*.toml"))


def test_every_cell_has_the_settings_that_the_code_gives_it():
    assert len(RECIPES) > 40
    for path in RECIPES:
        name = f"{path.parent.name}/{path.stem}"
        ours, real = (cells_by_name(one) for one in (read(path, look=described.find), read(path)))
        assert list(ours) == list(real)
        for mine, true in zip(ours.values(), real.values(), strict=True):
            assert mine.digest == true.digest, (name, true.name)
            assert mine.settings == true.settings, (name, true.name)
            for fact in ("seedless", "control"):
                assert getattr(mine.method, fact) == getattr(true.method, fact), (name, fact)
            assert mine.method.model.task == true.method.model.task


def test_a_setting_that_differs_is_seen(tmp_path):
    """The control: the comparison above tells two settings apart."""
    path, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    path.write_text('[method]\nname = "FedAvg"\n[data]\nname = "ml-100k"\n')
    other.write_text('[method]\nname = "FedAvg"\nrate = 0.125\n[data]\nname = "ml-100k"\n')
    assert read(path, look=described.find).cells[0].digest == read(path).cells[0].digest
    assert read(other, look=described.find).cells[0].digest != read(path).cells[0].digest


@pytest.mark.parametrize("kind", [METHODS, MODELS])
def test_a_class_that_only_forgets_is_no_learner_and_no_model(kind):
    assert described.find(*UNLEARNERS, "Ascent").__name__ == "Ascent"
    with pytest.raises(ConfigError, match="Ascent"):
        described.find(*kind, "Ascent")


def test_the_command_prints_a_table_without_torch_numpy_or_numba():
    look = """
import sys
from typer.testing import CliRunner
from rescind.cli import app
said = CliRunner().invoke(app, ["table", "f3crec/ml-100k", "--json"])
assert said.exit_code == 0, said.output
print(said.stdout)
heavy = ("torch", "numba", "numpy", "scipy", "pyarrow")
print([name for name in heavy if name in sys.modules])
"""
    out = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    assert out[-1] == "[]"
    assert len(json.loads(out[0])["entries"]) > 10


def test_a_method_of_ones_own_is_read_by_its_code(tmp_path):
    """What is not described is looked up; what does not exist is refused with a suggestion."""
    from typer.testing import CliRunner

    from rescind.cli import app

    path = tmp_path / "mine.toml"
    path.write_text('[method]\nname = "FedAvgg"\n')
    said = CliRunner().invoke(app, ["table", str(path)])
    assert isinstance(said.exception, ConfigError)
    assert "FedAvg" in str(said.exception)
