"""`rescind bench`: speed as ratios measured side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rescind_papers.bench.speed import Figure


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the rounds and the evaluation.")
    ] = False,
) -> None:
    """Time rounds beside their yardsticks, and hold every figure against its bound.

    touch: one gather and one scatter of the rows a round samples. naive twin: a Python loop over
    clients (32 of them, scaled to all). One thread, CPU time, medians of turns taken in
    alternation. Needs ML-100K and ML-1M (rescind data get NAME).
    """
    from rescind.cli.reproduce import check_installed

    check_installed()
    from rescind_papers.bench.speed import everything

    figures = []
    for figure in everything(quick, lambda text: typer.echo(text, err=True)):
        figures.append(figure)
        if not as_json:
            for line in lines(figure):
                typer.echo(line)
    if as_json:
        known = [{**vars(f), "within": f.within} for f in figures]
        typer.echo(json.dumps(known, indent=1))


def lines(figure: Figure) -> list[str]:
    """A figure against its bound, and below it what was measured beside it."""
    verdict = "within" if figure.within else "ABOVE" if figure.value > figure.most else "BELOW"
    value = f"{figure.value:.2f}" if figure.value < 100 else f"{figure.value:,.0f}"
    said = [f"{figure.name:52} {value:>8} {figure.unit:9} {verdict:6} ({figure.bound})"]
    if figure.beside:
        beside = (
            f"{name.replace('_', ' ')} {value:,.2f}" if isinstance(value, float) else
            f"{name.replace('_', ' ')} {value:,}"
            for name, value in figure.beside.items()
        )  # fmt: skip
        said.append("    " + ", ".join(beside))
    return said
