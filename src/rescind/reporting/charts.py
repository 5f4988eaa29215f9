"""Charts as SVG or PNG: colour-blind safe, legible at half width, no display needed."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.core.files import write_atomically
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: can be distinguished with any kind of colour vision.
BLUE, ORANGE, GREEN, GREY, RED = "#0072B2", "#E69F00", "#009E73", "#777777", "#D55E00"
Style = dict[str, Any]


def figure(
    panels: int, width: float = 4.2, height: float = 3.4, across: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Create panels in the common style: in a row, or `across` of them in each row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = across or panels
    down = math.ceil(panels / across)
    fig = Figure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(fig)
    axes = [fig.add_subplot(down, across, n + 1) for n in range(panels)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10)
    return fig, axes


def curve(
    ax: Axes,
    rounds: Sequence[int],
    values: Sequence[float],
    name: str,
    floor: float | None,
    floor_name: str = "popularity",
) -> None:
    """Plot a metric over rounds, with a baseline to beat."""
    ax.plot(rounds, values, color=BLUE, linewidth=2, marker="o", markersize=3)
    if floor is not None:
        ax.axhline(floor, color=GREY, linestyle="--", linewidth=1.5)
        style: Style = {"textcoords": "offset points", "ha": "right", "color": GREY, "fontsize": 10}
        ax.annotate(floor_name, (rounds[-1], floor), xytext=(0, 5), **style)
    ax.set_xlabel("round", fontsize=11)
    ax.set_ylabel(name, fontsize=11)
    ax.set_ylim(bottom=0)


def bars(ax: Axes, values: Mapping[str, float], name: str, colours: Sequence[str]) -> None:
    """Draw a bar per name, with its value on top."""
    places = range(len(values))
    drawn = ax.bar(places, list(values.values()), color=list(colours), width=0.65)
    ax.bar_label(drawn, fmt="%.3f", fontsize=10, padding=2)
    ax.set_xticks(list(places), list(values), fontsize=10)
    ax.set_ylabel(name, fontsize=11)
    ax.margins(y=0.15)


def bars_across(ax: Axes, values: Mapping[str, tuple[float, float]], name: str) -> None:
    """Draw a horizontal bar per name with its spread, so that long names stay legible.

    values: (mean, spread) by name. The scale is logarithmic if values differ by more than a factor
    of 50 and are not all fractions (at most 1).
    """
    means = [mean for mean, _ in values.values()]
    places = range(len(values))
    ax.barh(places, means, xerr=[s for _, s in values.values()], color=BLUE, height=0.6, capsize=3)
    ax.set_yticks(list(places), list(values), fontsize=10)
    ax.invert_yaxis()
    positive = [mean for mean in means if mean > 0]
    fractions = max(means, default=0.0) <= 1
    log = bool(positive) and not fractions and max(positive) > 50 * min(positive)
    if log:
        ax.set_xscale("log")
    for place, (mean, spread) in enumerate(values.values()):
        end = max(mean, min(positive)) if log else mean  # a log scale has no 0
        text = f"{mean:.3f}" if fractions else f"{mean:,.3g}" if mean < 1e3 else f"{mean:,.0f}"
        ax.annotate(
            text, (end + spread, place), textcoords="offset points", xytext=(5, 0), va="center",
            fontsize=9,
        )  # fmt: skip
    ax.margins(x=0.35)
    if not log:
        ax.set_xlim(left=0)
    ax.set_xlabel(name, fontsize=11)


def bars_beside(
    ax: Axes, values: Mapping[str, tuple[float | None, float, float | None]], name: str
) -> None:
    """Draw our values as horizontal bars with their spread, and the paper's as marks.

    values: (ours or None, spread, paper's or None) by name
    """
    places = range(len(values))
    ours = [mean or 0.0 for mean, _, _ in values.values()]
    spread = [s for _, s, _ in values.values()]
    ax.barh(places, ours, xerr=spread, color=BLUE, height=0.6, capsize=3, label="ours")
    for place, (mean, _, _) in enumerate(values.values()):
        if mean is None:
            ax.annotate("not run", (0, place), textcoords="offset points", xytext=(4, -3),
                        color=GREY, fontsize=8)  # fmt: skip
    marks = [(p, n) for n, (_, _, p) in enumerate(values.values()) if p is not None]
    if marks:
        across, up = zip(*marks, strict=True)
        ax.scatter(across, up, color=ORANGE, marker="D", s=36, zorder=3, label="paper",
                   edgecolors="black", linewidths=0.6)  # fmt: skip
    ax.axvline(0, color=GREY, linewidth=1)
    ax.set_yticks(list(places), list(values), fontsize=9)
    ax.invert_yaxis()
    ax.set_xlabel(name, fontsize=11)


def histograms(
    ax: Axes, values: Mapping[str, Sequence[float]], name: str, colours: Sequence[str]
) -> None:
    """Draw distributions over the same bins, as outlines that stay visible when they overlap."""
    all_values = [v for group in values.values() for v in group]
    low, high = min(all_values), max(all_values)
    bins = [low + (high - low) * n / 24 for n in range(25)] if high > low else 10
    for (label, group), colour in zip(values.items(), colours, strict=True):
        common: Style = {"bins": bins, "color": colour, "density": True}
        ax.hist(group, histtype="stepfilled", alpha=0.35, **common)
        ax.hist(group, histtype="step", linewidth=1.8, label=label, **common)
    ax.set_xlabel(name, fontsize=11)
    ax.set_ylabel("density", fontsize=11)
    ax.legend(fontsize=9, frameon=False)


def intervals(
    ax: Axes,
    values: Mapping[str, tuple[float, float, float]],
    name: str,
    colours: Sequence[str],
    zero: bool = False,
) -> None:
    """Draw a dot per name with its interval; `zero` draws the line of no difference.

    values: (mean, low, high) by name
    """
    for place, (mean, low, high) in enumerate(values.values()):
        around = [[mean - low], [high - mean]]
        ax.errorbar(
            place, mean, around, fmt="o", color=colours[place], capsize=5, linewidth=2, markersize=7
        )
    if zero:
        ax.axhline(0, color=GREY, linestyle="--", linewidth=1.2)
    ax.set_xticks(range(len(values)), list(values), fontsize=10)
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_ylabel(name, fontsize=11)


MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Markers, to distinguish lines without colours."""


def sweep(
    ax: Axes,
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    name: str,
    across: str,
    ticks: Mapping[float, str] | None = None,
) -> None:
    """Draw a line per name over a swept setting, with the spread as error bars.

    lines: (x, mean, spread) by name    ticks: labels at x, if x is not a number itself
    """
    colours = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#000000", GREY)
    for number, (label, points) in enumerate(lines.items()):
        x, mean, spread = zip(*points, strict=True)
        colour, mark = colours[number % len(colours)], MARKS[number % len(MARKS)]
        dashes = ("-", "--", ":")[number // len(colours) % 3]  # colours repeat
        style: Style = {"color": colour, "marker": mark, "linestyle": dashes, "label": label}
        style |= {"linewidth": 1.8, "markersize": 5, "capsize": 3}
        ax.errorbar(x, mean, spread, **style)
    low, high = ax.get_ylim()
    if high - low < 0.005 * abs(high):  # a difference in the fourth digit must not look large
        ax.set_ylim(0.99 * low, 1.01 * high)
    places = sorted({x for points in lines.values() for x, _, _ in points})
    if ticks is not None:
        ax.set_xticks(list(ticks), list(ticks.values()), fontsize=10)
    elif places[0] > 0 and places[-1] >= 20 * places[0]:  # steps are factors
        ax.set_xscale("log")
        ax.set_xticks(places, [f"{x:g}" for x in places], fontsize=10)
        ax.minorticks_off()
    ax.set_xlabel(across, fontsize=11)
    ax.set_ylabel(name, fontsize=11)


def heat(ax: Axes, rows: Sequence[Sequence[float]], name: str) -> None:
    """Draw a triangle of numbers as a heat map: row t was measured after block t."""
    n = len(rows)
    grid = [[*row, *[float("nan")] * (n - len(row))] for row in rows]
    ax.imshow(grid, cmap="cividis", vmin=0)
    top = max((v for row in rows for v in row if not math.isnan(v)), default=0.0)
    for t, row in enumerate(rows):
        for s, value in enumerate(row):
            colour = "black" if value > 0.6 * top else "white"
            text = "" if math.isnan(value) else f"{value:.3f}"
            ax.text(s, t, text, ha="center", va="center", fontsize=10, color=colour)
    ax.set_xticks(range(n), [f"D{t}" for t in range(n)])
    ax.set_yticks(range(n), [f"after D{t}" for t in range(n)])
    ax.set_xlabel(f"{name} on the test items of a block", fontsize=11)


def names_above(fig: Figure, ax: Axes) -> None:
    """Draw the legend of one panel above all panels, where it covers nothing."""
    lines, names = ax.get_legend_handles_labels()
    if len(names) > 1:
        style: Style = {"fontsize": 9, "frameon": False, "handlelength": 3}
        style["ncols"] = min(len(names), 4)  # more do not fit above two panels
        fig.legend(lines, names, loc="outside upper center", **style)


def words_below(fig: Figure, words: str) -> None:
    """Write a note below the figure, for example that it shows a small run."""
    if words:
        fig.supxlabel(words, fontsize=9, color=GREY)


def svg(fig: Figure, about: str = "") -> str:
    """Return the figure as an SVG element for a page; `about` is stored in it as a description."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "rescind", "svg.fonttype": "path"}):
        fig.savefig(out, format="svg", metadata={"Date": None, "Description": about or None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def png(fig: Figure, path: Path, about: str = "") -> None:
    """Write the figure as a PNG file; `about` is stored in it as a description."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = {"Software": None, **({"Description": about} if about else {})}
    fig.savefig(path, format="png", dpi=110, metadata=notes)


def write(fig: Figure, path: Path, about: str = "") -> None:
    """Write the figure as SVG or PNG, by the file extension."""
    if path.suffix == ".png":
        png(fig, path, about)
    elif path.suffix == ".svg":
        write_atomically(
            path, f'<?xml version="1.0" encoding="utf-8"?>\n{svg(fig, about)}'.encode()
        )
    else:
        raise ConfigError(f"a figure must be a .svg or .png file; got '{path}'. Rename it.")
