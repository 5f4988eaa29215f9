"""`rescind tune`: choose the settings of a method on validation data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rescind.cli.options import Json
from rescind.cli.progress import Steps
from rescind.cli.stopping import interruptible


def command(
    data: Annotated[str, Argument(help="A dataset: a name from `rescind data list`.")],
    method: Annotated[
        str, Option(metavar="NAME|FILE.py", help="A method that trains in rounds.")
    ] = "FedShare",
    rounds: Annotated[int, Option(min=3, help="Rounds of the best candidates.")] = 100,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The recipe to write. Default: tuned-DATA.toml.")
    ] = None,
    change: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose learning rate and clients per round on validation data, and write a recipe.

    Twelve settings begin, scaled to the number of users; after a tenth of the rounds four go on,
    and two of them to the end. Each counts by its best round, as in a run of the recipe. The test
    part of the data is not read.

    Example: rescind tune ml-100k --rounds 60
    """
    from dataclasses import replace

    from rescind.errors import ConfigError
    from rescind.experiments.advice import recipe_for
    from rescind.experiments.cell import SharingSettings
    from rescind.experiments.tuning import ranked, recipe_text, tune

    target = out or Path(f"tuned-{data}.toml")
    if target.exists():
        raise ConfigError(f"{target} exists. Delete it, or name another file with --out.")
    (cell,) = recipe_for(data, method, [f"run.rounds={rounds}", *(change or ())]).cells
    cell = replace(cell, sharing=cell.sharing or SharingSettings())
    again = "To begin again, give the same command."
    with (
        interruptible("Nothing was written.", again),
        Steps(f"tuning {method} on {data}", "rounds") as steps,
    ):
        found = tune(cell, steps)
    target.write_text(recipe_text(cell, found), encoding="utf-8")
    rows = [
        {
            **one.settings,
            "rounds": one.rounds,
            "best_round": one.best_round,
            f"valid {found.measure}": one.value,
        }
        for one in ranked(found)
    ]
    if as_json:
        typer.echo(json.dumps({"best": rows[0], "popularity": found.popularity, "all": rows}))
        return
    typer.echo(f"{'rate':>8}  {'clients':>8}  {'rounds':>6}  {'best at':>7}  valid {found.measure}")
    for one in ranked(found):
        rate, clients = one.settings.values()
        reached = f"{one.rounds:6d}  {one.best_round:7d}  {one.value:.4f}"
        typer.echo(f"{rate:8.3g}  {clients:8,}  {reached}")
    typer.echo(f"item popularity: {found.popularity:.4f}")
    if found.best.best_round == rounds:
        typer.echo(f"The best was still growing at round {rounds}: try --rounds {3 * rounds}.")
    if found.best.value <= found.popularity:
        typer.echo("No setting lies above popularity. The recipe also has learners without rounds.")
    typer.echo(f"\nWritten: {target}\nNext: rescind run {target} --record")
