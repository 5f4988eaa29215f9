"""A recipe is one table: what is run, along which axes, and the paper's numbers.

    title = "..."
    [data]     name = "ml-1m"                      what `rescind data` knows; more keys below
    [sharing]  ratio = [1, 2, 7]  part = 0.3       optional: simulated people lend records
    [method]   name = "FedAvg"  negatives = 4      fields of the class, one to one; "auto": Gram,
                                                   or LocalGram above 10,000 items; your own
                                                   file: name = "anchored.py"
    [method.model]  name = "LightGCN"
    [guards]   clip = 1.0  gaussian = 0.8          optional: fields of `GuardSettings`
    [run]      rounds = 150                        fields of `RunSettings`; without rounds: as many
                                                   as the method's class says are enough, or 150
    [forget]   event = "erase"  draw = 0.3         optional: the request; cells that name an
               name = "Retrain"                    unlearner answer it (unlearning_run.py)
    [axes]     data = ["ml-100k", "ml-1m"]         each value changes its table for one cell
               method = ["Popularity", { label = "FedAvg, 4", name = "FedAvg", negatives = 4 }]
               seed = [0, 1, 2]                    a value may also have `run = { rounds = 1 }`,
                                                   and `where = { data = "ml-1m" }`: only there
    [paper."ml-1m/FedAvg, 4"]  "HR@20" = 0.4656    published numbers, by cell
    [plot]     x = "method.negatives"              optional: the setting that is swept
    [table]    columns = ["NDCG@20", "seconds.cpu"]   optional: what is shown of a line
               also = ["unlearning/ml-1m"]         optional: other results that count here

Without columns, a table shows what its cells measure (`run.k`), and verdicts if audits judged.

A cell is named by its labels along the axes other than seed, joined by "/".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rescind.core.settings import Find, checked, fields_of, find, from_table, sought
from rescind.errors import ConfigError, suggest
from rescind.experiments import described, recipe_file
from rescind.experiments.cell import (
    CONTROLS,
    Cell,
    DataSettings,
    ForgetSettings,
    GuardSettings,
    RunSettings,
    SharingSettings,
)
from rescind.experiments.recipe_file import Column, PlotSettings
from rescind.experiments.recipe_shape import SETTINGS, Table
from rescind.storage.kinds import METHODS, MODELS, UNLEARNERS
from rescind.storage.run_folder import name_above

__all__ = [
    "Cell",
    "Column",
    "DataSettings",
    "GuardSettings",
    "Recipe",
    "RunSettings",
    "SharingSettings",
    "read",
]


@dataclass(frozen=True)
class Recipe:
    """A recipe in memory: its cells and the numbers they are compared with."""

    path: Path
    title: str
    source: str
    names: tuple[str, ...]
    """The names of its cells, in order."""
    cells: tuple[Cell, ...]
    """All cells (or the one asked for) at every seed of the recipe."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    plot: PlotSettings | None = None
    columns: tuple[Column, ...] | None = None
    """Columns of its table, if the recipe names them."""
    also: tuple[Path, ...] = ()
    """Other files of results. Their lines also count if the settings are the same."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Settings other than the seed that were changed, by key: their results are not recorded."""

    @property
    def place(self) -> Path:
        """Return a relative folder for its runs, another one for each set of changed settings."""
        name = self.path.stem
        if self.changed:
            name += f"-{recipe_file.change_name(self.changed)}"
        return Path(name_above(self.path)) / name

    @property
    def shown(self) -> tuple[Column, ...]:
        """Return the columns of its table: those that it names, or what its cells measure."""
        if self.columns is not None:
            return self.columns
        names = dict.fromkeys(name for cell in self.cells for name in _measured(cell))
        return tuple(map(Column, names))

    @property
    def results(self) -> Path:
        """Return the file of its recorded results, one line per run."""
        return self.path.with_suffix(".jsonl")

    def choose(self, name: str | None, seeds: Sequence[int] | None = None) -> tuple[Cell, ...]:
        """Return the cells of one name (or all), at the recipe's seeds or the given ones."""
        recipe_file.check_cell(self.path, name, self.names)
        cells = [c for c in self.cells if name is None or c.name == name]
        if seeds is None:
            return tuple(cells)
        firsts = {c.name: c for c in reversed(cells)}
        order = [firsts[n] for n in self.names if n in firsts]
        return tuple(cell.with_seed(seed) for cell in order for seed in seeds)


