"""`rescind export`: lists of users and neighbours of items, as Parquet for serving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from rescind.cli.options import Run
from rescind.core.words import count_of


def command(
    run: Run,
    out: Annotated[Path, Option(help="The folder to write into.")],
    k: Annotated[int, Option("-k", "--k", min=1, help="Items in each list.")] = 20,
) -> None:
    """Write top-k.parquet (user, rank, item) and neighbours.parquet (item, rank, neighbour).

    Items that a user has are left out. A user without data gets the most popular items. After
    forgetting, export again: the old files still hold what was forgotten.

    Example: rescind export runs/demo --out serving -k 50
    """
    from rescind.cli.progress import working
    from rescind.errors import ConfigError
    from rescind.experiments.serving import NEAR, TOP, export
    from rescind.storage.federations import load_federation
    from rescind.storage.run_folder import model_in

    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out is the folder to write into; {out} is a file. Name a folder.")
    folder = model_in(run)
    with working(f"lists of {run}"):
        done = export(load_federation(folder), out, k)
    typer.echo(f"Written: {out / TOP}, lists of {count_of(done.users, 'user')}")
    if done.items:
        typer.echo(f"Written: {out / NEAR}, neighbours of {count_of(done.items, 'item')}")
    else:
        typer.echo("This model has no weights between items, so no neighbours were written.")
