"""`rescind bench`: measure speed as ratios to simple reference code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from rescind.cli.options import Json
from rescind.cli.reproduce import check_installed

if TYPE_CHECKING:
    from rescind_papers.bench.speed import Figure


def command(
    as_json: Json = False,
    quick: Annotated[bool, Option("--quick", help="Measure only rounds and evaluation.")] = False,
) -> None:
    """Time rounds and reference code in turns, and compare every ratio with its bound.

    touch: one gather and one scatter of the rows that a round samples. naive twin: a Python loop
    over clients (32 of them, scaled to all). One thread, CPU time, medians of alternating turns.
    Needs ML-100K and ML-1M (rescind data get NAME).

    Examples: rescind bench --quick; rescind bench --json
    """
    check_installed()
    from rescind_papers.bench.speed import everything

    figures = []
    for figure in everything(quick, lambda text: typer.echo(text, err=True)):
        figures.append(figure)
        if not as_json:
            typer.echo("\n".join(lines(figure)))
    if as_json:
        typer.echo(json.dumps([{**vars(f), "within": f.within} for f in figures], indent=1))


def lines(figure: Figure) -> list[str]:
    """Return a figure with its bound, and a second line with its reference measurements."""
    verdict = "within" if figure.within else "ABOVE" if figure.value > figure.most else "BELOW"
    value = f"{figure.value:.2f}" if figure.value < 100 else f"{figure.value:,.0f}"
    out = [f"{figure.name:52} {value:>8} {figure.unit:9} {verdict:6} ({figure.bound})"]
    if figure.beside:
        beside = [
            f"{name.replace('_', ' ')} {value:{',.2f' if isinstance(value, float) else ','}}"
            for name, value in figure.beside.items()
        ]
        out.append("    " + ", ".join(beside))
    return out
