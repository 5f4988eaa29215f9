"""A recipe is one table: what is run, along which axes, and the paper's numbers beside it.

    title = "..."
    [data]     name = "ml-1m"                      what `rescind data` knows; more keys below
    [sharing]  ratio = [1, 2, 7]  part = 0.3       optional: simulated people lend records
    [method]   name = "FedAvg"  negatives = 4      fields of the class, one to one
    [method.model]  name = "LightGCN"
    [guards]   clip = 1.0  gaussian = 0.8          optional: fields of `GuardSettings`
    [run]      rounds = 150                        fields of `RunSettings`
    [forget]   event = "erase"  draw = 0.3         optional: what is asked; cells that name an
               name = "Retrain"                    unlearner answer it (rescind.trials)
    [axes]     data = ["ml-100k", "ml-1m"]         each value changes its table for one cell
               method = ["Popularity", { label = "FedAvg, 4", name = "FedAvg", negatives = 4 }]
               seed = [0, 1, 2]                    a value may carry `run = { rounds = 1 }` too,
                                                   and `where = { data = "ml-1m" }`: there alone
    [paper."ml-1m/FedAvg, 4"]  "HR@20" = 0.4656    published numbers, by cell
    [plot]     x = "method.negatives"              optional: the setting that is swept
    [table]    columns = ["NDCG@20", "seconds.cpu"]   optional: what of a line is shown
               also = ["unlearning/ml-1m"]         optional: results that count here, too

A cell is named by its labels along the axes other than seed, joined by "/".
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rescind.cell import (
    CONTROLS,
    SETTINGS,
    Cell,
    DataSettings,
    ForgetSettings,
    GuardSettings,
    RunSettings,
    SharingSettings,
    Table,
)
from rescind.errors import ConfigError, suggest
from rescind.settings import checked, fields_of, find, from_table
from rescind.storage import METHODS, MODELS

__all__ = [
    "COLUMNS",
    "Cell",
    "Column",
    "DataSettings",
    "ForgetSettings",
    "GuardSettings",
    "PlotSettings",
    "Recipe",
    "RunSettings",
    "SharingSettings",
    "locate",
    "read",
]

TABLES = (*SETTINGS, "axes", "paper", "plot", "table")
WORDS = ("title", "source", "notes")
AXES = ("data", "method", "model", "sharing", "guards", "forget", "seed")


@dataclass(frozen=True)
class Column:
    """One value of the result lines that a table shows."""

    path: str
    """A name in `test`, or the way to it from the top of a line: "seconds.cpu"; or "a + b"."""
    title: str | None = None
    """What stands above it; the path unless given."""
    digits: int = 4
    """How many of them stand behind the point."""
    per: float = 1.0
    """The unit it is shown in: 1e6 makes megabytes of bytes."""

    @property
    def name(self) -> str:
        """What stands above it."""
        return self.title or self.path

    def of(self, line: Mapping[str, Any]) -> float | str | None:
        """Its value in a result line: a number, a word, or None where the line has no such."""
        found = [_found(line, path) for path in self.path.split(" + ")]
        if len(found) == 1 and isinstance(found[0], str):
            return found[0]
        numbers = [v for v in found if isinstance(v, int | float)]
        return sum(numbers) / self.per if len(numbers) == len(found) else None


def _found(line: Mapping[str, Any], path: str) -> float | str | None:
    """What stands at a path of a line, or under this name in its `test`."""
    place: Any = line
    for part in path.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    place = line.get("test", {}).get(path, place)
    if isinstance(place, bool):
        return "yes" if place else "no"
    return place if isinstance(place, int | float | str) else None


COLUMNS = (Column("HR@20"), Column("NDCG@20"))


@dataclass(frozen=True)
class PlotSettings:
    """How `rescind table --plot` draws a recipe that sweeps one setting."""

    x: str
    """The swept setting, such as "method.contrast"; the lines are the other axes."""
    across: str | None = None
    """The words below the figure; the setting unless given."""
    bars: bool = False
    """Whether it compares cells by name: bars in place of lines."""


@dataclass(frozen=True)
class Recipe:
    """A read recipe: its cells and the numbers they are held against."""

    path: Path
    title: str
    source: str
    names: tuple[str, ...]
    """The names of its cells, in order."""
    cells: tuple[Cell, ...]
    """All cells (or the one that was read) at every seed of the recipe."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    plot: PlotSettings | None = None
    columns: tuple[Column, ...] | None = None
    """What its table shows, where it says so."""
    also: tuple[Path, ...] = ()
    """Other files of results whose lines count, too, where their settings are the same."""
    changed: bool = False
    """Settings other than the seed were overridden, so results do not belong to its table."""

    @property
    def results(self) -> Path:
        """Where the results of its runs are kept, one line each."""
        return self.path.with_suffix(".jsonl")

    def choose(self, name: str | None, seeds: Sequence[int] | None = None) -> tuple[Cell, ...]:
        """The cells of one name (or all), at the recipe's seeds or the given ones."""
        if name is not None and name not in self.names:
            raise ConfigError(f"{self.path.name} has no cell '{name}'; {suggest(name, self.names)}")
        cells = [c for c in self.cells if name is None or c.name == name]
        if seeds is None:
            return tuple(cells)
        firsts = {c.name: c for c in reversed(cells)}
        order = [firsts[n] for n in self.names if n in firsts]
        return tuple(cell.with_seed(seed) for cell in order for seed in seeds)


