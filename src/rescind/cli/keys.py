"""`rescind keys`: show the key that signs receipts, say whose it is, and replace it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

app = typer.Typer(
    help="Show the key that signs receipts, say whose it is, replace it, check a replacement.",
    no_args_is_help=True, add_completion=False, suggest_commands=False,
)  # fmt: skip


@app.command()
def show() -> None:
    """Print the public key that signs receipts, and the folder of keys.

    Example: rescind keys show
    """
    from rescind.privacy import keys

    typer.echo(keys.own_public_key() or "no key yet: it is made when the first receipt is signed")
    typer.echo(f"folder: {keys.folder()} (back it up; never publish it)")
    typer.echo(f"operator: {keys.operator() or 'not named (rescind keys operator)'}")


@app.command()
def operator(
    text: Annotated[str, Argument(help="Your name and how to reach you, in one line.")],
) -> None:
    """Say who you are: a name and a contact, which receipts of rescind forget state from now on.

    Example: rescind keys operator "Example Ltd, privacy@example.org"
    """
    from rescind.core.claims import OPERATOR, one_line
    from rescind.privacy import keys

    keys.name_operator(one_line(text, f"the {OPERATOR}"))
    typer.echo(f"receipts of rescind forget state from now on: {keys.operator()}")


@app.command()
def rotate(
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Make a new signing key and destroy the old one; both sign a statement to publish.

    Receipts that were signed before stay valid with the old public key, which the statement names:
    here `rescind verify` reads it from the folder of keys. By cron, give --yes.
    The erasure key is never replaced: lists of erased records depend on it.

    Example: rescind keys rotate
    """
    from datetime import UTC, datetime

    from rescind.privacy import keys

    if not yes:
        typer.confirm("Replace the key that signs receipts?", abort=True)
    statement = keys.rotate_signing_key(f"{datetime.now(UTC):%Y-%m-%d}")
    typer.echo(f"new key: {keys.own_public_key()}")
    typer.echo(f"Written: {statement}")
    typer.echo(
        "Next: publish it beside the old key, and pin the new one where receipts are checked"
    )


@app.command()
def check(
    statement: Annotated[Path, Argument(help="The file rotated-*.json that the signer published.")],
) -> None:
    """Check that a new key was signed by the old one, and print both.

    Example: rescind keys check rotated-2026-11-17.json
    """
    from rescind.cli.given import read_text
    from rescind.privacy import keys

    old, new, date = keys.check_rotation(
        read_text(statement, "Give a file rotated-*.json").encode()
    )
    typer.echo(f"VALID: since {date} {new}\n  replaces {old}")
