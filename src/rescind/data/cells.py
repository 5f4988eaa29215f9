"""One cell of somebody's file: what is a valid id, rating, time or split, and what is not."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

_LONGEST_ID = 256
_MISSING = frozenset(("", "nan", "null", "none", "na", "n/a"))
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_SIGNED = re.compile(r"[+-]\d+")
_DAY = 86_400
_SPLITS = {"0": 0, "train": 0, "1": 1, "valid": 1, "validation": 1, "2": 2, "test": 2}


class BadCell(Exception):
    """Why a cell is not accepted; the caller knows file, line and column."""


def identifier(text_ids: bool) -> Callable[[str], str]:
    """A check of ids: whole numbers from 0 to 2**63 - 1, or text.

    With `text_ids` a number may look like anything; only empty, overlong and unprintable ids are
    refused then.
    """

    def check(cell: str) -> str:
        if cell == "" or len(cell) > _LONGEST_ID:
            raise BadCell(f"an id has 1 to {_LONGEST_ID} characters, this one {len(cell)}")
        if any(ord(sign) < 32 or ord(sign) == 127 for sign in cell):
            raise BadCell("an id must not contain control characters")
        if text_ids:
            return cell
        keep = "pass --text-ids to keep ids exactly as they are written"
        if cell.lower() in _MISSING:
            raise BadCell(f"the id is missing; {keep}")
        if _SIGNED.fullmatch(cell):
            raise BadCell(f"a number as an id must not have a sign; {keep}")
        if _FRACTION.fullmatch(cell):
            raise BadCell(f"an id must not be a fraction; write 12, not 12.0, or {keep}")
        if cell.isascii() and cell.isdigit() and int(cell) >= 2**63:
            raise BadCell(f"a number as an id must be below 2**63; {keep}")
        return cell

    return check


def rating(cell: str) -> float:
    """A finite number that fits into 32 bits."""
    try:
        value = float(cell)
    except ValueError:
        raise BadCell("a rating must be a number") from None
    if not math.isfinite(value) or abs(value) > 3e38:
        raise BadCell("a rating must be a finite number; leave such rows out or give no rating")
    return value


def moment(unit: str) -> Callable[[str], int]:
    """A check of times: Unix seconds (or milliseconds), or a date as in 2024-05-01 12:00:00."""
    latest = time.time() + _DAY
    scale = {"s": 1, "ms": 1000}[unit]

    def check(cell: str) -> int:
        seconds = _seconds(cell, scale)
        if seconds > latest:
            hint = "; for milliseconds pass --time-unit ms" if scale == 1 else ""
            raise BadCell(f"the time lies in the future{hint}")
        if seconds < 0:
            raise BadCell("the time lies before 1970")
        return seconds

    return check


def _seconds(cell: str, scale: int) -> int:
    try:
        return int(cell) // scale
    except ValueError:
        pass
    try:
        return math.floor(float(cell) / scale)
    except (ValueError, OverflowError):
        pass
    try:
        when = datetime.fromisoformat(cell)
    except ValueError:
        raise BadCell(
            "a time must be Unix seconds or a date such as 2024-05-01 12:00:00 (UTC)"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return math.floor((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def split(cell: str) -> int:
    """train, valid or test, or 0, 1, 2."""
    if cell.lower() not in _SPLITS:
        raise BadCell("a split must be train, valid or test (or 0, 1, 2)")
    return _SPLITS[cell.lower()]
