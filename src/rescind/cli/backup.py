"""`rescind backup` and `rescind restore`: copies of a service's ledger, and going back to one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rescind.cli.asking import ask_to_go_on

State = Annotated[Path, Argument(help="The state folder of a service.")]
Database = Annotated[
    str | None, Option(metavar="URL", help="PostgreSQL of the service; default: ledger.db.")
]
Mirror = Annotated[
    Path | None, Option(help="The second copy of keys.bin. Default: the one of the last start.")
]


def backup(
    state: State,
    target: Annotated[Path, Argument(help="The new file to write.")],
    database: Database = None,
) -> None:
    """Copy the ledger into one file, also while the service runs.

    Keys are never in it: without keys.bin it is noise, and records that change later cannot be
    opened from it any more. To move a service, stop it first: what it acknowledges after the copy
    is not in it.

    Example: rescind backup runs/service-demo ledger-monday.db
    """
    from rescind.core.words import count_of, people_of
    from rescind.ledger.backup import back_up

    rows = back_up(state, target, database)
    log = count_of(rows["leaf"], "entry", "entries")
    typer.echo(f"{target}: {people_of(rows['person'])}, {log} of the log.")
    typer.echo("keys.bin is not in it. Mirror it (rescind serve --keys-mirror); never archive it.")
    typer.echo(f"To go back: rescind restore {state} --from {target}{_more(database)}")


def _more(database: str | None) -> str:
    """Return the option that names the database, for a command to type. No password is printed."""
    from rescind.ledger.place import shown

    return f" --database {shlex.quote(shown(database))}" if database else ""


def restore(
    state: State,
    source: Annotated[
        Path | None, Option("--from", help="A backup; default: the ledger that is in place.")
    ] = None,
    database: Database = None,
    keys_mirror: Mirror = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Go back to a backup, or accept an older ledger that is in place. Stop the service first.

    Shows what will be dropped, and asks. Nothing that was taken back returns: its key is gone.

    Example: rescind restore runs/service-demo --from ledger-monday.db
    """
    from rescind.ledger.restore import plan
    from rescind.ledger.restore import restore as put_in_place

    typer.echo(str(plan(state, source, keys_mirror, database)))
    if not yes:
        ask_to_go_on("Nothing was changed.")
    put_in_place(state, source, keys_mirror, database)
    typer.echo(f"Done. Start the service: rescind serve --state {state}{_more(database)}")
