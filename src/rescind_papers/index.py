"""The map from tables and figures of the papers to their recipes (recipes/papers.toml).

shelf = Shelf(folder_with(MAP))
for exhibit in chosen(shelf.folder, "fedshare/table3"):
    for part in exhibit.parts:
        shelf.table(part)            ours and the paper's, mean and spread
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError, suggest
from rescind.experiments.recipe_file import Column, PlotSettings

if TYPE_CHECKING:
    from rescind.experiments.recipe import Cell, Recipe
    from rescind.experiments.tables import Entry, Newest, ResultTable

Stamps = tuple[tuple[int, int], ...]
"""When each file of results was changed, and its size."""
MAP = "papers.toml"
APART = ("other data", "other quantity")
"""Why a number of ours may not be the one that is printed."""
PLACES = ("authors", "apart", "reasons", "retrained")
"""Tables of a paper whose keys are places: "recipe: cell", with `*` for any text."""


@dataclass(frozen=True)
class Part:
    """The part of a recipe that a table or figure shows."""

    recipe: str
    """Name of the recipe: paper/table."""
    title: str = ""
    cells: tuple[str, ...] = ("*",)
    """Patterns of cell names."""
    columns: tuple[str, ...] = ()
    """Paths of columns. Default: those of the recipe."""
    against: tuple[str, ...] = ()
    """Cells that other cells on the same data are compared with."""
    lower: tuple[str, ...] = ()
    """Paths of columns in which lower is better."""
    plot: PlotSettings | None = None
    """Plot settings, if the recipe has none."""
    floor: str = ""
    """The finding with the values of a predictor without learning, by data."""
    floors: tuple[str, ...] = ()
    """Recipes whose popularity cells are floors here, on the same data."""
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """Published numbers by cell that the recipe does not have."""
    bound: str = ""
    """The finding with the least NDCG@20 that a printed HR@20 allows, by data."""
    unjudged: tuple[str, ...] = ()
    """Paths of attack rates. They get no verdict, and their distance to a retraining is shown."""
    runs: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Where the paper's run is one of several in a line: the path of their list, by column."""


@dataclass(frozen=True)
class Exhibit:
    """One table or figure of a paper."""

    paper: str
    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    says: str = ""
    """The paper's conclusion from it."""
    notes: str = ""
    derive: str = ""
    """What is computed from the parts, if they are not shown directly."""
    absent: tuple[str, ...] = ()
    """Names of datasets that are not available here."""
    authors: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By place ("recipe: cell"): where the method is run as its authors publish it."""
    apart: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By place: why ours is not the same measurement (one of APART)."""
    reasons: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By place: why ours is worse, or that we do not know."""
    retrained: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By place: the retraining whose attack rate a printed rate is compared with."""

    @property
    def place(self) -> str:
        """Return its name for commands: paper/name."""
        return f"{self.paper}/{self.name}"

    @property
    def figure(self) -> bool:
        """Return whether it is a figure."""
        return self.name.startswith("fig")


@dataclass(frozen=True)
class Shelf:
    """The recipes of a folder, each read once. Some may be replaced by changed ones."""

    folder: Path
    changed: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes that replace those of the folder, such as quick ones."""
    _read: dict[str, Recipe] = field(default_factory=dict, compare=False)
    _lines: dict[tuple[str, Stamps], tuple[Newest, tuple[str, ...]]] = field(
        default_factory=dict, compare=False
    )

    def recipe(self, name: str) -> Recipe:
        """Return the recipe of this name."""
        from rescind.experiments.recipe import read  # loads torch, which reading the map does not

        if name in self.changed:
            return self.changed[name]
        if name not in self._read:
            path = self.folder / f"{name}.toml"
            if not path.is_file():
                raise ConfigError(f"{MAP} names the recipe '{name}', but there is no {path}.")
            self._read[name] = read(path)
        return self._read[name]

    def newest(self, name: str) -> tuple[Newest, tuple[str, ...]]:
        """Return the newest lines of a recipe, read again only after its files changed.

        A page asks for the same lines once for every number.
        """
        from rescind.experiments.tables import newest_lines

        recipe = self.recipe(name)
        files = [path for path in (*recipe.also, recipe.results) if path.is_file()]
        known = name, tuple((s.st_mtime_ns, s.st_size) for s in map(Path.stat, files))
        if known not in self._lines:
            self._lines[known] = newest_lines(recipe)
        return self._lines[known]

    def table(self, part: Part) -> ResultTable:
        """Return the results of a part. Rows with only a published number come last."""
        from rescind.experiments.tables import Entry, collect

        recipe = self.recipe(part.recipe)
        if part.plot is not None:
            recipe = replace(recipe, plot=part.plot)
        columns = picked(recipe, part)
        whole = collect(recipe, columns, self.newest(part.recipe))
        names = tuple(cell.name for cell in shown(recipe, part))
        entries = [e for e in whole.entries if e.cell in names]
        known = [_published(e, columns, part) for e in entries]
        for cell, numbers in part.printed.items():
            if cell not in names:
                known += [
                    Entry(cell, c.name, (), numbers[c.path], digits=c.digits)
                    for c in columns
                    if c.path in numbers
                ]
        return replace(whole, recipe=replace(recipe, names=names), entries=tuple(known))


def looked_up(table: Mapping[str, str], place: str) -> tuple[str, str] | None:
    """Return the first pattern that fits a place, and its value; None if none fits.

    A `*` in a pattern stands for any text, the shortest that fits; in the value, for this text.
    """
    for pattern, value in table.items():
        found = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*?)"), place)
        if found is not None:
            for text in found.groups():
                value = value.replace("*", text, 1)  # noqa: PLW2901
            return pattern, value
    return None


def finding(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a finding, written by a script of papers/scripts/findings/."""
    path = folder / "findings" / f"{name}.json"
    if not path.is_file():
        known = [other.stem for other in path.parent.glob("*.json")]
        raise ConfigError(f"there is no finding '{name}' ({path}); {suggest(name, known)}")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def picked(recipe: Recipe, part: Part) -> tuple[Column, ...]:
    """Return the columns of a part."""
    known = {column.path: column for column in recipe.shown}
    return tuple(known.get(path, Column(path)) for path in part.columns or known)


