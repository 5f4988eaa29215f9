"""Tables of committed results: ours beside the paper's, mean and spread over seeds."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from rescind.errors import DataError
from rescind.recipe import Recipe


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    cell: str
    metric: str
    values: tuple[float, ...]
    paper: float | None

    @property
    def mean(self) -> float | None:
        """The mean over seeds, never the best."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def ours(self) -> str:
        """As it is printed."""
        if self.mean is None:
            return "not run"
        spread = "" if self.spread is None else f" ± {self.spread:.4f}"
        return f"{self.mean:.4f}{spread}"


@dataclass(frozen=True)
class ResultTable:
    """All numbers of a recipe, and how many result lines belong to older settings."""

    recipe: Recipe
    entries: tuple[Entry, ...]
    stale: int


def lines(recipe: Recipe) -> list[dict[str, Any]]:
    """The result lines of a recipe, oldest first."""
    if not recipe.results.is_file():
        return []
    out = []
    for number, text in enumerate(recipe.results.read_text(encoding="utf-8").splitlines(), 1):
        try:
            out.append(json.loads(text))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{recipe.results}:{number}:{error.colno}: not a line of JSON. "
                f"Remove the line; `rescind run` writes it anew."
            ) from None
    return out


def collect(recipe: Recipe, metrics: tuple[str, ...] = ("HR@20", "NDCG@20")) -> ResultTable:
    """Gather results whose settings are those of the recipe today; the newest of a seed counts."""
    digests = {cell.name: cell.digest for cell in recipe.cells}
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    stale = 0
    for line in lines(recipe):
        if digests.get(line["cell"]) == line["digest"]:
            newest[line["cell"], line["seed"]] = line
        else:
            stale += 1
    entries = []
    for name in recipe.names:
        mine = [line for (cell, _), line in sorted(newest.items()) if cell == name]
        paper = recipe.paper.get(name, {})
        for metric in metrics:
            values = tuple(line["test"][metric] for line in mine if metric in line["test"])
            entries.append(Entry(name, metric, values, paper.get(metric)))
    return ResultTable(recipe, tuple(entries), stale)


def markdown(table: ResultTable) -> str:
    """The table in Markdown: a row per cell, ours and the paper's for each metric."""
    metrics = tuple(dict.fromkeys(e.metric for e in table.entries))
    head = ["cell", "seeds"] + [f"{m} {who}" for m in metrics for who in ("ours", "paper")]
    rows = [head, ["---"] * len(head)]
    for name in table.recipe.names:
        mine = [e for e in table.entries if e.cell == name]
        row = [name, str(max((len(e.values) for e in mine), default=0))]
        for entry in mine:
            row += [entry.ours(), "" if entry.paper is None else f"{entry.paper:.4f}"]
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
