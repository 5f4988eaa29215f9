"""Configuration: frozen dataclasses to tables and back, nothing ignored."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from rescind.core.settings import classes, find, from_table, to_table
from rescind.errors import ConfigError, suggest
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF

NESTED = {"model": ("rescind.models", "tables")}


@dataclass(frozen=True)
class Oven:
    """A class with a field of every kind."""

    presets: ClassVar[tuple[str, ...]] = ("as_published",)

    degrees: int
    top_n: int = 30
    hours: float = 1.5
    fan: bool = False
    mode: Literal["bake", "grill"] = "bake"
    shelf: int | None = None
    label: str = "oven"
    racks: tuple[int, ...] = (1, 2)
    steam: float | Literal["auto"] = "auto"

    @classmethod
    def as_published(cls, **fields) -> Oven:
        return cls(**{"degrees": 220, "hours": 2.0, **fields})


def build(**table) -> Oven:
    return from_table(Oven, table, {})


def test_a_table_from_toml_becomes_the_object_it_describes():
    text = """
    degrees = 180
    hours = 2
    mode = "grill"
    shelf = "none"
    racks = [3]
    fan = true
    """
    expected = Oven(180, hours=2.0, mode="grill", shelf=None, racks=(3,), fan=True)
    built = build(**tomllib.loads(text))
    assert built == expected
    assert isinstance(built.hours, float)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"Oven has no field 'topN'; did you mean 'top_n'\?"):
        build(degrees=1, topN=3)
    with pytest.raises(ConfigError, match="Oven has no field 'zzz'; Allowed: degrees, fan"):
        build(degrees=1, zzz=3)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("degrees", "hot", "Oven.degrees must be a whole number; got 'hot'"),
        ("degrees", 180.0, "a whole number; got 180.0"),
        ("degrees", True, "a whole number; got True"),
        ("hours", "2", "a number; got '2'"),
        ("fan", 1, "true or false; got 1"),
        ("label", 3, "text; got 3"),
        ("mode", "fry", "one of 'bake', 'grill'; got 'fry'"),
        ("mode", "none", "one of 'bake', 'grill'; got 'none'"),
        ("shelf", 1.5, "a whole number; got 1.5"),
        ("racks", 3, "must be a list; got 3"),
        ("racks", [1, "two"], "a whole number; got 'two'"),
        ("steam", "much", "Oven.steam must be a number, or one of 'auto'; got 'much'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(key, value, text):
    with pytest.raises(ConfigError, match=text):
        build(**{"degrees": 1, key: value})


def test_a_missing_field_is_named():
    with pytest.raises(ConfigError, match="Oven needs degrees"):
        build(hours=1.0)


def test_a_preset_comes_first_and_fields_after_it():
    assert build(preset="as_published") == Oven(220, hours=2.0)
    assert build(preset="as_published", hours=3.0, fan=True) == Oven(220, hours=3.0, fan=True)


@pytest.mark.parametrize("name", ["as_publishd", "from_table", "__init__"])
def test_only_what_a_class_lists_is_a_preset(name):
    with pytest.raises(ConfigError, match=f"Oven has no preset '{name}'.*as_published"):
        build(preset=name)


def test_none_is_a_word_in_a_table_and_comes_back():
    table = to_table(Oven(1))
    assert table["shelf"] == "none"
    assert table["name"] == "Oven"
    assert from_table(Oven, table, {}) == Oven(1)


def test_a_method_with_its_model_survives_a_table():
    method = FedAvg(model=MF(dim=7, spread=0.5), clients_per_round=None, rate=0.25)
    table = to_table(method)
    assert table["model"] == {"name": "MF", "dim": 7, "spread": 0.5}
    assert from_table(FedAvg, table, NESTED) == method


def test_a_nested_model_is_given_by_name_or_by_table_in_any_case():
    assert from_table(FedAvg, {"model": "mf"}, NESTED).model == MF()
    table = {"model": {"name": "lightgcn", "dim": 9}}
    assert from_table(FedAvg, table, NESTED).model == LightGCN(dim=9)
    assert from_table(FedAvg, {"model": MF(dim=2)}, NESTED).model == MF(dim=2)


def test_errors_inside_a_nested_table_name_the_nested_class():
    with pytest.raises(ConfigError, match=r"MF has no field 'dims'; did you mean 'dim'\?"):
        from_table(FedAvg, {"model": {"name": "MF", "dims": 3}}, NESTED)
    with pytest.raises(ConfigError, match=r"no model 'LihgtGCN': did you mean 'LightGCN'\?"):
        from_table(FedAvg, {"model": "LihgtGCN"}, NESTED)
    with pytest.raises(ConfigError, match="must name one of"):
        from_table(FedAvg, {"model": 3}, NESTED)


def test_fields_without_a_name_are_those_of_the_model_a_method_has_anyway():
    assert from_table(FedAvg, {"model": {"dim": 3}}, NESTED).model == LightGCN(dim=3)


def test_classes_are_found_by_what_they_define_not_by_what_they_import():
    assert classes("rescind.methods", "server_sample")["FedAvg"] is FedAvg
    found = classes("rescind.models", "tables")
    assert found["LightGCN"] is LightGCN
    assert "RankingModel" not in found
    assert "Method" not in classes("rescind.methods", "server_sample")
    assert find("rescind.methods", "server_sample", "FEDAVG") is FedAvg


def test_a_suggestion_ignores_case_and_lists_what_is_allowed():
    assert suggest("TOPN", ["top_n", "b"]) == "did you mean 'top_n'? Allowed: b, top_n."
    assert suggest("x", []) == "Allowed: nothing."
