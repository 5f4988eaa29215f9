"""`rescind scan`: look for somebody's bytes in every file of a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from rescind.ledger.canary import Story


def command(
    state: Annotated[Path, Argument(help="The state folder; with --story an empty folder.")],
    text: Annotated[
        list[str] | None, Option("--for", help="A text to look for (id, title); repeatable.")
    ] = None,
    number: Annotated[
        list[str] | None,
        Option("--numbers", metavar="N,N,...", help="Whole numbers in a row to look for."),
    ] = None,
    also: Annotated[
        list[Path] | None, Option(help="Another file or folder: backups, logs, temporary files.")
    ] = None,
    database: Annotated[
        str | None,
        Option(metavar="URL", help="PostgreSQL, if the ledger is there."),
    ] = None,
    story: Annotated[
        bool, Option("--story", help="Play the life of a planted person in an empty folder.")
    ] = False,
) -> None:
    """Look for bytes in all files, in every form: UTF-8 and UTF-16, hexadecimal, base64, JSON
    escapes, numbers of 4 and 8 bytes; inside gzip, zip, zstd, Parquet, SQLite and others.

    First plants its own bytes and finds them, else the scan is void. Exit code 1: found.

    Examples: rescind scan runs/service-demo --numbers 17,20,33 --also backups;
    rescind scan runs/scan --story
    """
    from rescind.errors import ConfigError

    if story:
        from rescind.ledger.canary import story as play

        if text or number or also or database:
            raise ConfigError("--story plants its own person: leave all other options out.")
        raise typer.Exit(_tell(play(state)))
    if not text and not number:
        raise ConfigError("nothing to look for. Give --for TEXT or --numbers N,N, or --story.")
    from contextlib import nullcontext

    from rescind.ledger.keyfile import FILE as KEYS
    from rescind.ledger.place import check_not_elsewhere, check_there
    from rescind.ledger.scanner import Canary, scan
    from rescind.ledger.store import reading

    canaries = [Canary(repr(one), one.encode()) for one in text or []]
    canaries += [Canary(one, numbers=_numbers(one)) for one in number or []]
    for one in canaries:
        if len(one.data) < 6 and len(one.numbers) < 2:
            raise ConfigError(f"{one.name} is too short. Give at least 6 bytes or 2 numbers.")
    check_not_elsewhere(state, database)
    if (state / KEYS).exists():
        check_there(state, database)
    with reading(state, database) if database else nullcontext() as ledger:
        looked = scan([state, *(also or [])], canaries, ledger)
    for hit in looked.found:
        typer.echo(f"{hit.where}: {hit.canary} as {hit.form}")
    typer.echo(f"{len(looked.found)} found ({looked.planted} planted as a control, all found).")
    raise typer.Exit(1 if looked.found else 0)


def _tell(told: Story) -> int:
    typer.echo(f"{'what somebody with all files and all keys reads':58} before   after")
    for what in told.after:
        before = "found" if told.before.get(what) else "-" if what not in told.before else "MISSED"
        typer.echo(f"{what:58} {before:8} {told.after[what]}")
    typer.echo(
        f"{sum(told.after.values())} found after the person left, old backup included "
        f"({told.planted} planted as a control, all found)."
    )
    return 0 if told.holds else 1


def _numbers(text: str) -> tuple[int, ...]:
    from rescind.errors import ConfigError

    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise ConfigError(f"'{text}' is not a row of whole numbers, such as 17,4,1023.") from None
