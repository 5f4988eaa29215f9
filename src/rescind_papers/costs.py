"""What it costs to forget one contributor, for each row of the leaderboards.

Learners that subtract are measured by `bench/forgetting.py`. For all others to forget is to learn
again without the contributor, which costs what the row's own run cost (its results); the benchmark
counts the devices that such a run asks.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.core.method import Unlearner
from rescind.experiments.cell import Cell
from rescind.experiments.recipe import Column
from rescind.forgetting.pipeline import subtracts
from rescind_papers.index import finding

NAME = "forgetting"
"""The finding that the benchmark writes."""
MS = Column("seconds.cpu", per=1e-3)
MB = Column("bytes.up + bytes.down", per=1e6)
HEAD = ("forgets one by", "CPU ms", "devices online", "MB moved")
NOT_MEASURED = "not measured (`python bench/forgetting.py` does it)"
Measured = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cost:
    """What it costs to forget one contributor. None: unknown, and `why` says the reason."""

    way: str
    """Such as "subtract" or "retrain"."""
    ms: float | None = None
    """CPU milliseconds of one thread, until the model can be asked again."""
    devices: float | None = None
    mb: float | None = None
    why: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the cells of a table, as HEAD names them."""
        return (self.way, *(number(value) for value in (self.ms, self.devices, self.mb)))


def number(value: float | None) -> str:
    """Return three digits, without an exponent; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def only_subtracts(by: Unlearner) -> bool:
    """Return whether subtraction is all; Blend also trains its second learner again."""
    return subtracts(by) and by.unlearning == "Subtract"


def measured(folder: Path) -> Measured:
    """Return what the benchmark measured, by the digest of a cell's settings."""
    if not (folder / "findings" / f"{NAME}.json").is_file():
        return {}
    return {row["digest"]: row for row in finding(folder, NAME)}


def cost_of(cell: Cell, lines: Sequence[Mapping[str, Any]], known: Measured) -> Cost:
    """Return the cost of a row. lines: its results    known: of `measured`"""
    mine = known.get(cell.digest)
    why = NOT_MEASURED if mine is None else str(mine.get("why", ""))
    row = mine or {}
    if cell.forget is not None or only_subtracts(cell.method):
        way = row.get("way", "subtract")
        return Cost(way, row.get("CPU ms"), row.get("devices"), row.get("MB"), why)
    if cell.data.clients == 1:  # whoever holds all the data has nobody to forget
        return Cost("", why=why)
    return Cost("retrain", _mean(MS, lines), row.get("devices"), _mean(MB, lines), why)


def _mean(column: Column, lines: Sequence[Mapping[str, Any]]) -> float | None:
    found = [v for v in (column.of(line) for line in lines) if isinstance(v, float | int)]
    return statistics.fmean(found) if found else None
