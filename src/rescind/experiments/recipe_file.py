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
from dataclasses import dataclass, is_dataclass
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
_OF_MOST = {
    **{name: f"method.{name}" for name in ("rate", "epochs", "negatives", "clients_per_round")},
    "dim": "method.model.dim",
}
"""Fields that most methods have, and where they stand."""
_LONGEST_NAME = 48
_DIGEST = "set"
"""What names changed settings: words of at most this length, or this word and a digest."""


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
    known = {f"{path.parent.name}/{path.stem}" for path in files}
    looked = ", ".join(map(str, tried))
    if "/" not in name and name in _datasets():
        raise ConfigError(
            f"'{name}' is a dataset, not a recipe. Run on it: rescind run --data {name}"
        )
    if given.suffix == ".toml":  # a file was meant: the names of our recipes are of no use
        here = _beside(given.stem, [path.stem for path in given.parent.glob("*.toml")])
        raise ConfigError(f"there is no file {given}.{here} Recipes of a name: rescind run --help")
    if given.suffix:
        here = _beside(given.name, [path.name for path in given.parent.glob("*.toml")])
        raise ConfigError(
            f"there is no recipe '{name}' (looked for {looked}). The name of a recipe's file ends "
            f"in .toml.{here}"
        )
    raise ConfigError(f"there is no recipe '{name}' (looked for {looked}). {suggest(name, known)}")


def _beside(given: str, there: list[str]) -> str:
    """Return a hint to the files of a folder; '' if it has none."""
    return f" {suggest(given, there)}" if there else ""


def _datasets() -> list[str]:
    from rescind.data.loading import names

    return names()


def check_record(path: Path, changes: Sequence[str], changed: Collection[str]) -> None:
    """Raise an error if results of this recipe, with these changes, cannot be recorded.

    changed: keys of the changes to another value than the recipe has
    """
    parts = {text: change({}, text) for text in changes}
    others = [text for text, one in parts.items() if one and ".".join(one[0]) in changed]
    if others:
        raise ConfigError(
            f"--record adds results of the recipe as it is written, and --set {others[0]} changes "
            f"it. Leave out --record, or change the setting in a recipe of your own."
        )
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
    table = parsed(path)
    axes = dict(table.get("axes", {}))
    for text in changes:
        change(axes, text, method_names(table))
    check_cell(path, cell, [name for name, _ in combinations(path, axes)])


def check_cell(path: Path, cell: str | None, names: Sequence[str]) -> None:
    """Raise an error if the recipe has no cell of this name."""
    if cell is not None and cell not in names:
        raise ConfigError(f"{path.name} has no cell '{cell}'; {suggest(cell, names)}")


def method_names(table: Table) -> list[str]:
    """Return the names of the methods of a recipe, as far as its tables are in order."""
    one, more = table.get("method"), table.get("axes", {}).get("method")
    given = [one, *(more if isinstance(more, list) else ())]
    names = [each.get("name") if isinstance(each, dict) else each for each in given]
    return [name for name in names if isinstance(name, str)]


