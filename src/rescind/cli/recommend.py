"""`rescind recommend`: recommend items to a user with a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from rescind.cli.options import Json, Run
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.labels import Recommendation


def command(
    run: Run,
    user: Annotated[str | None, Option(help="The user's original id.")] = None,
    history: Annotated[str | None, Option(help="Or items, first to last: 12,50,7.")] = None,
    k: Annotated[int, Option("-k", "--k", min=1, help="Number of items.")] = 20,
    as_json: Json = False,
) -> None:
    """Recommend items that a user does not have, with original ids and titles.

    Example: rescind recommend runs/demo --user 450 -k 10

    Lists of all users at once: rescind export. Users also have what the run held out to measure
    itself. A user without data, or with all of it held out, gets the most popular items, and the
    output says why. With --history, to somebody who has had these items and is not in the model.
    """
    from rescind.errors import ConfigError

    if (user is None) == (history is None):
        raise ConfigError("give a user (--user ID) or items in order (--history 12,50,7).")
    from rescind.storage.run_folder import HEAD, model_in

    if (run / "model" / "public.safetensors").is_file() and not (run / "model" / HEAD).is_file():
        raise ConfigError(
            f"{run} was learnt with Flower: the data of its users is at the silos, not here. Ask "
            f"on the user's silo: rescind flower recommend SILO_FOLDER --user {user or 'ID'}"
        )
    folder = model_in(run)  # before torch is loaded: an error answers at once
    items = None if history is None else [item.strip() for item in history.split(",")]
    found, why = _answer(run, folder, user, k, items)
    if as_json:
        asked = {"user": user} if items is None else {"history": items}
        typer.echo(json.dumps({**asked, "items": [vars(r) for r in found]}))
        return
    whom = f"user {user}" if items is None else f"a history of {count_of(len(items), 'item')}"
    typer.echo(f"{count_of(len(found), 'recommendation')} for {whom}, from {why}")
    for place, item in enumerate(found, 1):
        typer.echo(f"{place:4d}  {item.item:>8}  {item.score:8.4f}  {item.title}")


def _answer(
    run: Path, folder: Path, user: str | None, k: int, items: list[str] | None
) -> tuple[list[Recommendation], str]:
    """Return the list and what it is from; without torch, which takes seconds, if possible.

    If the run answered a request, its model and data are compared with the receipt. A federation
    that was saved by itself has no receipt.
    """
    from rescind.requests.members import AskedBefore
    from rescind.storage.quick_lists import method_of, open_saved, recommend

    answered = folder != run
    saved = open_saved(folder)
    before = AskedBefore.read(run)
    if saved is not None and user is not None:
        before.client(user, saved.labels, saved.facts["sizes"]["clients"])  # raises if they left
    quick = None if saved is None else recommend(saved, user, k, items)
    if saved is not None and quick is not None:
        if answered:
            from rescind.receipts.of_run import Found, check_fit

            check_fit(run, Found.of_saved(saved))
        return quick, method_of(saved)
    from rescind.receipts.of_run import Found, check_fit
    from rescind.storage.federations import load_federation

    fed = load_federation(folder)
    if user is not None:
        before.client(user, fed.labels, fed.world.sizes.clients)
    if answered:
        check_fit(run, Found.of(fed))
    found, why = fed.recommend(user, k, items), type(fed.method).__name__
    if fed.method.because == "popularity":
        why += ": the same for everybody, less what they have"
    elif found and found[0].because == "popularity":
        assert user is not None
        why = f"popularity: {_why_not_taste(fed, user)}"
    return found, why


def _why_not_taste(fed: Federation, user: str) -> str:
    """Say why a user gets what is popular: of the newest block no row of theirs is to learn from.

    They may have rows nevertheless, and `rescind data show` lists them.
    """
    import torch

    held = fed.now.vault.holdings
    mine = held.part(torch.tensor([fed.labels.client(user, held.clients)]))
    if held_out := int((mine.block == held.now).sum()):
        rows = "the only row" if held_out == 1 else f"all {held_out} rows"
        return f"{rows} of this user {'is' if held_out == 1 else 'are'} held out to measure the run"
    if len(mine.records):
        return "what this user has came with earlier blocks, and lists are made from the newest"
    return "this user has no data"
