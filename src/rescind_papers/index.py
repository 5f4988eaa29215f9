"""The map from every table and figure of the papers to the recipes behind it (recipes/papers.toml).

shelf = Shelf(folder_with(MAP))
for exhibit in chosen(shelf.folder, "fedshare/table3"):
    for part in exhibit.parts:
        shelf.table(part)            ours beside the paper's, mean and spread
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError, suggest
from rescind.experiments.recipe_file import COLUMNS, Column, PlotSettings

if TYPE_CHECKING:
    from rescind.experiments.recipe import Cell, Recipe
    from rescind.experiments.tables import Entry, ResultTable

MAP = "papers.toml"


@dataclass(frozen=True)
class Part:
    """A recipe, as far as a table or figure shows it."""

    recipe: str
    """As paper/table under recipes/."""
    title: str = ""
    cells: tuple[str, ...] = ("*",)
    """Patterns of the names of cells."""
    columns: tuple[str, ...] = ()
    """Paths of columns; the recipe's unless given."""
    against: tuple[str, ...] = ()
    """Cells that the others on their data are tested against."""
    lower: tuple[str, ...] = ()
    """Paths of columns in which less is better."""
    plot: PlotSettings | None = None
    """How it is drawn, where the recipe does not say."""
    floor: str = ""
    """The finding that says what a predictor without learning reaches, by data."""
    floors: tuple[str, ...] = ()
    """Recipes whose cells of item popularity are floors here, where the data is the same."""
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """Published numbers by cell that the recipe does not carry."""


@dataclass(frozen=True)
class Exhibit:
    """One table or figure of a paper."""

    paper: str
    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    says: str = ""
    """What the paper reads from it."""
    notes: str = ""
    derive: str = ""
    """What is computed from the parts rather than shown of them."""
    absent: tuple[str, ...] = ()
    """Names of data that cannot be had here."""

    @property
    def place(self) -> str:
        """As one asks for it: paper/name."""
        return f"{self.paper}/{self.name}"

    @property
    def figure(self) -> bool:
        """Whether it is drawn."""
        return self.name.startswith("fig")


@dataclass(frozen=True)
class Shelf:
    """The recipes of a folder, each read once, perhaps changed before anything is made of them."""

    folder: Path
    changed: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes that stand in for those of the folder, such as quick ones."""
    _read: dict[str, Recipe] = field(default_factory=dict, compare=False)

    def recipe(self, name: str) -> Recipe:
        """The recipe of this name."""
        from rescind.experiments.recipe import read  # loads torch, which reading the map does not

        if name in self.changed:
            return self.changed[name]
        if name not in self._read:
            path = self.folder / f"{name}.toml"
            if not path.is_file():
                raise ConfigError(f"{MAP} names the recipe '{name}', and there is no {path}.")
            self._read[name] = read(path)
        return self._read[name]

    def table(self, part: Part) -> ResultTable:
        """The results of a part: its cells and columns, those that are only printed last."""
        from rescind.experiments.tables import Entry, collect

        recipe = self.recipe(part.recipe)
        if part.plot is not None:
            recipe = replace(recipe, plot=part.plot)
        columns = picked(recipe, part)
        whole = collect(recipe, columns)
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


def finding(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows that a script of recipes/findings/ wrote down."""
    path = folder / "findings" / f"{name}.json"
    if not path.is_file():
        known = [other.stem for other in path.parent.glob("*.json")]
        raise ConfigError(f"there is no finding '{name}' ({path}); {suggest(name, known)}")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def picked(recipe: Recipe, part: Part) -> tuple[Column, ...]:
    """The columns a part shows."""
    known = {column.path: column for column in recipe.columns or COLUMNS}
    return tuple(known.get(path, Column(path)) for path in part.columns or known)


def shown(recipe: Recipe, part: Part) -> list[Cell]:
    """One cell of each name that a part shows, in the recipe's order."""
    from rescind.experiments.tables import cells_by_name

    cells = cells_by_name(recipe)
    fit = [n for n in recipe.names if any(fnmatchcase(n, pattern) for pattern in part.cells)]
    return [cells[name] for name in fit]


def _published(entry: Entry, columns: tuple[Column, ...], part: Part) -> Entry:
    """With the number that the map has for it, where the recipe has none."""
    path = next(c.path for c in columns if c.name == entry.metric)
    number = part.printed.get(entry.cell, {}).get(path)
    return entry if number is None or entry.paper is not None else replace(entry, paper=number)


def exhibits(folder: Path) -> tuple[Exhibit, ...]:
    """Every table and figure of the map, in its order."""
    path = folder / MAP
    try:
        papers = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}. Change to the top folder of a checkout, which has recipes/."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Mend that line.") from None
    return tuple(
        _exhibit(name, paper, one) for name, paper in papers.items() for one in paper["exhibit"]
    )


def _exhibit(name: str, paper: Mapping[str, Any], table: Mapping[str, Any]) -> Exhibit:
    words = {k: str(table.get(k, "")) for k in ("says", "notes", "derive")}
    return Exhibit(
        name, table["name"], table["title"], paper["source"],
        tuple(_part(p) for p in table["part"]), absent=tuple(paper["absent"]), **words,
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
    """All of the map, those of a paper, or one as paper/table."""
    every = exhibits(folder)
    if what is None:
        return every
    fit = tuple(e for e in every if what in (e.paper, e.place))
    if not fit and (folder / f"{what}.toml").is_file() and "/" in what:
        raise ConfigError(_only_a_recipe(what, every))
    if not fit:
        known = [*dict.fromkeys(e.paper for e in every), *(e.place for e in every)]
        raise ConfigError(f"no paper, table or figure is called '{what}'; {suggest(what, known)}")
    return fit


def behind(exhibit: Exhibit) -> tuple[str, ...]:
    """The recipes that a table or figure is made of, each once."""
    return tuple(dict.fromkeys(part.recipe for part in exhibit.parts))


def _only_a_recipe(name: str, every: tuple[Exhibit, ...]) -> str:
    """What to do with the name of a recipe where that of a table or figure is wanted."""
    alone = f"`rescind run {name}` runs the recipe alone, `rescind table {name}` prints its results"
    places = [e.place for e in every if name in behind(e)]
    if not places:
        return f"'{name}' is a recipe, and no table or figure of a paper is made of it. {alone}."
    return (
        f"'{name}' is a recipe behind {', '.join(places)}. Give the table or figure: "
        f"`rescind reproduce {places[0]}`. {alone}."
    )
