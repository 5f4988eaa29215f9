"""Check the shape of a recipe: which parts are tables, lists, text and numbers.

What the values mean is checked where they are used. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rescind.errors import ConfigError, suggest

Table = dict[str, Any]
SETTINGS = ("data", "sharing", "method", "guards", "run", "forget")
TABLES = (*SETTINGS, "axes", "paper", "plot", "table")
WORDS = ("title", "source", "notes")
AXES = ("data", "method", "model", "sharing", "guards", "forget", "seed")
_LARGEST = 2**63
_DEEPEST = 20
_MOST_CELLS = 10_000
_NESTED = (*SETTINGS, "where")
"""Keys of a value on an axis that change other tables."""


def check_shape(path: Path, table: Mapping[str, Any]) -> None:
    """Raise an error that names the first key whose value has the wrong shape."""
    try:
        _check(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check(table: Mapping[str, Any]) -> None:
    check_value(table, "")
    for key, value in table.items():
        if key not in TABLES + WORDS:
            raise ConfigError(f"unknown key '{key}'; {suggest(key, TABLES + WORDS)}")
        if key in WORDS:
            _text(value, key)
        else:
            _table(value, f"[{key}]")
    for key in ("data", "method", "forget"):
        _named(table.get(key, {}), f"[{key}]")
    for cell, numbers in table.get("paper", {}).items():
        for name, value in _table(numbers, f"[paper.'{cell}']").items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"[paper.'{cell}'] {name} must be a number; got {value!r:.60}.")
    _axes(table.get("axes", {}))


def check_value(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what no setting can be: dates, numbers without end, numbers beyond 64 bits."""
    if depth > _DEEPEST:
        raise ConfigError(f"'{where[:60]}' is nested more than {_DEEPEST} times. Make it flat.")
    if isinstance(value, Mapping):
        for key, inside in value.items():
            check_value(inside, f"{where}.{key}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for inside in value:
            check_value(inside, where, depth + 1)
    elif isinstance(value, float) and not (value == 0 or 1e-30 <= abs(value) <= 1e30):
        raise ConfigError(f"{where} is {value}. Write 0, or a number of size 1e-30 to 1e30.")
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise ConfigError(
            f"{where} is a number with {len(str(value))} digits. Write a smaller one."
        )
    elif not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise ConfigError(f"{where} is a {kind}. Write text, a number, true or false, or a list.")


def _axes(axes: Mapping[str, Any]) -> None:
    cells = 1
    for axis, values in axes.items():
        if axis not in AXES:
            raise ConfigError(f"unknown axis '{axis}'; {suggest(axis, AXES)}")
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"[axes] {axis} must be a list with at least one value; got {values!r:.60}."
            )
        cells *= len(values)
        for value in values:
            _on_axis(value, axis)
    if cells > _MOST_CELLS:
        raise ConfigError(f"[axes] makes {cells} cells; at most {_MOST_CELLS} are allowed.")


def _on_axis(value: Any, axis: str) -> None:
    where = f"a value of [axes] {axis}"
    if axis == "seed":
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{where} must be a whole number; got {value!r:.60}.")
    elif isinstance(value, Mapping):
        _named(value, where)
        for key in _NESTED:
            if key in value:
                _table(value[key], f"{where}: {key}")
        for other, label in value.get("where", {}).items():
            _text(label, f"{where}: where.{other}")
    elif isinstance(value, list):
        raise ConfigError(f"{where} must be text, a number or a table; got {value!r:.60}.")


def _named(table: Mapping[str, Any], where: str) -> None:
    """Check the name and the label of a table, and of the model inside it."""
    for key in ("name", "label"):
        if key in table:
            _text(table[key], f"{where} {key}")
    model = table.get("model", "")
    if not isinstance(model, str):
        _named(_table(model, f"{where} model"), f"{where} model")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be text in quotes; got {value!r:.60}.")


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table, such as {{ key = 1 }}; got {value!r:.60}.")
    return value