def change(axes: Table, text: str, methods: Sequence[str] = ()) -> Change | None:
    """Parse one "key=value" into (path of keys, value); None for the seed, which is an axis.

    An axis of the same name ("data", "method", "model") is replaced.
    methods: the recipe's, whose settings are suggested for one that is misspelt
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
        raise ConfigError(f"--set cannot change '{key}'; {_meant(key, methods)}")
    return parts, value


def _meant(key: str, methods: Sequence[str]) -> str:
    """Return a hint to the setting that was meant: mostly a field without its table."""
    from rescind.experiments.cell import DataSettings, GuardSettings, RunSettings, SharingSettings

    allowed = [*AXES, "method.model.<field>", *(f"{name}.<field>" for name in SETTINGS)]
    if "." in key:
        return suggest(key, allowed)
    tables = (GuardSettings, SharingSettings, DataSettings, RunSettings)
    names = ("guards", "sharing", "data", "run")  # of two fields of one name the last counts
    pairs = zip(names, tables, strict=True)
    known = {field: f"{name}.{field}" for name, cls in pairs for field in fields_of(cls)}
    known |= {axis: axis for axis in AXES}
    near = get_close_matches(key, known, n=1, cutoff=0.8)
    of_methods = _settings_of(methods)
    ours = key if key in of_methods else usual(key, of_methods or _OF_MOST)
    field = near[0] if near else None if ours else usual(key, known.keys() - {"model"})
    close = get_close_matches(key, of_methods, n=1, cutoff=0.8)
    every = f"Allowed: {', '.join(sorted(allowed))}."
    if field:
        return f"did you mean '{known[field]}'? {every}"
    if ours or close or not of_methods:  # of a method from a file nothing is known
        name = ours or (close or [key])[0]
        path = of_methods.get(name) or _OF_MOST.get(name, f"method.{name}")
        return f"did you mean '{path}', a field of the method? {every}"
    has = ", ".join(sorted(of_methods.values()))
    return f"settings of {' and '.join(dict.fromkeys(methods))}: {has}. {every}"


def _settings_of(methods: Sequence[str]) -> dict[str, str]:
    """Return where methods and their usual models have each setting; empty if one is unknown."""
    from rescind.experiments.described import find, knows
    from rescind.storage.kinds import METHODS

    found = dict[str, str]()
    for method in methods:
        if not knows(method):
            return {}
        cls = find(*METHODS, method)
        model = getattr(cls(), "model", None)
        if is_dataclass(model):
            found |= {name: f"method.model.{name}" for name in fields_of(type(model))}
        found |= {name: f"method.{name}" for name in fields_of(cls) if name != "model"}
    return found


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Return changes so that a whole table comes before its fields, in whatever order given."""
    return sorted(changes, key=lambda one: len(one[0]))


def change_name(changes: Mapping[str, Any]) -> str:
    """Return a name for changed settings, by key, such as "rounds-40". Others have another name.

    It is a digest where the words would be long, or where other settings could have the same ones.
    """
    words = [word for key in sorted(changes) for word in _words(key, changes[key])]
    name = "-".join(words)
    if "" not in words and len(name) <= _LONGEST_NAME:
        return name
    text = json.dumps(changes, sort_keys=True)
    return f"{_DIGEST}-{sha256(text.encode()).hexdigest()[:12]}"


def _words(key: str, value: Any) -> tuple[str, str]:
    """Return a key and its value as words without "-"; "" for what has none of its own."""
    if key == "method":  # as it was given: method=FedAvg
        value = value["name"]
    word = json.dumps(value) if isinstance(value, int | float) else str(value)
    if setting(f"{key}={word}", "")[1] != value:  # the text "40" is not the number
        word = ""
    short = key.removeprefix("run.")
    if "." in short or short in (*AXES, _DIGEST):
        short = key
    return _plain(short), _plain(word)


def _plain(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z0-9_.]+", word) else ""


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
            _check_alone(path, along, known.setdefault(folder_of(name), along))
            yield name, along


def folder_of(cell: str) -> str:
    """Return the name of the folder of a cell's runs."""
    return cell.replace("/", "_").replace(" ", "_")


def _check_alone(path: Path, along: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if along is other:
        return
    axis = next((axis for axis in along if along[axis] != other[axis]), None)
    if axis is None:
        raise ConfigError(f"{path}: a value of [axes] stands there twice. Give each once.")
    first, second = other[axis], along[axis]
    raise ConfigError(
        f"{path}: two values of [axes] {axis} are called '{label(second)}', so one would replace "
        f"the results of the other: {_shown(first)} and {_shown(second)}. Give each a label of its "
        f'own, such as {{ label = "{label(second)}, {_what_differs(first, second)}", ... }}.'
    )


def _what_differs(first: Any, second: Any) -> str:
    """Return what makes the second value another one, for a label."""
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return "again"
    keys = (key for key in second if second[key] != first.get(key))
    return next((f"{key} {second[key]}" for key in keys if key != "label"), "again")


def _shown(value: Any) -> str:
    """Return a value of an axis as it may be written in a recipe."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    return "{ " + ", ".join(f"{key} = {_shown(one)}" for key, one in value.items()) + " }"


def _is_cell(path: Path, values: Mapping[str, Any]) -> bool:
    """Return whether these values make a cell: `where` of a value may require other labels."""
    labels = {axis: label(value) for axis, value in values.items()}
    for axis, value in values.items():
        required = value.get("where", {}) if isinstance(value, Mapping) else {}
        for other, wanted in required.items():
            if other not in labels or other == axis:
                hint = suggest(other, [a for a in labels if a != axis])
                wrong = f"`where` of {labels[axis]} has '{other}', which is not another axis"
                raise ConfigError(f"{path}: {wrong}; {hint}")
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
