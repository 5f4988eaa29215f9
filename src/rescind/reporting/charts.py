"""Charts as SVG or PNG: colour-blind safe, legible at half width, no display needed."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rescind.core.files import write_atomically
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, GREY, RED = "#0072B2", "#E69F00", "#009E73", "#777777", "#D55E00"


def figure(panels: int, width: float = 4.2, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A row of panels in the house style."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width * panels, height), layout="constrained")
    FigureCanvasAgg(made)
    axes = [made.add_subplot(1, panels, n + 1) for n in range(panels)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10)
    return made, axes


def curve(
    ax: Axes,
    rounds: Sequence[int],
    values: Sequence[float],
    name: str,
    floor: float | None,
    floor_name: str = "popularity",
) -> None:
    """A measure over rounds, with a floor to be above."""
    ax.plot(rounds, values, color=BLUE, linewidth=2, marker="o", markersize=3)
    if floor is not None:
        ax.axhline(floor, color=GREY, linestyle="--", linewidth=1.5)
        ax.annotate(
            floor_name,
            (rounds[-1], floor),
            textcoords="offset points",
            xytext=(0, 5),
            ha="right",
            color=GREY,
            fontsize=10,
        )
    ax.set_xlabel("round", fontsize=11)
    ax.set_ylabel(name, fontsize=11)
    ax.set_ylim(bottom=0)


def bars(ax: Axes, values: Mapping[str, float], name: str, colours: Sequence[str]) -> None:
    """A bar per name, with its value on top."""
    places = range(len(values))
    made = ax.bar(places, list(values.values()), color=list(colours), width=0.65)
    ax.bar_label(made, fmt="%.3f", fontsize=10, padding=2)
    ax.set_xticks(list(places), list(values), fontsize=10)
    ax.set_ylabel(name, fontsize=11)
    ax.margins(y=0.15)


def bars_across(ax: Axes, values: Mapping[str, tuple[float, float]], name: str) -> None:
    """A lying bar per name with its spread, so that long names stay legible.

    values: (mean, spread) by name. Where they differ by a factor of fifty, lengths are logarithms;
    those of shares, which end at one, never are.
    """
    means = [mean for mean, _ in values.values()]
    places = range(len(values))
    ax.barh(places, means, xerr=[s for _, s in values.values()], color=BLUE, height=0.6, capsize=3)
    ax.set_yticks(list(places), list(values), fontsize=10)
    ax.invert_yaxis()
    above = [mean for mean in means if mean > 0]
    shares = max(means, default=0.0) <= 1
    wide = bool(above) and not shares and max(above) > 50 * min(above)
    if wide:
        ax.set_xscale("log")
    for place, (mean, spread) in enumerate(values.values()):
        end = max(mean, min(above)) if wide else mean  # a logarithm has no place for 0
        text = f"{mean:.3f}" if shares else f"{mean:,.3g}" if mean < 1e3 else f"{mean:,.0f}"
        ax.annotate(
            text, (end + spread, place), textcoords="offset points", xytext=(5, 0), va="center",
            fontsize=9,
        )  # fmt: skip
    ax.margins(x=0.35)
    if not wide:
        ax.set_xlim(left=0)
    ax.set_xlabel(name, fontsize=11)


def bars_beside(
    ax: Axes, values: Mapping[str, tuple[float | None, float, float | None]], name: str
) -> None:
    """Ours as lying bars with their spread, the paper's numbers as marks on them.

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
    """Distributions over the same bins, as outlines that stay visible under each other."""
    every = [v for group in values.values() for v in group]
    low, high = min(every), max(every)
    bins = [low + (high - low) * n / 24 for n in range(25)] if high > low else 10
    for (label, group), colour in zip(values.items(), colours, strict=True):
        ax.hist(group, bins=bins, histtype="stepfilled", alpha=0.35, color=colour, density=True)
        ax.hist(
            group,
            bins=bins,
            histtype="step",
            linewidth=1.8,
            color=colour,
            density=True,
            label=label,
        )
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
    """A dot per name with the ends of its interval; `zero` draws the line of no difference.

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
"""A second way to tell lines apart, where colours are not seen."""


def sweep(
    ax: Axes,
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    name: str,
    across: str,
    ticks: Mapping[float, str] | None = None,
) -> None:
    """A line per name over a swept setting, with the spread as error bars.

    lines: (x, mean, spread) by name    ticks: what to write at x, where x is no number of its own
    """
    colours = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#000000", GREY)
    for number, (label, points) in enumerate(lines.items()):
        x, mean, spread = zip(*points, strict=True)
        ax.errorbar(
            x,
            mean,
            spread,
            color=colours[number % len(colours)],
            marker=MARKS[number % len(MARKS)],
            linestyle=("-", "--", ":")[number // len(colours) % 3],  # where colours begin anew
            linewidth=1.8,
            markersize=5,
            capsize=3,
            label=label,
        )
    low, high = ax.get_ylim()
    if high - low < 0.005 * abs(high):  # a difference in the fourth digit must not look like a hill
        ax.set_ylim(0.99 * low, 1.01 * high)
    places = sorted({x for points in lines.values() for x, _, _ in points})
    if ticks is not None:
        ax.set_xticks(list(ticks), list(ticks.values()), fontsize=10)
    elif places[0] > 0 and places[-1] >= 20 * places[0]:  # steps by factors, not by differences
        ax.set_xscale("log")
        ax.set_xticks(places, [f"{x:g}" for x in places], fontsize=10)
        ax.minorticks_off()
    ax.set_xlabel(across, fontsize=11)
    ax.set_ylabel(name, fontsize=11)


def heat(ax: Axes, rows: Sequence[Sequence[float]], name: str) -> None:
    """A triangle of numbers as a heat map: row t is what was measured after block t."""
    many = len(rows)
    grid = [[*row, *[float("nan")] * (many - len(row))] for row in rows]
    ax.imshow(grid, cmap="cividis", vmin=0)
    top = max((v for row in rows for v in row if not math.isnan(v)), default=0.0)
    for t, row in enumerate(rows):
        for s, value in enumerate(row):
            colour = "black" if value > 0.6 * top else "white"
            text = "" if math.isnan(value) else f"{value:.3f}"
            ax.text(s, t, text, ha="center", va="center", fontsize=10, color=colour)
    ax.set_xticks(range(many), [f"D{n}" for n in range(many)])
    ax.set_yticks(range(many), [f"after D{n}" for n in range(many)])
    ax.set_xlabel(f"{name} on the test items of a block", fontsize=11)


def names_above(made: Figure, ax: Axes) -> None:
    """The names of one panel's lines above all panels, where they hide nothing."""
    lines, names = ax.get_legend_handles_labels()
    if len(names) > 1:
        across = min(len(names), 4)  # more do not fit above two panels
        made.legend(
            lines,
            names,
            loc="outside upper center",
            ncols=across,
            fontsize=9,
            frameon=False,
            handlelength=3,
        )


def words_below(made: Figure, words: str) -> None:
    """What a reader must know of the whole figure, such as that it was made in small."""
    if words:
        made.supxlabel(words, fontsize=9, color=GREY)


def svg(made: Figure) -> str:
    """The figure as an SVG element, to be put into a page."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "rescind", "svg.fonttype": "path"}):
        made.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def png(made: Figure, path: Path, about: str = "") -> None:
    """The figure as a PNG file; `about` is what it says of itself, for whoever checks it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = {"Software": None, **({"Description": about} if about else {})}
    made.savefig(path, format="png", dpi=110, metadata=notes)


def write(made: Figure, path: Path, about: str = "") -> None:
    """The figure as the file its name asks for, SVG or PNG."""
    if path.suffix == ".png":
        png(made, path, about)
    elif path.suffix == ".svg":
        write_atomically(path, f'<?xml version="1.0" encoding="utf-8"?>\n{svg(made)}'.encode())
    else:
        raise ConfigError(f"a figure is written as .svg or .png; got '{path}'. Change the ending.")
