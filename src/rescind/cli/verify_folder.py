"""Verify a folder of receipts, and say what is missing between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.receipts.verify import Verification


def verify_folder(folder: Path, pinned: dict[str, str], as_json: bool) -> int:
    """Verify all receipts below a folder, say which ones fork, and return the exit code."""
    from rescind.errors import DataError
    from rescind.receipts.files import receipts_below
    from rescind.receipts.verify import verify_all

    files, unclear = receipts_below(folder)
    for name in unclear:
        typer.echo(f"skipped: {shown(name)} is not readable as JSON, or too large", err=True)
    if not files:
        raise DataError(
            f"{folder} holds no receipts: no .json file below it looks like one. Name another."
        )
    found = verify_all(files, pinned)
    wrong = sum(not one.valid for one in found.values())
    if as_json:
        typer.echo(json.dumps({name: plain(one) for name, one in found.items()}, indent=2))
        return 1 if wrong else 0
    for name, one in found.items():
        typer.echo(f"{shown(name)}: {'VALID' if one.valid else 'NOT VALID'}")
        print_checks(one)
    fork = "the history forks" if "" in found else "the history does not fork here"
    typer.echo(
        f"{count_of(len(files), 'receipt')}, {wrong - ('' in found)} not valid; {fork}. Others may "
        f"have been shown other receipts."
    )
    return 1 if wrong else 0


def plain(found: Verification) -> dict[str, Any]:
    checks = [{"holds": c.holds, "says": c.says, "note": c.note} for c in found.checks]
    return {"valid": found.valid, "checks": checks}


def print_checks(found: Verification) -> None:
    for check in found.checks:
        mark = "note" if check.note else "yes" if check.holds else "NO"
        typer.echo(f"  {mark:4} {shown(check.says)}")


def shown(text: str) -> str:
    """Replace characters that move the cursor: a receipt must not print its own verdict."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
