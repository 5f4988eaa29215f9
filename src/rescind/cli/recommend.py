"""`rescind recommend`: recommend items to a user with a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def command(
    run: Annotated[Path, Argument(help="The folder of a finished run, e.g. runs/demo.")],
    user: Annotated[str, Option(help="The user's original id.")],
    k: Annotated[int, Option("-k", min=1, help="Number of items.")] = 20,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend items to a user, with original ids and titles.

    A user without data gets the most popular items, and the output says it.
    """
    from rescind.storage.run_folder import model_in

    folder = model_in(run)
    from rescind.storage.federations import load_federation

    fed = load_federation(folder)
    found = fed.recommend(user, k)
    if as_json:
        typer.echo(json.dumps({"user": user, "items": [vars(r) for r in found]}))
        return
    why = (
        "from popularity: this user has no data"
        if found and (found[0].because == "popularity")
        else f"from {type(fed.method).__name__}"
    )
    typer.echo(f"{len(found)} recommendations for user {user}, {why}")
    for place, item in enumerate(found, 1):
        typer.echo(f"{place:4d}  {item.item:>8}  {item.score:8.4f}  {item.title}")