def shown(recipe: Recipe, part: Part) -> list[Cell]:
    """Return one cell of each name that a part shows, in the recipe's order."""
    from rescind.experiments.tables import cells_by_name

    cells = cells_by_name(recipe)
    fit = [n for n in recipe.names if any(fnmatchcase(n, pattern) for pattern in part.cells)]
    return [cells[name] for name in fit]


def _published(entry: Entry, columns: tuple[Column, ...], part: Part) -> Entry:
    """Return the entry with the map's published number, if the recipe has none."""
    path = next(c.path for c in columns if c.name == entry.metric)
    number = part.printed.get(entry.cell, {}).get(path)
    return entry if number is None or entry.paper is not None else replace(entry, paper=number)


def exhibits(folder: Path) -> tuple[Exhibit, ...]:
    """Return every table and figure of the map, in order."""
    path = folder / MAP
    try:
        papers = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. A checkout has it.") from None
    return tuple(
        _exhibit(name, paper, one) for name, paper in papers.items() for one in paper["exhibit"]
    )


def _exhibit(name: str, paper: Mapping[str, Any], table: Mapping[str, Any]) -> Exhibit:
    words: dict[str, Any] = {k: str(table.get(k, "")) for k in ("says", "notes", "derive")}
    places: dict[str, Any] = {k: paper.get(k, {}) for k in PLACES}
    for place, why in places["apart"].items():
        if why not in APART:
            raise ConfigError(f"{MAP}: '{place}' is apart by '{why}'; {suggest(why, APART)}")
    for place in places["reasons"]:
        if "*" in place.partition(": ")[0]:
            raise ConfigError(f"{MAP}: give the reason '{place}' for one recipe, not for several.")
    return Exhibit(
        name, table["name"], table["title"], paper["source"],
        tuple(_part(p) for p in table["part"]), absent=tuple(paper["absent"]), **words, **places,
    )  # fmt: skip


def _part(table: Mapping[str, Any]) -> Part:
    allowed = set(Part.__dataclass_fields__)
    for key in table:
        if key not in allowed:
            raise ConfigError(f"{MAP}: a part has no '{key}'; {suggest(key, allowed)}")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    if "plot" in given:
        given["plot"] = PlotSettings(**given["plot"])
    return Part(**given)


def chosen(folder: Path, what: str | None) -> tuple[Exhibit, ...]:
    """Return all tables and figures, those of one paper, or one (paper/table)."""
    every = exhibits(folder)
    if what is None:
        return every
    fit = tuple(e for e in every if what in (e.paper, e.place))
    if not fit:
        known = [*dict.fromkeys(e.paper for e in every), *(e.place for e in every)]
        raise ConfigError(
            f"no paper, table or figure is called '{what}'; {suggest(what, known)} A recipe alone: "
            f"rescind run NAME"
        )
    return fit


def behind(exhibit: Exhibit) -> tuple[str, ...]:
    """Return the recipes of a table or figure, each once."""
    return tuple(dict.fromkeys(part.recipe for part in exhibit.parts))


def authors_of(exhibit: Exhibit, shelf: Shelf) -> list[Part]:
    """Return the cells of the authors' methods that a table or figure shows beside its own."""
    out = []
    for part in exhibit.parts if not exhibit.derive else ():
        recipe = shelf.recipe(part.recipe)
        for cell in shown(recipe, part):
            found = looked_up(exhibit.authors, f"{part.recipe}: {cell.name}")
            if found is None or cell.name not in recipe.paper:
                continue
            name, _, other = found[1].partition(": ")
            if other in shelf.recipe(name).names:
                out.append(Part(name, cells=(other,)))
    return out
