"""The file of a recipe: where it is, its keys, its axes, and the names of its cells.

Nothing here needs torch, so that invalid input is refused before torch is loaded.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any

from rescind.core.settings import fields_of
from rescind.errors import ConfigError, suggest, usual
from rescind.experiments.recipe_shape import AXES, SETTINGS, Table, check_shape, check_value

Change = tuple[list[str], Any]
"""A changed setting: the path of its keys, and its value."""

PACKAGE = Path(__file__).resolve().parents[1]
RECIPES = Path("recipes")
"""The folder of recipes in the working directory."""
_LONGEST_NAME = 40
"""Characters of the words that name changed settings."""


@dataclass(frozen=True)
class Column:
    """One value of the result lines that a table shows."""

    path: str
    """A name in `test`, a path from the top of a line such as "seconds.cpu", or a sum "a + b"."""
    title: str | None = None
    """Heading of the column. Default: the path."""
    digits: int = 4
    """Digits after the decimal point."""
    per: float = 1.0
    """Unit: 1e6 shows bytes as megabytes."""

    def __post_init__(self) -> None:
        if not 0 <= self.digits <= 12:
            raise ConfigError(f"digits of column '{self.name}' is {self.digits}; write 0 to 12.")
        if self.per == 0:
            raise ConfigError(f"per of column '{self.name}' is 0; write the unit, such as 1e6.")

    @property
    def name(self) -> str:
        return self.title or self.path

    def of(self, line: Mapping[str, Any]) -> float | str | None:
        """Return its value in a result line: a number, a word, or None if it is missing."""
        found = [_value_at(line, path) for path in self.path.split(" + ")]
        if len(found) == 1 and isinstance(found[0], str):
            return found[0]
        numbers = [v for v in found if isinstance(v, int | float) and not math.isnan(v)]
        return sum(numbers) / self.per if len(numbers) == len(found) else None


def _value_at(line: Mapping[str, Any], path: str) -> float | str | None:
    """Return the value at a path of a line, or of this name in its `test`."""
    place: Any = line
    for part in path.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    place = line.get("test", {}).get(path, place)
    if isinstance(place, bool):
        return "yes" if place else "no"
    return place if isinstance(place, int | float | str) else None


@dataclass(frozen=True)
class PlotSettings:
    """Settings of `rescind table --plot` for a recipe that sweeps one setting."""

    x: str
    """The swept setting, such as "method.contrast". Each value of the other axes is a line."""
    across: str | None = None
    """Label of the x axis. Default: the setting."""
    bars: bool = False
    """Whether to draw one bar per cell, not lines."""


def packaged() -> Path:
    """Return the folder of the recipes that come with rescind.

    A wheel has them inside the package (setup.py), a checkout at its top.
    """
    inside = PACKAGE / "recipes"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "recipes"


def in_package(path: Path) -> bool:
    """Return whether a recipe lies in the installed package, where no run may write."""
    return path.resolve().is_relative_to(PACKAGE)


def folder_with(file: str) -> Path:
    """Return ./recipes if it holds this file, else the folder that comes with rescind."""
    return RECIPES if (RECIPES / file).is_file() else packaged()


def locate(name: str) -> Path:
    """Return the file of a recipe, given by path or by name (paper/table).

    A name is looked up in ./recipes first, then in the recipes that come with rescind.
    """
    given, file = Path(name), f"{name}.toml"  # added to the name, whose own dots stay: a.v2.toml
    tried = dict.fromkeys([given, Path(file), RECIPES / file, packaged() / file])
    for path in tried:
        if path.is_file() and path.suffix == ".toml":
            return path
    files = [path for folder in (RECIPES, packaged()) for path in folder.glob("*/*.toml")]
    beside = [str(path.with_suffix("")) for path in given.parent.glob("*.toml")]
    known = beside if given.suffix else [f"{path.parent.name}/{path.stem}" for path in files]
    raise ConfigError(
        f"there is no recipe '{name}' (looked for {', '.join(map(str, tried))}); "
        f"{suggest(name, known)} A dataset: rescind run --data {name}"
    )


def check_record(path: Path, changes: Sequence[str], changed: Collection[str]) -> None:
    """Raise an error if results of this recipe, with these changes, cannot be recorded.

    changed: keys of the changes to another value than the recipe has
    """
    parts = {text: change({}, text) for text in changes}
    others = [text for text, one in parts.items() if one and ".".join(one[0]) in changed]
    if others:
        raise ConfigError(f"--record is for the recipe as it is written; {others[0]} changes it.")
    if in_package(path):
        where = f"{path} is part of the installed package, where results cannot be recorded"
        raise ConfigError(f"{where}. Copy it first: {copy_command(path)}")


def copy_command(path: Path) -> str:
    """Return the shell command that copies a recipe of the package to ./recipes."""
    mine = RECIPES / path.parent.name
    return f"mkdir -p {mine} && cp {quote(str(path.with_suffix('')))}.* {mine}/"


def parsed(path: Path) -> Table:
    """Read the file as TOML and check its shape."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too long a number
        raise ConfigError(f"{path} is not valid TOML: {error}. Fix that line.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    check_shape(path, table)
    return table


def check(path: Path, changes: Sequence[str], cell: str | None) -> None:
    """Check a file, changes and the name of a cell, without building anything."""
    axes = dict(parsed(path).get("axes", {}))
    for text in changes:
        change(axes, text)
    check_cell(path, cell, [name for name, _ in combinations(path, axes)])


def check_cell(path: Path, cell: str | None, names: Sequence[str]) -> None:
    """Raise an error if the recipe has no cell of this name."""
    if cell is not None and cell not in names:
        raise ConfigError(f"{path.name} has no cell '{cell}'; {suggest(cell, names)}")


def change(axes: Table, text: str) -> Change | None:
    """Parse one "key=value" into (path of keys, value); None for the seed, which is an axis.

    An axis of the same name ("data", "method", "model") is replaced.
    """
    key, value = setting(text, "run.rounds=20")
    if key in ("seed", "run.seed"):
        axes["seed"] = [value]
        return None
    if key in AXES:
        axes.pop(key, None)
        if key == "method":  # another method does not take the fields of the one it replaces
            return [key], {"name": value}
        named = ("data", "forget")
        key = "method.model" if key == "model" else f"{key}.name" if key in named else key
    parts = key.split(".")
    if parts[0] not in SETTINGS or len(parts) < 2:
        raise ConfigError(
            f"--set cannot change '{key}'; did you mean '{_meant(key)}'? Allowed: "
            f"{', '.join(AXES)}, or TABLE.FIELD with {', '.join(SETTINGS)}."
        )
    return parts, value


def _meant(key: str) -> str:
    """Return the setting that was meant: mostly a field without its table."""
    from rescind.experiments.cell import DataSettings, GuardSettings, RunSettings, SharingSettings

    tables = (GuardSettings, SharingSettings, DataSettings, RunSettings)
    names = ("guards", "sharing", "data", "run")  # of two fields of one name the last counts
    pairs = zip(names, tables, strict=True)
    known = {field: f"{name}.{field}" for name, cls in pairs for field in fields_of(cls)}
    known |= {axis: axis for axis in AXES}
    near = get_close_matches(key, known, n=1, cutoff=0.8)
    field = usual(key, known.keys() - {"model"}) or (near[0] if near else None)
    return known[field] if field else f"method.{key}"


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Return changes so that a whole table comes before its fields, in whatever order given."""
    return sorted(changes, key=lambda one: len(one[0]))


def change_name(changes: Mapping[str, Any]) -> str:
    """Return a name for changed settings, by key: words, and a digest that no others have."""
    words = "-".join(f"{key.removeprefix('run.')}-{changes[key]}" for key in sorted(changes))
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", words)[:_LONGEST_NAME].strip("-.")
    text = json.dumps(changes, sort_keys=True)
    return f"{plain}-{sha256(text.encode()).hexdigest()[:8]}"


def setting(text: str, example: str) -> tuple[str, Any]:
    """Parse one "key=value" of a command line. The value is TOML, or a bare word."""
    key, sign, given = text.partition("=")
    if not sign:
        raise ConfigError(f"--set wants key=value, got '{text}'. Example: --set {example}")
    text = re.sub(r"^(\s*[+-]?)\.(?=\d)", r"\g<1>0.", given)  # .3, as tables here print it
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), given
    check_value(value, f"--set {key.strip()}")
    return key.strip(), value


def combinations(path: Path, axes: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of every cell and its values along the axes other than seed, in order.

    Raises `ConfigError` if two cells would have one name: they would replace each other's results.
    """
    order = [axis for axis in AXES if axis in axes and axis != "seed"]
    known: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*[axes[axis] for axis in order]):
        along = dict(zip(order, values, strict=True))
        if _is_cell(path, along):
            name = "/".join(map(label, values)) or path.stem
            if known.setdefault(folder_of(name), along) is not along:
                raise ConfigError(
                    f"{path}: two cells are called '{name}'. Give each value a label of its own."
                )
            yield name, along


def folder_of(cell: str) -> str:
    """Return the name of the folder of a cell's runs."""
    return cell.replace("/", "_").replace(" ", "_")


def _is_cell(path: Path, values: Mapping[str, Any]) -> bool:
    """Return whether these values make a cell: `where` of a value may require other labels."""
    labels = {axis: label(value) for axis, value in values.items()}
    for axis, value in values.items():
        required = value.get("where", {}) if isinstance(value, Mapping) else {}
        for other, wanted in required.items():
            if other not in labels or other == axis:
                raise ConfigError(
                    f"{path}: `where` of {labels[axis]} has '{other}'; axes: {', '.join(labels)}."
                )
            if labels[other] != wanted:
                return False
    return True


def label(value: Any) -> str:
    """Return the label of a value of an axis."""
    if isinstance(value, Mapping) and "label" in value:
        return str(value["label"])
    name = str(value.get("name", value) if isinstance(value, Mapping) else value)
    is_file = name.partition(":")[0].endswith(".py")
    return name.rpartition("/")[2] if is_file else name  # a method of one's own, without folders
