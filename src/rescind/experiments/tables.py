"""Tables of recorded results: ours and the paper's, mean and spread over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescind.data.catalogue import AUTHORS, ENTRIES
from rescind.experiments.cell import AT_K, DataSettings
from rescind.experiments.recipe import Cell, Column, Recipe
from rescind.experiments.results import ALONE, read_lines
from rescind.experiments.verdicts import VERDICT, Failed, counted, failed_checks, not_as_claimed

Newest = dict[tuple[str, int], dict[str, Any]]
"""Result lines by cell and seed."""
RANKING = re.compile(rf"^(?:{'|'.join(AT_K)})@\d+$")
"""Paths of columns for which item popularity is a lower bound worth marking.

Not of diagnostics, such as what is left of an old block for some of the users.
"""


MOST_NAMED = 6
"""Runs that a remark names."""

POPULARITY = "Popularity"
"""The class of item popularity; its code is not needed here."""


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    cell: str
    metric: str
    values: tuple[float, ...]
    paper: float | None
    seeds: tuple[int, ...] = ()
    """Seeds of the values, in order."""
    floor: float | None = None
    """Value of a predictor without learning on the same data; None if it was not run."""
    printed_floor: float | None = None
    """The same on the data of the paper's number, where that is other data than ours."""
    floor_name: str = "popularity"
    """Name of that predictor: item popularity, or the largest class."""
    words: tuple[str, ...] = ()
    """Words instead of numbers, such as verdicts; one per seed."""
    digits: int = 4
    ran: bool = False
    """Whether the cell has results. If so, a missing value does not apply to it."""
    data: tuple[str, ...] = ()
    """Digests of the rows that the values are of, in order; '' if a line states none."""

    @property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds, self.values, strict=True))

    @property
    def data_by_seed(self) -> dict[int, str]:
        return dict(zip(self.seeds, self.data, strict=True)) if self.data else {}

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def paper_below_floor(self) -> bool:
        """Return whether a predictor without learning exceeds the paper's number."""
        floor = self.floor if self.printed_floor is None else self.printed_floor
        return self.paper is not None and floor is not None and self.paper < floor

    @property
    def ours_below_floor(self) -> bool:
        """Return whether a predictor without learning exceeds our number."""
        return self.mean is not None and self.floor is not None and self.mean < self.floor

    def ours(self) -> str:
        if self.mean is None:
            return counted(self.words) if self.words else "" if self.ran else "not run"
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.mean:,.{self.digits}f}{spread}{self._below if self.ours_below_floor else ''}"

    def published(self) -> str:
        if self.paper is None:
            return ""
        return f"{self.paper:,.{self.digits}f}{self._below if self.paper_below_floor else ''}"

    @property
    def _below(self) -> str:
        return f" (below {self.floor_name})"


@dataclass(frozen=True)
class ResultTable:
    """All numbers of a recipe, and the result lines of other settings or code."""

    recipe: Recipe
    entries: tuple[Entry, ...]
    stale: tuple[str, ...]
    """The cell and seed of each."""
    controls: tuple[str, ...] = ()
    """Cells without training rounds, which a method has to beat."""
    floors: tuple[str, ...] = ()
    """The controls that are item popularity."""
    mixed: tuple[str, ...] = ()
    """A sentence for each dataset whose rows differ between the results."""
    used: Mapping[str, str] = field(default_factory=dict)
    """By cell, the method that was used where it was chosen when the data was known."""
    failed: Mapping[str, Failed] = field(default_factory=dict)
    """By cell, the checks that failed, where nobody spelled the columns out in the recipe."""
    not_as_claimed: tuple[str, ...] = ()
    """A sentence for each cell that claims to forget exactly and does not."""