def locate(name: str) -> Path:
    """The file of a recipe given by path, or by its name under `recipes/` (paper/table)."""
    given = Path(name)
    tried = [given, given.with_suffix(".toml"), Path("recipes") / f"{name}.toml"]
    for path in tried:
        if path.is_file() and path.suffix == ".toml":
            return path
    known = sorted(
        str(p.relative_to("recipes").with_suffix("")) for p in Path("recipes").glob("*/*.toml")
    )
    raise ConfigError(
        f"there is no recipe '{name}' (looked for {', '.join(map(str, tried))}). "
        f"{suggest(name, known)}"
    )


def read(path: Path, changes: Sequence[str] = (), only: str | None = None) -> Recipe:
    """Read a recipe and expand its axes; `changes` are "key=value" overrides.

    only: build this cell alone, so that a change need not fit the others
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Mend that line.") from None
    for key in table:
        if key not in TABLES + WORDS:
            raise ConfigError(f"{path}: unknown key '{key}'; {suggest(key, TABLES + WORDS)}")
    axes = dict(table.get("axes", {}))
    settled = [_change(axes, change) for change in changes]
    names, cells = _cells(path, table, axes, [c for c in settled if c is not None], only)
    return Recipe(
        path=path,
        title=str(table.get("title", path.stem)),
        source=str(table.get("source", "")),
        names=tuple(names),
        cells=tuple(cells),
        paper=table.get("paper", {}),
        plot=_settings(PlotSettings, table["plot"]) if "plot" in table else None,
        columns=_columns(path, table["table"]) if "columns" in table.get("table", {}) else None,
        also=_also(path, table.get("table", {})),
        changed=any(change is not None for change in settled),
    )


def _columns(path: Path, table: Any) -> tuple[Column, ...]:
    """The columns of `[table]`: names, or tables with path, title and digits."""
    given = table["columns"]
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"{path}: columns is a list of what is shown: "
            f'columns = ["NDCG@20", {{ path = "seconds.cpu", title = "s", digits = 1 }}].'
        )
    try:
        found = [_settings(Column, {"path": c} if isinstance(c, str) else c) for c in given]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    names = [column.name for column in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two columns are called '{name}'. Give one another title.")
    return tuple(found)


def _also(path: Path, table: Mapping[str, Any]) -> tuple[Path, ...]:
    """The results of other recipes, named as paper/table, that `[table] also` counts in."""
    for key in table:
        if key not in ("columns", "also"):
            raise ConfigError(
                f"{path}: [table] has no '{key}'; {suggest(key, ('columns', 'also'))}"
            )
    names = table.get("also", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f'{path}: also is a list of recipes, such as also = ["basics/floor"].')
    found = [path.parent.parent / f"{name}.toml" for name in names]
    for name, other in zip(names, found, strict=True):
        if not other.is_file():
            raise ConfigError(f"{path}: there is no recipe '{name}' ({other}) to count in.")
    return tuple(other.with_suffix(".jsonl") for other in found)


def _change(axes: Table, change: str) -> tuple[list[str], Any] | None:
    """Read one "key=value" as (path of keys, value); None for the seed, which is an axis.

    An axis of the same name ("data", "method", "model") is replaced.
    """
    key, sign, text = change.partition("=")
    if not sign:
        raise ConfigError(f"--set wants key=value, got '{change}'. Example: --set run.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    key = key.strip()
    if key in ("seed", "run.seed"):
        axes["seed"] = [value]
        return None
    if key in AXES:
        axes.pop(key, None)
        named = ("data", "method", "forget")
        key = "method.model" if key == "model" else f"{key}.name" if key in named else key
    parts = key.split(".")
    if parts[0] not in SETTINGS or len(parts) < 2:
        allowed = [*AXES, "method.model.<field>", *(f"{name}.<field>" for name in SETTINGS)]
        raise ConfigError(f"--set cannot change '{key}'; {suggest(key, allowed)}")
    return parts, value


def _write(tables: Table, parts: list[str], value: Any) -> None:
    """Set one setting in the tables of a cell."""
    place = tables
    for part in parts[:-1]:
        inside = place.setdefault(part, {})
        if isinstance(inside, str):
            inside = place[part] = {"name": inside}
        place = inside
    place[parts[-1]] = value


def _cells(
    path: Path,
    table: Table,
    axes: Table,
    changes: Sequence[tuple[list[str], Any]],
    only: str | None,
) -> tuple[list[str], list[Cell]]:
    """The names of all cells, and the cells (or the one asked for) at every seed."""
    for axis in axes:
        if axis not in AXES:
            raise ConfigError(f"{path}: unknown axis '{axis}'; {suggest(axis, AXES)}")
    seeds = axes.pop("seed", [table.get("run", {}).get("seed", 0)])
    order = [axis for axis in AXES if axis in axes]
    names, cells = [], []
    for values in itertools.product(*[axes[axis] for axis in order]):
        if not _meet(path, dict(zip(order, values, strict=True))):
            continue
        tables: Table = json.loads(json.dumps({k: table.get(k, {}) for k in SETTINGS}))
        if "sharing" not in table:
            tables.pop("sharing")
        labels = {a: _place(tables, a, v) for a, v in zip(order, values, strict=True)}
        names.append("/".join(labels.values()) or path.stem)
        for parts, value in changes:  # what is asked for on the command line has the last word
            _write(tables, parts, value)
        if only in (None, names[-1]):
            cells += [_cell(path, names[-1], tables, seed, labels) for seed in seeds]
    return list(dict.fromkeys(names)), cells


def _meet(path: Path, values: Mapping[str, Any]) -> bool:
    """Whether these values of the axes make a cell: each may ask for labels along the others."""
    labels = {axis: _label(value) for axis, value in values.items()}
    for axis, value in values.items():
        asked = value.get("where", {}) if isinstance(value, Mapping) else {}
        for other, label in asked.items():
            if other not in labels or other == axis:
                allowed = [a for a in labels if a != axis]
                raise ConfigError(
                    f"{path}: `where` of {labels[axis]} names no other axis: '{other}'; "
                    f"{suggest(other, allowed)}"
                )
            if labels[other] != label:
                return False
    return True


def _label(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return str(value.get("label", value.get("name", value)))


def _place(tables: Table, axis: str, value: Any) -> str:
    """Write one value of an axis into its table; return its label."""
    change = dict(value) if isinstance(value, Mapping) else {"name": value}
    label = _label(value)
    change = {k: v for k, v in change.items() if k not in ("label", "where")}
    # A ceiling is trained for one round, or sees everything; a row of a table may be a request.
    for other in ("run", "sharing", "forget", "method"):
        if other in change and other != axis:
            more, known = change.pop(other), tables.setdefault(other, {})
            if other == "method" and more.get("name", known.get("name")) != known.get("name"):
                known.clear()  # another method does not take the fields of the one it replaces
            known.update(more)
    if axis == "model":
        method = tables.setdefault("method", {})
        inside = method.get("model", {})
        inside = {"name": inside} if isinstance(inside, str) else inside
        # Another model does not take the fields of the one it replaces.
        method["model"] = change if change.get("name") != inside.get("name") else inside | change
    else:
        tables.setdefault(axis, {}).update(change)
    return label


def _cell(path: Path, name: str, tables: Table, seed: Any, labels: Mapping[str, str]) -> Cell:
    try:
        method = dict(tables.get("method", {}))
        run = {**tables.get("run", {}), "seed": seed}
        data, sharing = tables.get("data", {}), tables.get("sharing")
        learns = from_table(
            find(*METHODS, str(method.get("name", "FedAvg"))), method, {"model": MODELS}
        )
        if learns.model.task == "nodes":
            run = {"measure": "accuracy", **run}
        guards = _settings(GuardSettings, tables.get("guards", {}))
        return Cell(
            name=name,
            data=_settings(DataSettings, data),
            sharing=None if sharing is None else _settings(SharingSettings, sharing),
            method=learns,
            run=_settings(RunSettings, run),
            guards=guards if guards.guards else None,
            forget=_forget(tables.get("forget", {}), method),
            labels=labels,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}, cell {name}: {error}") from None


def _forget(table: Mapping[str, Any], method: Mapping[str, Any]) -> ForgetSettings | None:
    """What is asked and who answers; None where nobody is named. Other keys are the unlearner's.

    `learner = true`: the unlearner learns itself, with the method's settings. `learner = { ... }`:
    the method learns, with these changes.
    """
    if "name" not in table:
        return None
    name, asked = str(table["name"]), fields_of(ForgetSettings).keys() - {"unlearner", "learner"}
    given = {k: v for k, v in table.items() if k in asked}
    others = {k: v for k, v in table.items() if k not in asked and k != "learner"}
    learner, unlearner = table.get("learner", False), None
    if name not in (*CONTROLS, "own"):
        cls = find(*METHODS, name)
        shared = {k: v for k, v in method.items() if k in fields_of(cls)} if learner is True else {}
        unlearner = from_table(cls, {**shared, **others, "name": name}, {"model": MODELS})
    elif others or learner is True:
        raise ConfigError(
            f"[forget] '{name}' is no method of its own, so it has no field "
            f"'{next(iter(others), 'learner')}'. Leave it out."
        )
    learnt = unlearner if learner is True else None
    if isinstance(learner, Mapping):
        cls = find(*METHODS, str(method.get("name", "FedAvg")))
        learnt = from_table(cls, {**method, **learner}, {"model": MODELS})
    settings = _settings(ForgetSettings, given)
    return replace(cast(ForgetSettings, settings), unlearner=unlearner, learner=learnt)


def _settings(cls: type, table: Mapping[str, Any]) -> Any:
    """Build settings; unlike a method's, a "name" here is a field (the dataset's)."""
    known = fields_of(cls)
    if cls is Column and (not isinstance(table, Mapping) or "path" not in table):
        raise ConfigError(f'a column needs a path, such as path = "seconds.cpu"; got {table!r}.')
    for key in table:
        if key not in known:
            what = cls.__name__.removesuffix("Settings").lower()
            what = "guards" if cls is GuardSettings else what
            raise ConfigError(f"[{what}] has no field '{key}'; {suggest(key, known)}")
    if cls is PlotSettings and "x" not in table:
        raise ConfigError('[plot] needs x, the setting that is swept: x = "method.negatives".')
    return cls(**{k: checked(v, known[k], f"{cls.__name__}.{k}") for k, v in table.items()})
