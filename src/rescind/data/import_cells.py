"""Check and read the cells of an imported file: ids, ratings, times and splits.

Each function reads many cells of one column. It first tries to read them all at once; only if that
fails, it reads each cell, to find the first invalid one or a less common valid form such as a
date. The first invalid cell raises BadCell.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.errors import ConfigError

LONGEST_ID = 256
MISSING = frozenset(("", "nan", "null", "none", "na", "n/a"))
_FRACTION_OR_SIGNED = re.compile(r"[+-]\d+|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_PLAIN = re.compile(r"[A-Za-z][!-~]{4,255}")  # no number, not missing, no space: most texts
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_A_DAY = datetime(2024, 11, 30, tzinfo=UTC)
_LARGEST_RATING = 10**9  # `core.records.LARGEST_RATING`; an import does not load torch
_SPLITS = {"0": 0, "train": 0, "1": 1, "valid": 1, "validation": 1, "2": 2, "test": 2}

BAD_TEXT = f"an id must have 1 to {LONGEST_ID} characters, and no control characters"
BAD_ID = (
    "an id must be text, or a whole number from 0 to 2**63 - 1; --text-ids keeps ids as they are "
    "written"
)
BAD_RATING = f"a rating must be a number from {-_LARGEST_RATING:,} to {_LARGEST_RATING:,}"
BAD_TIME = (
    "a time must be Unix seconds, or a date such as 2024-05-01 12:00 (UTC), from 1970 on and not "
    "in the future; --time-unit says otherwise: ms, us, ns, or a form such as %d/%m/%Y"
)
BAD_SPLIT = "a split must be train, valid or test (or 0, 1, 2)"


class BadCell(Exception):
    """An invalid cell; `args` are its index among the given cells, and why."""


def read_ids(cells: Sequence[str], ids: dict[str, int], text_ids: bool) -> NDArray[np.int32]:
    """Return the numbers of ids; new ids are checked and added to `ids` by first appearance.

    An id is a whole number from 0 to 2**63 - 1, or text. With `text_ids`, only empty, too long and
    unprintable ids are invalid.
    """
    numbers = [ids.get(cell) for cell in cells]
    if None in numbers:
        for index, cell in enumerate(cells):
            if cell not in ids:
                why = _id_problem(cell, text_ids)
                if why:
                    raise BadCell(index, why)
                ids[cell] = len(ids)
        numbers = [ids[cell] for cell in cells]
    return np.asarray(numbers, dtype=np.int32)


def check_id(cells: Sequence[str], text_ids: bool) -> None:
    """Check ids without keeping them; the first that is invalid raises BadCell."""
    for index, cell in enumerate(cells):
        if why := _id_problem(cell, text_ids):
            raise BadCell(index, why)


def check_ids(ids: Sequence[str], text_ids: bool) -> None:
    """Check different ids; one that is invalid, or has space around it, raises BadCell."""
    shortest, longest = min(map(len, ids)), max(map(len, ids))
    if shortest > 0 and longest <= 18 and (text := "".join(ids)).isascii() and text.isdigit():
        return
    is_plain = _PLAIN.fullmatch
    for index, cell in enumerate(ids):
        if is_plain(cell):
            continue
        why = _id_problem(cell, text_ids)
        if why or cell != cell.strip():
            raise BadCell(index, why)


def _id_problem(cell: str, text_ids: bool) -> str:
    """Return what is wrong with an id, or an empty text."""
    if cell == "" or len(cell) > LONGEST_ID or _CONTROL.search(cell):
        return BAD_TEXT
    if text_ids:
        return ""
    too_large = cell.isascii() and cell.isdigit() and int(cell) >= 2**63
    return BAD_ID if too_large or _is_no_id(cell) else ""


def _is_no_id(cell: str) -> bool:
    return cell.lower() in MISSING or bool(_FRACTION_OR_SIGNED.fullmatch(cell))


def read_ratings(cells: Sequence[str]) -> NDArray[np.float32]:
    """Return ratings: numbers that a run can keep."""
    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.float64)
    except ValueError:
        values = np.asarray(_each(cells, float, BAD_RATING))
    return check_ratings(values)


def check_ratings(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return ratings in 32 bits; the first that no run can keep raises BadCell."""
    if len(values) and not (values.min() >= -_LARGEST_RATING and values.max() <= _LARGEST_RATING):
        wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST_RATING))
        raise BadCell(int(wrong[0]), BAD_RATING)
    return values.astype(np.float32)


def is_format(unit: str) -> bool:
    """Return whether a time unit says how dates are written, such as %d/%m/%Y."""
    return "%" in unit


def check_unit(unit: str) -> None:
    """Raise `ConfigError` for a time unit that is neither a unit nor a format with a whole date."""
    try:
        day = _A_DAY.strftime(unit)
        whole = is_format(unit) and _seconds(datetime.strptime(day, unit)) == _seconds(_A_DAY)
    except ValueError:
        whole = False
    if unit not in PER_SECOND and not whole:
        raise ConfigError(
            f"the time unit is '{unit}'; give {', '.join(PER_SECOND)}, or a form with day, month "
            f"and year, such as '%d/%m/%Y'."
        )


def _seconds(when: datetime) -> int:
    """Return Unix seconds of a date; in UTC unless it says another zone."""
    zoned = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    return math.floor((zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def read_times(cells: Sequence[str], unit: str) -> NDArray[np.int64]:
    """Return times in seconds, from Unix seconds (or milliseconds) or dates in UTC."""
    if is_format(unit):
        why = f"a time must be written as --time-unit says: {unit}"
        values = _each(cells, lambda cell: _seconds(datetime.strptime(cell, unit)), why)
        return check_times(np.asarray(values, dtype=np.int64))
    scale = PER_SECOND[unit]

    def one(cell: str) -> int:
        for kind in (int, float):
            try:
                seconds = math.floor(kind(cell) / scale)
            except (ValueError, OverflowError):
                continue
            return max(-1, min(seconds, 2**62))  # clipped, but still out of range
        return _seconds(datetime.fromisoformat(cell))

    try:
        numbers = np.asarray(cells, dtype=np.str_).astype(np.int64) // scale
    except (ValueError, OverflowError):
        numbers = np.asarray(_each(cells, one, BAD_TIME), dtype=np.int64)
    return check_times(numbers)


def check_times(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return times in seconds; the first before 1970 or in the future raises BadCell."""
    latest = math.floor(time.time()) + _DAY
    if len(values) and (values.min() < 0 or values.max() > latest):
        raise BadCell(int(np.flatnonzero((values < 0) | (values > latest))[0]), BAD_TIME)
    return values


def read_splits(cells: Sequence[str]) -> NDArray[np.int8]:
    """Return split labels, from train, valid or test, or 0, 1, 2."""
    return np.asarray(_each(cells, lambda cell: _SPLITS[cell.lower()], BAD_SPLIT), dtype=np.int8)


def _each(cells: Sequence[str], read: Callable[[str], Any], why: str) -> list[Any]:
    """Read cells one by one; `why` says what is wrong with a cell that cannot be read."""
    values = []
    for index, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except (ValueError, KeyError):
            raise BadCell(index, why) from None
    return values