def folder_name(cell: str, seed: int) -> Path:
    """Return the folder of one of several runs, below the recipe's."""
    return Path(recipe_file.folder_of(cell)) / f"seed-{seed}"


def read(
    path: Path, changes: Sequence[str] = (), only: str | None = None, look: Find = find
) -> Recipe:
    """Read a recipe and expand its axes; `changes` are "key=value" overrides.

    only: build this cell only, so that a change does not have to fit the others
    look: finds methods and models; `described.find` does so without their code
    """
    return of_table(path, recipe_file.parsed(path), changes, only, look)


def of_table(
    path: Path,
    table: Table,
    changes: Sequence[str] = (),
    only: str | None = None,
    look: Find = find,
) -> Recipe:
    """Return the recipe of a table. path: of its file, which need not be there"""
    axes, shown = dict(table.get("axes", {})), table.get("table", {})
    given = [recipe_file.change(axes, text) for text in changes]
    asked = recipe_file.in_order(one for one in given if one is not None)
    names, cells, changed = _cells(path, table, axes, asked, only, look)
    replaced = {axis for axis in table.get("axes", {}) if axis not in axes}
    return Recipe(
        path=path,
        title=str(table.get("title", path.stem)),
        source=str(table.get("source", "")),
        names=tuple(names),
        cells=tuple(cells),
        paper=table.get("paper", {}),
        plot=_settings(PlotSettings, table["plot"]) if "plot" in table else None,
        columns=_columns(path, shown["columns"]) if "columns" in shown else None,
        also=_also(path, shown),
        changed={
            ".".join(keys): value
            for keys, value in asked
            if ".".join(keys) in changed or replaced & {keys[0], keys[-1]}
        },
    )


def _columns(path: Path, given: Any) -> tuple[Column, ...]:
    """Return the columns of `[table]`: names, or tables with path, title and digits."""
    if not isinstance(given, list) or not given:
        raise ConfigError(f'{path}: columns must be a list, such as columns = ["NDCG@20"].')
    try:
        found = [_settings(Column, {"path": c} if isinstance(c, str) else c) for c in given]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len({column.name for column in found}) < len(found):
        raise ConfigError(f"{path}: two columns have the same title. Change one of them.")
    return tuple(found)


