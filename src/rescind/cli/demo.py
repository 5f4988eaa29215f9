"""`rescind demo`: lend, learn, recommend, take back, in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=10, help="Training rounds.")] = 150,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Use the built-in synthetic world.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Also write the picture here.")] = None,
) -> None:
    """Run the main job on ML-100K: people lend films, devices train, one person takes it back.

    Writes run.json, the model and report.html. Without a way to obtain ML-100K it runs on a
    synthetic world and says so.
    """
    from rescind.demo.story import play

    play(out, rounds, seed, synthetic, picture)
