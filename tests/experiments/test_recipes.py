"""What a recipe's axes make of cells, and that chosen settings are those that were chosen."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rescind.errors import ConfigError
from rescind.experiments import recipe_file
from rescind.experiments.recipe import read
from rescind.experiments.recipe_file import folder_with, in_package, locate, packaged

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TEXT = """
[axes]
data = ["ml-100k", { label = "large", name = "ml-1m" }]
method = [
  { label = "FedAvg", name = "FedAvg", negatives = 2, where = { data = "ml-100k" } },
  { label = "FedAvg", name = "FedAvg", negatives = 8, where = { data = "large" } },
  "Popularity",
]
"""


def test_a_value_of_an_axis_may_hold_in_some_cells_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(TEXT, encoding="utf-8")
    cells = {cell.name: cell for cell in read(path).cells}
    names = ["ml-100k/FedAvg", "ml-100k/Popularity", "large/FedAvg", "large/Popularity"]
    assert list(cells) == names
    assert cells["ml-100k/FedAvg"].method.negatives == 2
    assert cells["large/FedAvg"].method.negatives == 8
    assert cells["large/FedAvg"].data.name == "ml-1m"


def test_a_recipe_is_looked_up_by_path_then_here_then_in_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "site" / "rescind"
    monkeypatch.setattr(recipe_file, "PACKAGE", package)
    places = [
        package / "recipes" / "paper" / "table.toml",
        Path("recipes/paper/table.toml"),
        Path("paper/table.toml"),
    ]
    for place in places:  # the later ones come first
        place.parent.mkdir(parents=True)
        place.write_text(TEXT, encoding="utf-8")
        assert locate("paper/table") == place
    assert [in_package(place) for place in places] == [True, False, False]
    assert locate(str(places[0])) == places[0]
    (package / "recipes" / "papers.toml").write_text("")
    assert folder_with("papers.toml") == package / "recipes", "./recipes has no such file"
    with pytest.raises(ConfigError, match="did you mean 'paper/table'"):
        locate("paper/tabel")


def test_recipes_of_a_checkout_are_not_those_of_an_installed_package():
    assert packaged() == RECIPES
    assert not in_package(RECIPES / "basics" / "floor.toml")


def test_a_place_that_is_no_axis_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(TEXT.replace("where = { data", "where = { date"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'date'.*data"):
        read(path)


def _choose() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "choose", RECIPES.parent / "papers" / "scripts" / "f3crec_choose.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("backbone", ["fedmf", "fedncf", "pfedrec"])
def test_table_2_has_the_settings_that_validation_chose(backbone: str) -> None:
    table = tomllib.loads((RECIPES / "f3crec" / f"table2-{backbone}.toml").read_text())
    assert table["axes"]["method"] == _choose().chosen(backbone)
    trials = read(RECIPES / "f3crec" / f"tune-{backbone}.toml")
    lines = trials.results.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(trials.cells) == 3 * 6 * 12, "as many trials for every learner"
