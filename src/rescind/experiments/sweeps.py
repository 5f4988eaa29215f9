"""Figures of recipes that sweep one setting: the setting on x, metrics on y, a line per rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescind.errors import ConfigError, DataError, suggest
from rescind.experiments.recipe import Cell
from rescind.experiments.tables import ResultTable, cells_by_name, without_values
from rescind.reporting import charts

Point = tuple[float, float, float]
"""x, mean over seeds, standard deviation over seeds."""


@dataclass(frozen=True)
class Sweep:
    """Lines of one metric over the swept setting."""

    metric: str
    lines: Mapping[str, tuple[Point, ...]]
    ticks: Mapping[float, str] | None
    """Label of each x, if the setting is not a single number."""


def sweeps(table: ResultTable) -> tuple[Sweep, ...]:
    """Return the lines of every metric. Cells without a result are left out."""
    recipe, plot = table.recipe, table.recipe.plot
    if plot is None:
        raise ConfigError(
            f'{recipe.path} does not name the swept setting: [plot] x = "method.rate".'
        )
    cells = cells_by_name(recipe)
    swept = {name: setting(cells[name], plot.x) for name in recipe.names}
    if nothing := without_values(table):
        raise DataError(nothing)
    if not any(entry.values for entry in table.entries):
        hint = f"Next: rescind run {recipe.path} --record"
        raise DataError(f"{recipe.results} has no results to draw. {hint}")
    places, ticks = _places(list(swept.values()))
    others = [a for a in _varying(cells) if a != _axis(plot.x, cells)]
    out = []
    in_words = {e.metric for e in table.entries if e.words and not e.values}  # verdicts
    for metric in dict.fromkeys(e.metric for e in table.entries if e.metric not in in_words):
        found: dict[str, list[Point]] = {}
        for e in table.entries:
            if e.metric == metric and e.mean is not None:
                line = "/".join(cells[e.cell].labels[a] for a in others)
                x = places[_text(swept[e.cell])]
                found.setdefault(line, []).append((x, e.mean, e.spread or 0.0))
        lines = {name: tuple(sorted(points)) for name, points in found.items()}
        out.append(Sweep(metric, lines, ticks))
    return tuple(out)


def setting(cell: Cell, path: str) -> Any:
    """Return the value of a setting such as "method.contrast" in a cell."""
    place: Any = cell.configuration
    for part in path.split("."):
        if not isinstance(place, Mapping) or part not in place:
            known = place if isinstance(place, Mapping) else ()
            raise ConfigError(f"cell '{cell.name}' has no setting '{path}'; {suggest(part, known)}")
        place = place[part]
    return place


def draw(table: ResultTable, path: Path, about: str = "", below: str = "") -> None:
    """Write the figure, with a panel per metric.

    about: a note stored in a PNG    below: text under the figure
    """
    found, plot = sweeps(table), table.recipe.plot
    assert plot is not None  # sweeps() raised an error otherwise
    if plot.bars:
        made = _bars(table)
    else:
        made, axes = charts.figure(len(found))
        for ax, one in zip(axes, found, strict=True):
            charts.sweep(ax, one.lines, one.metric, plot.across or plot.x, one.ticks)
        charts.names_above(made, axes[0])
    charts.words_below(made, below)
    charts.write(made, path, about)


def _bars(table: ResultTable) -> Any:
    metrics = list(dict.fromkeys(e.metric for e in table.entries if e.values))
    made, axes = charts.figure(len(metrics))
    cells = cells_by_name(table.recipe)
    axes_shown = _varying({name: cells[name] for name in table.recipe.names})
    for ax, metric in zip(axes, metrics, strict=True):
        mine = [e for e in table.entries if e.metric == metric]
        labels = {e.cell: "/".join(cells[e.cell].labels[a] for a in axes_shown) for e in mine}
        found = {labels[e.cell]: (e.mean, e.spread or 0.0) for e in mine if e.mean is not None}
        charts.bars_across(ax, found, metric)
    return made


def _places(values: list[Any]) -> tuple[dict[str, float], dict[float, str] | None]:
    """Return the x of each value: the value itself if all are numbers, else its index."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return {_text(v): float(v) for v in values}, None
    places = {text: float(n) for n, text in enumerate(dict.fromkeys(map(_text, values)))}
    return places, {n: text for text, n in places.items()}


def _text(value: Any) -> str:
    return ":".join(map(str, value)) if isinstance(value, list) else str(value)


def _varying(cells: Mapping[str, Cell]) -> list[str]:
    """Return the axes along which the cells have more than one label."""
    first = next(iter(cells.values())).labels
    return [a for a in first if len({cell.labels[a] for cell in cells.values()}) > 1]


def _axis(path: str, cells: Mapping[str, Cell]) -> str:
    known = next(iter(cells.values())).labels
    if path.startswith("method.model.") and "model" in known:
        return "model"
    first = path.split(".", maxsplit=1)[0]
    return "forget" if first in ("unlearner", "learner") else first
