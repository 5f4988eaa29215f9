"""Rows of a table of a paper: each number with the authors' method here, ours, and a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rescind.data.catalogue import AUTHORS
from rescind.errors import ConfigError, suggest
from rescind.experiments.cell import DataSettings
from rescind.experiments.recipe import Column
from rescind.experiments.tables import (
    RANKING,
    Entry,
    ResultTable,
    cells_by_name,
    collect,
)
from rescind_papers import verdicts
from rescind_papers.index import Exhibit, Part, Shelf, finding, looked_up, picked

"""Variant of a dataset with the blocks of the authors, for their printed numbers."""
Floors = Mapping[tuple[DataSettings, str], float]
"""Values of predictors without learning, by data and metric."""
BOUND = ("printed HR@20", "printed NDCG@20", "least possible NDCG@20")
ROUNDED = 0.00005
"""Half a unit of the last printed digit."""


@dataclass(frozen=True)
class Row:
    """One number of a table or figure."""

    part: Part
    entry: Entry
    verdict: str
    authors: Entry | None = None
    """The same measure of the method as its authors publish it, run here."""
    reason: tuple[str, str] | None = None
    """The cells (a pattern) that a reason is for, and the reason."""
    bound: tuple[float, float, float] | None = None
    """Printed HR@20 and NDCG@20 that exclude each other, and the least NDCG@20."""
    number: str = ""
    """Identity of the printed number, the same in each table that prints it; "" if derived."""
    quick: str = ""
    """What was made smaller, if it is a quick run."""

    @property
    def ours(self) -> str:
        """Return our number as text. Quick ones are marked."""
        return f"{self.entry.ours()} (quick)" if self.quick else self.entry.ours()


def floors_of(tables: Sequence[ResultTable]) -> Floors:
    """Return the values of predictors without learning."""
    return {
        (cells_by_name(table.recipe)[e.cell].data, e.metric): e.mean
        for table in tables
        for e in table.entries
        if e.cell in table.floors and e.mean is not None
    }


@dataclass
class Judge:
    """Finds the word for each number of one part."""

    exhibit: Exhibit
    shelf: Shelf
    part: Part
    table: ResultTable
    floors: Floors
    _tables: dict[tuple[str, str], dict[str, Entry]] = field(default_factory=dict)

    def row(self, entry: Entry) -> Row:
        """Return the row of a number."""
        place, column = f"{self.part.recipe}: {entry.cell}", self._column(entry)
        entry = self._runs(self.part.recipe, self._with_floor(entry, column), column)
        theirs, bound = self._authors(entry, place, column), self._bound(entry, column)
        word = verdicts.verdict(
            entry,
            authors=() if theirs is None else theirs.values,
            lower=column.path in self.part.lower,
            apart=self._apart(entry, place, column, bound),
        )
        number = "" if self.exhibit.derive else self._number(entry, column)
        if column.path in self.part.unjudged:
            entry, theirs = self._gap(entry, place, column), None
        return Row(self.part, entry, word, theirs, self._reason(word, place), bound, number)

    def _reason(self, word: str, place: str) -> tuple[str, str] | None:
        """Return the cells that a reason is for, and why ours is worse or another quantity."""
        if word not in (verdicts.WORSE, verdicts.BOTH_WORSE, *verdicts.OTHER):
            return None
        found = looked_up(self.exhibit.reasons, place)
        return None if found is None else (found[0].partition(": ")[2], found[1])

    def _column(self, entry: Entry) -> Column:
        known = picked(self.table.recipe, self.part)
        return next((c for c in known if c.name == entry.metric), Column(entry.metric))

    def _data(self, name: str) -> DataSettings | None:
        """Return the data of a cell; for one that is only printed, of cells of the same label."""
        cells = cells_by_name(self.table.recipe)
        if name in cells:
            return cells[name].data
        label = name.split("/", maxsplit=1)[0]
        same = [c.data for c in cells.values() if c.labels.get("data") == label]
        return same[0] if same else None

    def _with_floor(self, entry: Entry, column: Column) -> Entry:
        """Return the entry with the value of a predictor without learning."""
        data = self._data(entry.cell)
        if data is None:
            return entry
        ranked = RANKING.search(column.path) and column.path not in self.part.lower
        if entry.floor is None and ranked and entry.cell not in self.table.floors:
            entry = replace(entry, floor=self.floors.get((data, entry.metric)))
        if ranked and entry.cell not in self.table.floors:
            theirs = replace(data, variant=AUTHORS)
            entry = replace(entry, printed_floor=self.floors.get((theirs, entry.metric)))
        if self.part.floor and column.path == "accuracy":
            # The minimum over leaving clients: the paper does not always say which one leaves.
            largest = finding(self.shelf.folder, self.part.floor)
            least = {row["graph"]: row["when one leaves"] for row in largest}
            if data.name in least:
                return replace(entry, floor=least[data.name], floor_name="the largest class")
        return entry

    def _apart(
        self, entry: Entry, place: str, column: Column, bound: tuple[float, float, float] | None
    ) -> str:
        """Return why the numbers cannot be compared; "" if they can."""
        data = self._data(entry.cell)
        name = entry.cell.split("/", maxsplit=1)[0] if data is None else data.name
        if name in self.exhibit.absent:
            return verdicts.ABSENT
        if column.path in self.part.unjudged:
            return verdicts.UNJUDGED
        found = looked_up(self.exhibit.apart, place)
        if found is not None:
            return f"{verdicts.NOT_COMPARABLE}: {found[1]}"
        return "" if bound is None else verdicts.EXCLUSIVE

    def _bound(self, entry: Entry, column: Column) -> tuple[float, float, float] | None:
        """Return the printed pair and the least NDCG@20, if they exclude each other."""
        printed, data = self.table.recipe.paper.get(entry.cell, {}), self._data(entry.cell)
        if not self.part.bound or data is None or column.path not in printed:
            return None
        here = (data.name, printed.get("HR@20"), printed.get("NDCG@20"))
        for row in finding(self.shelf.folder, self.part.bound):
            hit, ndcg, least = (row[key] for key in BOUND)
            if here == (row["data"], hit, ndcg) and ndcg + ROUNDED < least:
                return hit, ndcg, least
        return None

    # -- the authors' method ----------------------------------------------------------------------

    def _authors(self, entry: Entry, place: str, column: Column) -> Entry | None:
        """Return the number of the method as its authors publish it."""
        found = looked_up(self.exhibit.authors, place) if not self.exhibit.derive else None
        if found is None or entry.paper is None:
            return None
        name, _, cell = found[1].partition(": ")
        known = self._entries(name, column)
        if cell not in known and "*" not in found[0]:
            raise ConfigError(f"{name} has no cell '{cell}'; {suggest(cell, known)}")
        return self._runs(name, known[cell], column) if cell in known else None

    def _entries(self, recipe: str, column: Column) -> dict[str, Entry]:
        if (recipe, column.path) not in self._tables:
            whole = collect(self.shelf.recipe(recipe), [column], self.shelf.newest(recipe))
            self._tables[recipe, column.path] = {e.cell: e for e in whole.entries}
        return self._tables[recipe, column.path]

    def _runs(self, recipe: str, entry: Entry, column: Column) -> Entry:
        """Return the entry with our runs of what the paper ran once, if a line has several."""
        path = self.part.runs.get(column.path)
        if path is None or not entry.values:
            return entry
        newest, _ = self.shelf.newest(recipe)
        mine = [line for (cell, _), line in newest.items() if cell == entry.cell]
        single = tuple(number for line in mine for number in _list_at(line, path))
        return replace(entry, values=single, seeds=()) if single else entry

    # -- attack rates -----------------------------------------------------------------------------

    def _gap(self, entry: Entry, place: str, column: Column) -> Entry:
        """Return the distance of an attack rate to that of a retraining, ours and the paper's.

        Ours is measured for the same leaver, the mean of a seed.
        """
        gap = self._entries(self.part.recipe, replace(column, path=f"{column.path} gap"))
        mine, base = gap[entry.cell], self._retrained(place, column.path)
        paper = None if entry.paper is None or base is None else abs(entry.paper - base)
        return replace(
            entry,
            metric=f"{entry.metric}, distance to a retraining",
            values=tuple(abs(value) for value in mine.values),
            seeds=mine.seeds,
            paper=paper,
        )

    def _retrained(self, place: str, path: str) -> float | None:
        found = looked_up(self.exhibit.retrained, place)
        if found is None:
            return None
        name, _, cell = found[1].partition(": ")
        return self.shelf.recipe(name).paper.get(cell, {}).get(path)

    def _number(self, entry: Entry, column: Column) -> str:
        """Return the identity of a printed number; "" if none is printed."""
        if entry.paper is None:
            return ""
        data, label = self._data(entry.cell), entry.cell.partition("/")[2]
        name, model = entry.cell.partition("/")[0], ""
        cell = cells_by_name(self.table.recipe).get(entry.cell)
        if cell is not None and data is not None:
            label = "/".join(text for axis, text in cell.labels.items() if axis != "data")
            name, model = data.name, type(cell.method.model).__name__
        what = (self.exhibit.paper, name, model, label, column.path, f"{entry.paper:g}")
        return " | ".join(what)


def _list_at(line: Mapping[str, Any], path: str) -> list[float]:
    """Return the list of numbers at a path of a line; empty if there is none."""
    place: Any = line
    for part in path.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    return place if isinstance(place, list) else []
