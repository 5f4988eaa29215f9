"""Where lists go: Parquet, or what another package brings (entry points `rescind.sinks`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rescind.errors import ConfigError, suggest

GROUP = "rescind.sinks"
Tables = Mapping[str, Mapping[str, Any]]
"""Columns by their names, by the names of tables: top-k, and neighbours if a model has them."""
Sink = Callable[[Tables, Path], None]
"""Gets all tables and where they go. It replaces what was there: old lists hold what was erased."""


def to_parquet(tables: Tables, to: Path) -> None:
    """Write a file for each table, each at once."""
    from rescind.experiments.serving import NEAR, write_table

    for name, columns in tables.items():
        write_table(to / f"{name}.parquet", columns)
    if (old := to / NEAR).stem not in tables:
        old.unlink(missing_ok=True)


BUILT_IN: dict[str, Sink] = {"parquet": to_parquet}


def sink_named(name: str) -> Sink:
    """Return a sink by its name."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in points:
        raise ConfigError(f"there is no sink '{name}'. {suggest(name, [*BUILT_IN, *points])}")
    found: Sink = points[name].load()
    return found