def _also(path: Path, table: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the result files of other recipes (paper/table) that `[table] also` names."""
    for key in table:
        if key not in ("columns", "also"):
            hint = suggest(key, ("columns", "also"))
            raise ConfigError(f"{path}: [table] has no '{key}'; {hint}")
    names = table.get("also", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f'{path}: also must be a list of recipes: also = ["basics/floor"].')
    found, here = [], path.parent
    above = here / ".." if here.name == ".." else here.parent
    for name in names:
        folders = (above, recipe_file.packaged())
        places = [folder / f"{name}.toml" for folder in folders]
        there = [place for place in places if place.is_file()]
        if not there:
            raise ConfigError(
                f"{path}: `also` names the recipe '{name}', but there is no {places[0]}."
            )
        found.append(there[0].with_suffix(".jsonl"))
    return tuple(found)


def _write(tables: Table, parts: list[str], value: Any) -> None:
    place = tables
    for part in parts[:-1]:
        inside = place.setdefault(part, {})
        if isinstance(inside, str):
            inside = place[part] = {"name": inside}
        if not isinstance(inside, dict):
            raise ConfigError(f"--set {'.'.join(parts)}: '{part}' is a value, not a table.")
        place = inside
    place[parts[-1]] = value


def _cells(
    path: Path,
    table: Table,
    axes: Table,
    changes: list[recipe_file.Change],
    only: str | None,
    look: Find,
) -> tuple[list[str], list[Cell], set[str]]:
    """Return the names of all cells, and the cells (or the one asked for) at every seed.

    And the keys of those changes that changed something: the recipe may say the same.
    """
    seeds = axes.get("seed", [table.get("run", {}).get("seed", 0)])
    if len({*map(str, seeds)}) < len(seeds):
        raise ConfigError(f"{path}: [axes] seed = {seeds} has a seed twice. Give each once.")
    names, cells, changed = [], [], set()
    for name, along in recipe_file.combinations(path, axes):
        tables: Table = json.loads(json.dumps({k: table.get(k, {}) for k in SETTINGS}))
        if "sharing" not in table:
            tables.pop("sharing")
        for axis, value in along.items():
            _place(tables, axis, value)
        labels = {axis: recipe_file.label(value) for axis, value in along.items()}
        names.append(name)
        for parts, value in changes:  # the command line overrides the file
            before = deepcopy(tables)
            _write(tables, parts, value)
            if tables != before and only in (None, name):
                changed.add(".".join(parts))
        if only in (None, name):
            cells += [_cell(path, name, tables, seed, labels, look) for seed in seeds]
    return names, cells, changed


def _place(tables: Table, axis: str, value: Any) -> None:
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    given = {k: v for k, v in given.items() if k not in ("label", "where")}
    # A value may also change other tables: one round for an upper bound, or a request.
    for other in ("run", "sharing", "forget", "method"):
        if other in given and other != axis:
            more, known = given.pop(other), tables.setdefault(other, {})
            if other == "method" and more.get("name", known.get("name")) != known.get("name"):
                known.clear()  # another method does not take the fields of the one it replaces
            known.update(more)
    if axis == "model":
        method = tables.setdefault("method", {})
        inside = method.get("model", {})
        inside = {"name": inside} if isinstance(inside, str) else inside
        # Another model does not take the fields of the one it replaces.
        method["model"] = given if given.get("name") != inside.get("name") else inside | given
    else:
        tables.setdefault(axis, {}).update(given)


def _cell(
    path: Path, name: str, tables: Table, seed: Any, labels: Mapping[str, str], look: Find
) -> Cell:
    try:
        method, sharing = _named(tables.get("method", {}), METHODS[1], path), tables.get("sharing")
        learns = from_table(_learner(method, look), method, {"model": MODELS}, look)
        run = {**_measure(learns, _rounds(learns, tables.get("run", {}))), "seed": seed}
        guards = _settings(GuardSettings, tables.get("guards", {}))
        return Cell(
            name=name,
            data=_settings(DataSettings, tables.get("data", {})),
            sharing=None if sharing is None else _settings(SharingSettings, sharing),
            method=learns,
            run=_settings(RunSettings, run),
            guards=None if guards.none else guards,
            forget=_forget(_named(tables.get("forget", {}), UNLEARNERS[1], path), method, look),
            labels=labels,
        )
    except ConfigError as error:
        where = f"{path}, cell {name}: " if path.is_file() else ""  # a dataset by itself has none
        raise ConfigError(f"{where}{error}") from None


def _rounds(learns: Any, run: Table) -> Table:
    """Return [run] with the rounds that the method's class says are enough, if it names none."""
    enough = getattr(learns, "enough_rounds", None) or (1 if learns.seedless else None)
    if enough is None or "rounds" in run:
        return run
    return {"rounds": enough, "evaluate_every": enough, **run}


def _measure(learns: Any, run: Table) -> Table:
    """Return [run] with k as a list, and with a measure that there is, if it names none."""
    k = run.get("k", RunSettings.k)
    run = {**run, "k": k if isinstance(k, list | tuple) else [k]}
    if learns.model.task == "nodes":
        return {"measure": "accuracy", **run}
    usual = RunSettings.measure in (f"NDCG@{length}" for length in run["k"])
    return run if usual or not run["k"] else {"measure": f"NDCG@{run['k'][0]}", **run}


def _measured(cell: Cell) -> tuple[str, ...]:
    """Return the metrics that show a cell's result, and the one that chose its round."""
    if cell.method.model.task == "nodes":
        return "accuracy", cell.run.measure
    return *(f"{name}@{k}" for k in cell.run.k for name in ("HR", "NDCG")), cell.run.measure


def _named(table: Mapping[str, Any], marker: str, path: Path) -> Table:
    """Return a table whose name is that of a class: it may be a file, near the recipe or here.

    A class that is not of rescind is looked for in the user's own files.
    """
    if "name" not in table:
        return dict(table)
    name = str(table["name"])
    if name == "auto" and marker == METHODS[1]:
        name = "AutoGram"
    if not described.knows(name) and name not in (*CONTROLS, "own"):
        from rescind.methods._outside import class_name  # loads torch, which a table needs not

        name = class_name(name, marker, path.parent)
    return {**table, "name": name}


def _learner(method: Mapping[str, Any], look: Find) -> type:
    name = str(method.get("name", "FedAvg"))
    try:
        return look(*METHODS, name)
    except ConfigError:  # only then the modules of methods are read, which load torch
        if sought(*METHODS, name) is None and sought(*UNLEARNERS, name) is not None:
            wrong = f"{name} only forgets: name it under [forget], and a learner here."
            raise ConfigError(wrong) from None
        raise


def _forget(
    table: Mapping[str, Any], method: Mapping[str, Any], look: Find
) -> ForgetSettings | None:
    """Return the request and its unlearner; None if no unlearner is named.

    Keys that are not fields of the request are fields of the unlearner.

    `learner = true`: the unlearner also learns, with the method's settings. `learner = { ... }`:
    the method learns, with these changes.
    """
    if "name" not in table:
        return None
    name, asked = str(table["name"]), fields_of(ForgetSettings).keys() - {"unlearner", "learner"}
    given = {k: v for k, v in table.items() if k in asked}
    others = {k: v for k, v in table.items() if k not in asked and k != "learner"}
    learner, unlearner = table.get("learner", False), None
    if name not in (*CONTROLS, "own"):
        cls = look(*UNLEARNERS, name)
        if learner is True and not hasattr(cls, METHODS[1]):
            raise ConfigError(f"[forget] {name} only forgets. Leave learner = true out.")
        shared = {k: v for k, v in method.items() if k in fields_of(cls)} if learner is True else {}
        unlearner = from_table(cls, {**shared, **others, "name": name}, {"model": MODELS}, look)
    elif others or learner is True:
        raise ConfigError(
            f"[forget] '{name}' has no field '{next(iter(others), 'learner')}'. Leave it out."
        )
    learner_method = unlearner if learner is True else None
    if isinstance(learner, Mapping):
        changed = {**method, **learner}
        learner_method = from_table(_learner(method, look), changed, {"model": MODELS}, look)
    settings: ForgetSettings = _settings(ForgetSettings, given)
    return replace(settings, unlearner=unlearner, learner=learner_method)


def _settings(cls: type, table: Mapping[str, Any]) -> Any:
    """Build settings from a table. Unlike in a method, "name" is a field here (of the dataset)."""
    known = fields_of(cls)
    name = "guards" if cls is GuardSettings else cls.__name__.removesuffix("Settings").lower()
    if cls is Column and (not isinstance(table, Mapping) or "path" not in table):
        raise ConfigError(f'a column needs a path, such as path = "seconds.cpu"; got {table!r}.')
    for key in table:
        if key not in known:
            raise ConfigError(f"[{name}] has no field '{key}'; {suggest(key, known)}")
    if cls is PlotSettings and "x" not in table:
        raise ConfigError('[plot] needs x, the swept setting: x = "method.negatives".')
    return cls(**{k: checked(v, known[k], f"{name}.{k}") for k, v in table.items()})
