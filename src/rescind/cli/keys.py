"""`rescind keys`: show the key that signs receipts, say whose it is, and replace it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rescind.cli.asking import ask_to_go_on

app = typer.Typer(
    help="Show the key that signs receipts, say whose it is, replace it, check a replacement.",
    no_args_is_help=True, add_completion=False, suggest_commands=False,
)  # fmt: skip


@app.command()
def show() -> None:
    """Print the public key that signs receipts, and where the keys of this home are.

    Example: rescind keys show
    """
    from rescind.core.claims import OPERATOR, SOFTWARE
    from rescind.privacy import keys

    typer.echo(keys.own_public_key() or "no key yet: it is made when the first receipt is signed")
    typer.echo(f"folder: {keys.folder()} (back it up; never publish it)")
    told = keys.about_signer()
    typer.echo(f"operator: {told.get(OPERATOR, 'not named (rescind keys operator)')}")
    typer.echo(f"software: {told.get(SOFTWARE, 'not named (rescind keys operator --software)')}")


@app.command()
def operator(
    text: Annotated[
        str | None, Argument(help="Your name and how to reach you, in one line.")
    ] = None,
    software: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="Where requesters get this program, in one line.",
        ),
    ] = None,
) -> None:
    """Say who you are and where your copy of rescind is: receipts state it from now on.

    Example: rescind keys operator "Example Ltd, privacy@example.org"
    --software https://example.org/privacy
    """
    from rescind.core.claims import OPERATOR, SOFTWARE, one_line
    from rescind.errors import ConfigError
    from rescind.privacy import keys

    given = {OPERATOR: text, SOFTWARE: software}
    lines = {name: one_line(one, f"the {name}") for name, one in given.items() if one is not None}
    if not lines:
        raise ConfigError("nothing was said. Give your name and contact, --software TEXT, or both.")
    for name, line in lines.items():
        keys.say_of_signer(name, line)
        typer.echo(f"receipts that are signed from now on state the {name}: {line}")


@app.command()
def rotate(
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Make a new signing key and destroy the old one; both sign a statement to publish.

    Earlier receipts stay valid with the old public key, which the statement names. The erasure key
    is never replaced: lists of erased records depend on it. By cron, give --yes.

    Example: rescind keys rotate
    """
    from datetime import UTC, datetime

    from rescind.privacy import keys

    if not yes:
        typer.echo("The key that signs receipts is replaced, and the old one destroyed.")
        ask_to_go_on("Nothing was changed.")
    statement = keys.rotate_signing_key(f"{datetime.now(UTC):%Y-%m-%d}")
    typer.echo(f"new key: {keys.own_public_key()}")
    typer.echo(f"Written: {statement}")
    typer.echo("Next: publish it beside the old key, and pin the new one")


@app.command()
def check(
    statement: Annotated[Path, Argument(help="The file rotated-*.json that the signer published.")],
) -> None:
    """Check that a new key was signed by the old one, and print both.

    Example: rescind keys check rotated-2026-11-17.json
    """
    from rescind.cli.given import read_text
    from rescind.privacy import keys

    old, new, date = keys.check_rotation(read_text(statement).encode())
    typer.echo(f"VALID: since {date} {new}\n  replaces {old}")
