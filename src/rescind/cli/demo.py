"""`rescind demo`: lend, learn, recommend and forget in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option


def command(
    out: Annotated[Path, Option(help="Output folder.")] = Path("runs/demo"),
    rounds: Annotated[int, Option(min=10, help="Training rounds.")] = 150,
    seed: Annotated[int, Option(help="Random seed.")] = 0,
    synthetic: Annotated[bool, Option("--synthetic", help="Use built-in synthetic data.")] = False,
    picture: Annotated[Path | None, Option(help="Also write the picture to this file.")] = None,
) -> None:
    """Run the main job on ML-100K: users lend films, devices train, some unshare or erase them.

    Writes run.json, the model and report.html. If ML-100K cannot be obtained, synthetic data is
    used and the output says it.

    Examples: rescind demo; rescind demo --synthetic --out runs/small
    """
    from rescind.demo.story import play

    play(out, rounds, seed, synthetic, picture)
