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
    user: Annotated[str | None, Option(help="The user's original id.")] = None,
    left_out: Annotated[
        bool,
        Option(
            "--left-out",
            help="List the users of whom rows are stored that no run uses any more.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List what a dataset or a run has of one user: item, title, rating, time; of a run, if lent.

    Of imported data every stored row is listed, also those that no run uses after a request (left
    out). Ids that look like the given one are named here, and by no other command.

    Examples: rescind data show mine --user c7; rescind data show runs/mine --user c7 --json;
    rescind data show mine --left-out
    """
    from rescind.core.labels import named_alike
    from rescind.data import names
    from rescind.errors import ConfigError

    if left_out == (user is not None):
        raise ConfigError("give --user USER, or --left-out for the users with rows left out.")
    if user is None:
        _show_left_out(name, json)
        return
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
        typer.echo(f"\nNext: rescind data erase {name} --user USER, or also --item ITEM")
    else:
        typer.echo(f"\nNext: rescind forget {name} --user USER --item ITEM, or --withdraw USER")


def left_out_of(name: str) -> dict[str, Any]:
    """Count the rows of an imported dataset that are stored, and that no run uses any more."""
    from rescind.data.erasing import left_out

    found = left_out(name)
    if not found:
        return {}
    rows, in_part = (sum(getattr(one, n) for one in found.values()) for n in ("rows", "in_part"))
    return {LEFT_OUT: {"users": len(found), "rows": rows, "users_in_part": in_part}}


def left_out_told(name: str, about: dict[str, Any]) -> str:
    """Return what to do about such rows. No id is named: others read lists of datasets, too."""
    rows, users = (count_of(about[LEFT_OUT][what], what[:-1]) for what in ("rows", "users"))
    return (
        f"{rows} of {users} stored, but left out after a request. Whose, and how to delete them: "
        f"rescind data show {name} --left-out"
    )


def _show_left_out(name: str, json: bool) -> None:
    from rescind.data.erasing import left_out
    from rescind.data.importing import check_imported

    check_imported(name)
    found = left_out(name)
    if json:
        rows = {user: one.rows for user, one in found.items()}
        typer.echo(json_module.dumps({"name": name, "users": rows}))
        return
    rows_in_all = sum(one.rows for one in found.values())
    what = f"{count_of(rows_in_all, 'row')} of {count_of(len(found), 'user')}"
    typer.echo(f"{name}: {what} stored, but left out after a request")
    table = [
        {"user": who, "rows": str(n.rows), "stored": str(n.stored)} for who, n in found.items()
    ]
    for line in _table(table):
        typer.echo(f"  {line}")
    if found:
        erase = f"rescind data erase {name} --user USER"
        typer.echo(f"\nNext: {erase}; with --item ITEM where fewer rows are left out than stored")


def _of_dataset(name: str, user: str) -> tuple[Rows, Sequence[str]]:
    """Return the rows of a user, and the ids of all users."""
    from rescind.core.labels import named_alike
    from rescind.data import load
    from rescind.data.blocklist import Blocklist
    from rescind.data.dataset import Dataset
    from rescind.data.erasing import rows_of, unknown_id
    from rescind.errors import ConfigError, DataError

    data = load(name, erased_too=True)
    if not isinstance(data, Dataset):
        raise ConfigError(f"'{name}' is a graph: it has nodes, and no rows of users.")
    users = data.users.tolist()
    if user not in users:
        raise DataError(unknown_id(name, "user", user, users, named_alike))
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
    from rescind.core.labels import named_alike
    from rescind.forgetting.asked_before import AskedBefore
    from rescind.forgetting.succession import settle
    from rescind.storage.federations import load_federation

    settle(run)
    fed = load_federation(model_in(run))
    held, labels = fed.now.vault.holdings, fed.labels
    if held.graph is not None:
        raise ConfigError(f"{run} learnt a graph: it has nodes, and no rows of users.")
    client = AskedBefore.read(run).client(user, labels, held.clients, named_alike)
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
