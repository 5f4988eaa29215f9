"""Verify a folder of receipts, and say what is missing between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.receipts.verify import Verification

MOST_NAMES = 5
"""Names of receipts in the last line about a folder; there may be thousands."""


def verify_folder(folder: Path, pinned: dict[str, str], as_json: bool) -> int:
    """Verify all receipts below a folder, say which ones fork, and return the exit code."""
    from rescind.errors import DataError
    from rescind.receipts.files import receipts_below
    from rescind.receipts.verify import gaps, verify_all

    files, unclear = receipts_below(folder)
    if unclear:
        told = f"{count_of(len(unclear), '.json file')} skipped ({_named(unclear)})"
        typer.echo(f"{told}: not readable as JSON, or larger than any receipt", err=True)
    if not files:
        raise DataError(
            f"{folder} holds no receipts: no .json file below it looks like one. Name another."
        )
    found = verify_all(files, pinned)
    if as_json:
        typer.echo(json.dumps({name: plain(one) for name, one in found.items()}, indent=2))
        return 0 if all(one.valid for one in found.values()) else 1
    split = found.pop("", None)
    for name, one in found.items():
        typer.echo(f"{shown(name)}: {'VALID' if one.valid else 'NOT VALID'}")
        print_checks(one)
    for check in split.checks if split else ():
        typer.echo(shown(check.says))
    wrong = [name for name, one in found.items() if not one.valid]
    known, missing = _looked_up(gaps(files, found), found)
    typer.echo(_in_all(len(found), wrong, known, missing, forks=split is not None))
    return 1 if wrong or split else 0


def _looked_up(gaps: list[str], found: dict[str, Verification]) -> tuple[list[str], list[str]]:
    """Tell apart whose predecessor this user's own log knows, and whose is missing.

    The receipts of an operator lie in several folders, and clean-up at night deletes some of them.
    """
    from rescind.receipts.log import in_own_log

    before = {name: one.receipt.previous for name in gaps if (one := found[name]).receipt}
    logged = in_own_log(before.values())
    known = [name for name in gaps if before.get(name) in logged]
    return known, [name for name in gaps if name not in known]


def _in_all(count: int, wrong: list[str], known: list[str], missing: list[str], forks: bool) -> str:
    """Return the last line about a folder.

    known: whose predecessor is not here, but in this user's log    missing: in neither
    """
    said = f"{count_of(count, 'receipt')}: {count - len(wrong)} valid"
    said += f", {len(wrong)} NOT VALID ({_named(wrong)})" if wrong else ""
    said += "; the history forks" if forks else "; the history does not fork here"
    if known:
        said += f"; the receipt before {_named(known)} is not here, but your own log has it"
    if missing:
        said += f"; a gap: the receipt before {_named(missing)} is missing or not valid"
    return f"{said}." if forks else f"{said}. Others may have been shown other receipts."


def _named(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return ", ".join([*map(shown, names[:MOST_NAMES]), *more])


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
