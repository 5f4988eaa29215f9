"""Tables and figures of what updates leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = ("split", "split, then popularity", "split, then least moved", "IMIA")


def rows_of(
    lines: Sequence[Mapping[str, Any]], windows: Sequence[int]
) -> list[tuple[str, str, list[Mapping[str, Any] | None]]]:
    """Return (defence, attack, a line or None per number of rounds), in measured order."""
    out = []
    for defence in dict.fromkeys(line["defence"] for line in lines):
        for attack in SHOWN:
            found = [x for x in lines if (x["defence"], x["attack"]) == (defence, attack)]
            mine = {line["rounds"]: line for line in found}
            if mine:
                out.append((defence, attack, [mine.get(n) for n in windows]))
    return out


def draw(facts: Mapping[str, Any], folder: Path) -> None:
    """Plot the strongest attack on each defence over rounds, a panel per case."""
    from rescind.reporting import charts

    names = list(dict.fromkeys(line["case"] for line in facts["lines"]))
    figure, panels = _panels(len(names))
    for ax, case in zip(panels, names, strict=True):
        mine = [line for line in facts["lines"] if line["case"] == case]
        strongest: dict[tuple[str, int], Mapping[str, Any]] = {}
        for line in sorted(mine, key=lambda x: float(x["found"])):
            strongest[line["defence"], line["rounds"]] = line
        lines = {
            defence: [
                (n, best["found"], (best["high"] - best["low"]) / 2)
                for n in facts["rounds"]
                if (best := strongest.get((defence, n)))
            ]
            for defence in dict.fromkeys(line["defence"] for line in mine)
        }
        charts.sweep(ax, lines, "items found", "rounds averaged")
        for repeated in ax.containers[len(charts.MARKS) :]:  # colours repeat from here
            repeated.lines[0].set_linestyle("--")
            repeated.lines[0].set_markerfacecolor("white")
        ax.axhline(mine[0]["chance"], color=charts.GREY, linestyle="--", linewidth=1.2)
        ax.set_xscale("log")
        ax.set_xticks(facts["rounds"], [str(n) for n in facts["rounds"]])
        ax.minorticks_off()
        ax.set_ylim(0, 1.05)
        ax.set_title(case, fontsize=10)
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    for ending in ("png", "svg"):
        charts.write(figure, folder / f"leak.{ending}")


def _panels(count: int) -> tuple[Any, list[Any]]:
    """Create panels, at most five in a row."""
    from rescind.reporting import charts

    across = min(count, 5)
    down = -(-count // across)
    figure, first = charts.figure(1, width=max(8.0, 3.2 * across), height=2.8 * down + 1.6)
    for ax in first:
        ax.remove()
    panels = [figure.add_subplot(down, across, n + 1) for n in range(count)]
    for ax in panels:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9)
    return figure, panels
