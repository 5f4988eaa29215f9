"""`rescind data show`: what a dataset or a run has of one person, for whoever answers them."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from rescind.cli.options import Json
from rescind.core.words import count_of

Rows = list[dict[str, Any]]
LEFT_OUT, LENT = "left_out", "lent"
_FIRST_DAY = 100_000_000
"""Smaller times (before 1973) are places in a sequence, or other numbers."""


def show_rows(
    name: Annotated[
        str, Argument(metavar="NAME|RUN", help="A dataset, or the folder of a finished run.")
    ],
    user: Annotated[str, Option(help="The user's original id.")],
    json: Json = False,
) -> None:
    """List what a dataset or a run has of one user: item, title, rating, time; of a run, if lent.

    Of imported data every stored row is listed. A run keeps ratings to the nearest half. Ids that
    look like the given one are named here, and by no other command.

    Examples: rescind data show mine --user c7; rescind data show runs/mine --user c7 --json
    """
    from rescind.core.labels import named_alike
    from rescind.data import names

    is_data = name in names()
    rows, users = _of_dataset(name, user) if is_data else _of_run(Path(name), user)
    if json:
        typer.echo(json_module.dumps({"name": name, "user": user, "rows": rows}))
        return
    mark = LEFT_OUT if is_data else LENT
    marked = sum(row[mark] for row in rows)
    typer.echo(
        f"{name}: {count_of(len(rows), 'row')} of user '{user}', {marked:,} of them {_word(mark)}"
    )
    for line in _table(rows):
        typer.echo(f"  {line}")
    if alike := named_alike(user, users):
        typer.echo(f"\n{alike.strip()}")
    if not rows:
        return
    if is_data:
        typer.echo(f"\nNext: rescind forget --data {name} --user USER, or also --item ITEM")
    else:
        typer.echo(f"\nNext: rescind forget {name} --user USER, or also --item ITEM")


def _of_dataset(name: str, user: str) -> tuple[Rows, Sequence[str]]:
    """Return the rows of a user, and the ids of all users."""
    from rescind.data import load
    from rescind.data.blocklist import Blocklist
    from rescind.data.dataset import Dataset
    from rescind.data.erasing import rows_of
    from rescind.errors import ConfigError
    from rescind.home import Refused

    data = load(name, erased_too=True)
    if not isinstance(data, Dataset):
        raise ConfigError(f"'{name}' is a graph: it has nodes, and no rows of users.")
    users = data.users.tolist()
    if user not in users:
        listed = Blocklist.of_dataset(name).has_asked(user)
        why = "no rows any more, after a request" if listed else "no rows here"
        raise Refused("unknown-person", f"'{user}' has {why}: '{name}', {len(users):,} users.")
    mine = rows_of(data, [user])
    used = {*Blocklist.of_dataset(name).left_of(mine).item.tolist()}
    return [
        {
            "item": str(data.items[item]),
            **({"title": str(data.titles[item])} if data.titles is not None else {}),
            **({"rating": float(mine.rating[row])} if mine.rating is not None else {}),
            **({"time": int(mine.time[row])} if data.has_time else {}),
            LEFT_OUT: item not in used,
        }
        for row, item in enumerate(mine.item.tolist())
    ], users


def _of_run(run: Path, user: str) -> tuple[Rows, Sequence[str]]:
    """Return the rows of a user, and the ids of all users."""
    from rescind.errors import ConfigError
    from rescind.storage.run_folder import HEAD, model_in

    if not run.is_dir():
        raise ConfigError(f"there is no dataset and no run '{run}'. See rescind data list.")
    if (run / "model" / "public.safetensors").is_file() and not (run / "model" / HEAD).is_file():
        raise ConfigError(
            f"{run} was learnt with Flower: its data is at the silos. Give the command there."
        )
    from rescind.requests.members import AskedBefore
    from rescind.storage.federations import load_federation
    from rescind.storage.learning import settle

    settle(run)
    fed = load_federation(model_in(run))
    held, labels = fed.now.vault.holdings, fed.labels
    if held.graph is not None:
        raise ConfigError(f"{run} learnt a graph: it has nodes, and no rows of users.")
    client = AskedBefore.read(run).client(user, labels, held.clients)
    mine = (held.records.client == client).nonzero().flatten()
    records, timed = held.records[mine], bool(held.records.time.any())
    ratings = None if records.rating is None else (records.rating / 2).tolist()
    return [
        {
            "item": labels.item_id(item),
            **({"title": labels.title(item)} if labels.titles else {}),
            **({"rating": ratings[row]} if ratings is not None else {}),
            **({"time": int(records.time[row])} if timed else {}),
            LENT: bool(held.lent[mine[row]]),
        }
        for row, item in enumerate(records.item.tolist())
    ], labels.users


def _table(rows: Rows) -> list[str]:
    """Return rows as lines under a heading, in columns."""
    if not rows:
        return []
    cells = [list(map(_word, rows[0])), *([_cell(name, row[name]) for name in row] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    return [_aligned(line, widths) for line in cells]


def _word(column: str) -> str:
    return column.replace("_", " ")


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "time" and value >= _FIRST_DAY:
        try:
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        except (OverflowError, OSError, ValueError):  # no time of our era
            return str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
