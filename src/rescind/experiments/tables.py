"""Tables of committed results: ours beside the paper's, mean and spread over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescind.errors import DataError
from rescind.experiments.recipe import COLUMNS, Cell, Column, Recipe
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.popularity import Popularity

Newest = dict[tuple[str, int], dict[str, Any]]
"""Result lines by cell and seed."""


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    cell: str
    metric: str
    values: tuple[float, ...]
    paper: float | None
    seeds: tuple[int, ...] = ()
    """Whose values they are, in order."""
    floor: float | None = None
    """What a predictor without learning reaches on the same data; None where it was not run."""
    floor_name: str = "popularity"
    """Which: item popularity, or the largest class."""
    words: tuple[str, ...] = ()
    """What stands there instead of numbers, such as verdicts; one for each seed."""
    digits: int = 4
    ran: bool = False
    """Whether the cell has results at all; then what it lacks does not apply to it."""

    @property
    def mean(self) -> float | None:
        """The mean over seeds, never the best."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def paper_below_floor(self) -> bool:
        """The paper's number is one that no learning exceeds."""
        return self.paper is not None and self.floor is not None and self.paper < self.floor

    @property
    def ours_below_floor(self) -> bool:
        """Our number is one that no learning exceeds."""
        return self.mean is not None and self.floor is not None and self.mean < self.floor

    def ours(self) -> str:
        """As it is printed."""
        if self.mean is None:
            return _counted(self.words) if self.words else "" if self.ran else "not run"
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.mean:,.{self.digits}f}{spread}{self._below if self.ours_below_floor else ''}"

    def published(self) -> str:
        """The paper's number as it is printed."""
        if self.paper is None:
            return ""
        return f"{self.paper:,.{self.digits}f}{self._below if self.paper_below_floor else ''}"

    @property
    def _below(self) -> str:
        return f" (below {self.floor_name})"


def _counted(words: tuple[str, ...]) -> str:
    """Words of several seeds: one word where they agree, else each with how often."""
    told = {word: words.count(word) for word in words}
    return words[0] if len(told) == 1 else ", ".join(f"{word} {n}" for word, n in told.items())


@dataclass(frozen=True)
class ResultTable:
    """All numbers of a recipe, and how many result lines belong to older settings."""

    recipe: Recipe
    entries: tuple[Entry, ...]
    stale: int
    controls: tuple[str, ...] = field(default=())
    """Cells in which nothing is trained round by round: what a method has to beat."""
    floors: tuple[str, ...] = field(default=())
    """Of these, the cells of item popularity."""


def lines(recipe: Recipe) -> list[dict[str, Any]]:
    """The result lines of a recipe, oldest first; before them, those of others that count, too.

    A line belongs to the cell of its settings, whatever that was called when it was made.
    """
    cells = cells_by_name(recipe)
    names = {cell.digest: name for name, cell in cells.items()}
    others = [line for path in recipe.also for line in _lines(path) if line["digest"] in names]
    found = []
    for line in (*others, *_lines(recipe.results)):
        name = line["cell"]
        if name not in cells or cells[name].digest != line["digest"]:
            name = names.get(line["digest"], name)
        found.append({**line, "cell": name})
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    out = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            out.append(json.loads(text))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}:{error.colno}: not a line of JSON. "
                f"Remove the line; `rescind run --record` adds it again."
            ) from None
    return out


def cells_by_name(recipe: Recipe) -> dict[str, Cell]:
    """One cell of each name, whatever its seed."""
    return {cell.name: cell for cell in reversed(recipe.cells)}


def newest_lines(recipe: Recipe) -> tuple[Newest, int]:
    """The newest line of each cell and seed whose settings are those of today; how many are not."""
    cells = cells_by_name(recipe)
    newest: Newest = {}
    stale = 0
    for line in lines(recipe):
        if line["cell"] in cells and cells[line["cell"]].made(line):
            newest[line["cell"], line["seed"]] = line
        else:
            stale += 1
    return newest, stale