def lines(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the result lines of a recipe, oldest first, after those of `also` that count.

    A line belongs to the cell with its settings, even if that cell had another name then.
    """
    digests = {name: cell.digest for name, cell in cells_by_name(recipe).items()}
    names = {digest: name for name, digest in digests.items()}
    others = [line for path in recipe.also for line in read_lines(path) if line["digest"] in names]
    found = []
    for line in (*others, *read_lines(recipe.results)):
        name = line["cell"]
        if digests.get(name) != line["digest"]:
            name = names.get(line["digest"], name)
        found.append({**line, "cell": name})
    return found


def cells_by_name(recipe: Recipe) -> dict[str, Cell]:
    """Return one cell of each name, of any seed."""
    return {cell.name: cell for cell in reversed(recipe.cells)}


def newest_lines(recipe: Recipe) -> tuple[Newest, tuple[str, ...]]:
    """Return the newest line of each cell and seed, and the names of those that do not count.

    These are of older settings, or of another text of a user's own method.
    """
    cells, newest, stale = cells_by_name(recipe), Newest(), Newest()
    for line in lines(recipe):
        cell = cells.get(line["cell"])
        current = cell is not None and cell.made(line) and cell.same_code(line)
        (newest if current else stale)[line["cell"], line["seed"]] = line
    return newest, tuple(
        f"{name} seed {seed}" for name, seed in sorted(stale.keys() - newest.keys())
    )


def collect(
    recipe: Recipe,
    columns: Sequence[Column] | None = None,
    known: tuple[Newest, tuple[str, ...]] | None = None,
) -> ResultTable:
    """Collect results of the recipe's current settings; the newest of each seed counts.

    columns: Default: those of the recipe, or what its cells measure and audits judged
    known: what `newest_lines` returned, if they were read before
    """
    cells = cells_by_name(recipe)
    newest, stale = known or newest_lines(recipe)
    floors = [n for n in recipe.names if type(cells[n].method).__name__ == POPULARITY]
    shown = columns or recipe.shown
    if not columns and recipe.columns is None and any(map(VERDICT.of, newest.values())):
        shown = (*shown, VERDICT)
    entries = []
    for name in recipe.names:
        same = [n for n in floors if n != name and cells[n].data == cells[name].data]
        entries += [_entry(recipe, newest, cells[name], column, same) for column in shown]
    # The additive learner has no random numbers either, but it is not a control.
    seedless = [n for n in recipe.names if cells[n].method.seedless]
    controls = tuple(n for n in seedless if cells[n].method.control)
    mixed = (*answered_alone(newest), *mixed_data(newest, cells))
    failed = {} if shown is recipe.columns else failed_checks(newest, shown)
    return ResultTable(
        recipe, tuple(entries), stale, controls, tuple(floors), mixed, _used(newest), failed,
        not_as_claimed(newest),
    )  # fmt: skip


def _entry(
    recipe: Recipe, newest: Newest, cell: Cell, column: Column, floors: Sequence[str]
) -> Entry:
    """Return what the lines of one cell have in a column. floors: popularity on the same data"""
    name, mine = cell.name, _values(newest, cell.name, column)
    numbers = {s: v for s, v in mine.items() if not isinstance(v, str)}
    return Entry(
        name,
        column.name,
        tuple(numbers.values()),
        recipe.paper.get(name, {}).get(column.path),
        tuple(numbers),
        floor=_floor(newest, floors[0], column) if floors else None,
        printed_floor=_floor_of_print(cell),
        words=tuple(v for v in mine.values() if isinstance(v, str)),
        digits=column.digits,
        ran=any(cell == name for cell, _ in newest),
        data=tuple(_rows_of(newest[name, seed]) for seed in numbers),
    )


def _used(newest: Newest) -> dict[str, str]:
    """Return the methods that lines name beside their settings, by cell."""
    found: dict[str, dict[str, None]] = {}
    for (name, _), line in sorted(newest.items()):
        if "method" in line:
            found.setdefault(name, {})[str(line["method"])] = None
    return {name: ", ".join(methods) for name, methods in found.items()}


def _named(runs: Sequence[str]) -> str:
    return ", ".join(runs[:MOST_NAMED]) + (", ..." if len(runs) > MOST_NAMED else "")


def mixed_data(newest: Newest, cells: Mapping[str, Cell]) -> tuple[str, ...]:
    """Tell which results are of other rows than most results with the same settings of data.

    Rows may have been erased, added or imported again between two runs; a mean over such seeds is
    of no dataset.
    """
    digests: dict[DataSettings, dict[str, list[str]]] = {}
    for (name, seed), line in sorted(newest.items()):
        if "data" in line and not line.get(ALONE):  # lines of the first versions have no data
            of = digests.setdefault(cells[name].data, {})
            of.setdefault(line["data"], []).append(f"{name} seed {seed}")
    said = []
    for data, found in digests.items():
        most = max(found, key=lambda digest: len(found[digest]))
        others = [who for digest, runs in found.items() if digest != most for who in runs]
        if others:
            said.append(
                f"MIXED DATA: rows of '{data.name}' were erased, added or imported again. Do not "
                f"compare {_named(others)} with the rest; run all of them again with --record."
            )
    return tuple(said)


def answered_alone(newest: Newest) -> tuple[str, ...]:
    """Tell which results are of a run that answered a request by itself."""
    alone = sorted(key for key, line in newest.items() if line.get(ALONE))
    if not alone:
        return ()
    return (
        f"MIXED DATA: a request was answered in {_named([f'{c} seed {s}' for c, s in alone])} "
        f"alone, so those records are out of it at every run. Do not compare; to undo a trial, "
        f"delete its folder and run it again.",
    )


def _rows_of(line: Mapping[str, Any]) -> str:
    """Return what tells the rows of a result from others; loans that were taken back count."""
    return f"{line.get('data', '')}{' less what was taken back' * bool(line.get(ALONE))}"


def _values(newest: Newest, name: str, column: Column) -> dict[int, float | str]:
    mine = {seed: column.of(line) for (cell, seed), line in sorted(newest.items()) if cell == name}
    return {seed: value for seed, value in mine.items() if value is not None}


def _floor_of_print(cell: Cell) -> float | None:
    """Return no bound if the authors' data is another variant: it was measured on ours."""
    known = ENTRIES.get(cell.data.name)
    other = known is not None and AUTHORS in known.variants and cell.data.variant != AUTHORS
    return -math.inf if other else None


def _floor(newest: Newest, name: str, column: Column) -> float | None:
    """Return what popularity reaches in a ranking metric; None for every other column."""
    if not RANKING.search(column.path):
        return None
    mine = [line["test"] for (cell, _), line in newest.items() if cell == name]
    values = [test[column.path] for test in mine if column.path in test]
    return statistics.fmean(values) if values else None


def remarks(table: ResultTable) -> list[str]:
    """Return notes on the table: its controls, and what was left out."""
    said = [*table.mixed]
    said += [table.failed[n].told(n) for n in table.recipe.names if n in table.failed]
    said += table.not_as_claimed
    if table.controls:
        names = ", ".join(f"'{n}'" for n in table.controls)
        said.append(f"Controls, in which nothing is trained round by round: {names}.")
    cells = cells_by_name(table.recipe)
    ranked = {n for n, c in cells.items() if c.method.model.task != "nodes"}  # nodes have no items
    papers = [e for e in table.entries if e.paper is not None and e.cell in ranked]
    below = sum(e.paper_below_floor for e in papers)
    unknown = sum(e.floor is None for e in papers)
    if below or unknown:
        said.append(
            f"Of the paper's {len(papers)} numbers, {below} lie below item popularity as measured "
            f"here on the same data, and {unknown} are not held against it."
        )
    if table.stale:
        said.append(
            f"Results of other settings or code are left out ({_named(table.stale)}). Run them "
            f"again: rescind run {table.recipe.path} --resume --record"
        )
    return said


def without_values(table: ResultTable) -> str:
    """Return what the results have instead, if they have nothing of the columns; '' otherwise."""
    if not any(e.ran for e in table.entries) or any(e.values or e.words for e in table.entries):
        return ""
    asked = ", ".join(dict.fromkeys(e.metric for e in table.entries))
    newest, _ = newest_lines(table.recipe)
    return (
        f"The results have nothing of {asked}. Give --metric with what they have: "
        f"{', '.join(dict.fromkeys(name for line in newest.values() for name in line['test']))}."
    )
