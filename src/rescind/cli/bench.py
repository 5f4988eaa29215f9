"""`rescind bench`: speed as ratios measured side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Time a round beside its yardstick (one gather and one scatter of the rows it samples).

    One thread, CPU time, median of several. Needs ML-100K and ML-1M (rescind data get NAME).
    """
    from rescind.bench import readable

    figures = readable(lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps([{**vars(f), "ratio": f.ratio} for f in figures]))
        return
    typer.echo("the readable form (client_train), one thread, CPU ms")
    typer.echo(f"{'round':40} {'clients':>8} {'rows':>9} {'touch':>8} {'round':>8} {'ratio':>7}")
    for f in figures:
        verdict = "within" if f.ratio <= f.bound else "ABOVE"
        typer.echo(
            f"{f.name:40} {f.clients:8d} {f.rows:9d} {f.touch_ms:8.2f} {f.round_ms:8.2f} "
            f"{f.ratio:6.1f}x  {verdict} {f.bound:g}x"
        )