def collect(recipe: Recipe, columns: Sequence[Column] | None = None) -> ResultTable:
    """Gather results whose settings are those of the recipe today; the newest of a seed counts.

    columns: what is shown; what the recipe says, or HR@20 and NDCG@20, if left out
    """
    cells = cells_by_name(recipe)
    newest, stale = newest_lines(recipe)
    floors = [n for n in recipe.names if isinstance(cells[n].method, Popularity)]
    shown = columns or recipe.columns or COLUMNS
    entries = []
    for name in recipe.names:
        same = [n for n in floors if n != name and cells[n].data == cells[name].data]
        for column in shown:
            found = _values(newest, name, column)
            numbers = {s: v for s, v in found.items() if not isinstance(v, str)}
            floor = _floor(newest, same[0], column) if same else None
            paper = recipe.paper.get(name, {}).get(column.path)
            words = tuple(v for v in found.values() if isinstance(v, str))
            entries.append(
                Entry(
                    name, column.name, tuple(numbers.values()), paper, tuple(numbers), floor,
                    words=words, digits=column.digits,
                    ran=any(cell == name for cell, _ in newest),
                )
            )  # fmt: skip
    # The additive learner draws nothing either, but it is what is measured, not a control.
    seedless = [n for n in recipe.names if cells[n].method.seedless]
    controls = tuple(n for n in seedless if not isinstance(cells[n].method, Gram))
    return ResultTable(recipe, tuple(entries), stale, controls, tuple(floors))


def _values(newest: Newest, name: str, column: Column) -> dict[int, float | str]:
    """By seed."""
    mine = {seed: column.of(line) for (cell, seed), line in sorted(newest.items()) if cell == name}
    return {seed: value for seed, value in mine.items() if value is not None}


def _floor(newest: Newest, name: str, column: Column) -> float | None:
    """What popularity reaches in a measure of quality; its seconds are no floor."""
    mine = [line["test"] for (cell, _), line in newest.items() if cell == name]
    values = [test[column.path] for test in mine if column.path in test]
    return statistics.fmean(values) if values else None


def markdown(table: ResultTable) -> str:
    """The table in Markdown: a row per cell, ours and the paper's for each metric.

    Where the recipe says which columns it wants, those without a published number have no "paper".
    """
    metrics = tuple(dict.fromkeys(e.metric for e in table.entries))
    printed = {e.metric for e in table.entries if e.paper is not None or not table.recipe.columns}
    head = ["cell", "seeds"]
    for metric in metrics:
        head += [f"{metric} ours", f"{metric} paper"] if metric in printed else [metric]
    rows = [head]
    for name in table.recipe.names:
        mine = [e for e in table.entries if e.cell == name]
        row = [name, str(max((len(e.values or e.words) for e in mine), default=0))]
        for entry in mine:
            row += [entry.ours(), entry.published()] if entry.metric in printed else [entry.ours()]
        rows.append(row)
    return rows_as_markdown(rows)


def remarks(table: ResultTable) -> list[str]:
    """What a reader of the table should know: its controls, and what was left out."""
    said = []
    if table.controls:
        names = ", ".join(f"'{n}'" for n in table.controls)
        said.append(f"Controls, in which nothing is trained round by round: {names}.")
    cells = cells_by_name(table.recipe)
    ranked = {n for n, c in cells.items() if c.method.model.task != "nodes"}  # nodes have no items
    papers = [e for e in table.entries if e.paper is not None and e.cell in ranked]
    below = sum(e.paper_below_floor for e in papers)
    unknown = sum(e.floor is None for e in papers)
    if below:
        said.append(
            f"{below} of the paper's {len(papers)} numbers lie below item popularity as measured "
            f"here on the same data."
        )
    if unknown:
        said.append(
            f"{unknown} of the paper's {len(papers)} numbers are not held against item popularity: "
            f"no cell of this recipe has its result on the same data."
        )
    if table.stale:
        said.append(f"{table.stale} older result lines belong to other settings and are left out.")
    return said


def rows_as_markdown(rows: list[list[str]]) -> str:
    """The first row is the head."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
