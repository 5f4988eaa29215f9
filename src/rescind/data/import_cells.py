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
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.import_words import setting
from rescind.errors import ConfigError

LONGEST_ID = 256
MISSING = frozenset(("", "nan", "null", "none", "na", "n/a"))
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?\d+,\d+")  # a rating as some countries write it
_SIGNED = re.compile(r"[+-]\d+")
_PLAIN = re.compile(r"[A-Za-z][!-~]{4,255}")  # no number, not missing, no space: most texts
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_DAY = 86_400
DAY_FIRST = "%d/%m/%Y"
_A_DAY = datetime(2024, 11, 30, tzinfo=UTC)
_LARGEST_RATING = 10**9  # `core.records.LARGEST_RATING`; an import does not load torch
_SPLITS = {"0": 0, "train": 0, "1": 1, "valid": 1, "validation": 1, "2": 2, "test": 2}


READ_AS = "; it was read as"
"""Begins what of a reason differs from cell to cell."""


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
    if cell == "" or len(cell) > LONGEST_ID:
        return f"an id must have 1 to {LONGEST_ID} characters; this one has {len(cell)}"
    if _CONTROL.search(cell):
        return "an id must not contain control characters"
    if text_ids:
        return ""
    if cell.lower() in MISSING:
        return f"the id is missing; {_keep()}"
    if _SIGNED.fullmatch(cell):
        return f"a numeric id must not have a sign; {_keep()}"
    if _FRACTION.fullmatch(cell):
        return f"an id must not be a fraction; write 12, not 12.0, or {_keep()}"
    if cell.isascii() and cell.isdigit() and int(cell) >= 2**63:
        return f"a numeric id must be below 2**63; {_keep()}"
    return ""


def read_ratings(cells: Sequence[str]) -> NDArray[np.float32]:
    """Return ratings: numbers that a run can keep."""
    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.float64)
    except ValueError:
        values = np.asarray(_ratings_each(cells))
    return check_ratings(values)


def _ratings_each(cells: Sequence[str]) -> list[float]:
    try:
        return _each(cells, float, "a rating must be a number")
    except BadCell as bad:
        index, why = bad.args
        point = ", with a decimal point: 5.5, not 5,5" * bool(
            _COMMA.fullmatch(cells[index].strip())
        )
        raise BadCell(index, why + point) from None


def check_ratings(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return ratings in 32 bits; the first that no run can keep raises BadCell."""
    if len(values) and not (values.min() >= -_LARGEST_RATING and values.max() <= _LARGEST_RATING):
        wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST_RATING))
        first = int(wrong[0])
        why = "a rating must be a finite number; remove these rows, or the rating column"
        if np.isfinite(values[first]):
            limit = f"{-_LARGEST_RATING:,} to {_LARGEST_RATING:,}"
            why = f"a rating must be from {limit}; divide all of them by the same number"
        raise BadCell(first, why)
    return values.astype(np.float32)


def is_format(unit: str) -> bool:
    """Return whether a time unit says how dates are written, such as %d/%m/%Y."""
    return "%" in unit


def check_unit(unit: str) -> None:
    """Raise `ConfigError` for a time unit that is neither a unit nor a format with a whole date."""
    try:
        whole = is_format(unit) and _written(_A_DAY.strftime(unit), unit) == _A_DAY
    except ValueError:
        whole = False
    if unit not in PER_SECOND and not whole:
        raise ConfigError(
            f"the time unit is '{unit}'; allowed are {', '.join(PER_SECOND)}, or how dates are "
            f"written, with day, month and year, such as '{DAY_FIRST}' or '%m/%d/%Y %H:%M'."
        )


def _written(cell: str, form: str) -> datetime:
    """Return a date that is written in a form; in UTC unless it says another zone."""
    when = datetime.strptime(cell, form)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when


def _seconds(when: datetime) -> int:
    return math.floor((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def read_times(cells: Sequence[str], unit: str) -> NDArray[np.int64]:
    """Return times in seconds, from Unix seconds (or milliseconds) or dates in UTC."""
    if is_format(unit):
        why = f"a time must be written as {unit}, which {setting('time_unit', unit)} says"
        found = _each(cells, lambda cell: _seconds(_written(cell, unit)), why)
        return check_times(np.asarray(found, dtype=np.int64), "s", cells, dates=True)
    scale = PER_SECOND[unit]

    def one(cell: str) -> int:
        for kind in (int, float):
            try:
                seconds = math.floor(kind(cell) / scale)
            except (ValueError, OverflowError):
                continue
            return max(-1, min(seconds, 2**62))  # clipped, but still out of range
        when = datetime.fromisoformat(cell)
        return _seconds(when.replace(tzinfo=UTC) if when.tzinfo is None else when)

    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.int64) // scale
    except (ValueError, OverflowError):
        why = (
            "a time must be Unix seconds or a date such as 2024-05-01 12:00:00 (UTC); of dates "
            f"that are written differently say how, such as {setting('time_unit', DAY_FIRST)}"
        )
        values = np.asarray(_each(cells, one, why), dtype=np.int64)
    return check_times(values, unit, cells)


def _keep() -> str:
    return f"pass {setting('text_ids', True)} to keep ids exactly as they are written"


def _latest() -> int:
    return math.floor(time.time()) + _DAY


def check_times(
    values: NDArray[np.int64], unit: str, cells: Sequence[str] = (), dates: bool = False
) -> NDArray[np.int64]:
    """Return times in seconds; the first before 1970 or in the future raises BadCell.

    unit: of the file, for the advice    cells: as they are written
    dates: all of them are dates, also where one looks like a number (20301231)
    """
    latest = _latest()
    if len(values) and (values.min() < 0 or values.max() > latest):
        wrong = np.flatnonzero((values < 0) | (values > latest))
        at, first = int(wrong[0]), int(values[wrong[0]])
        is_date = dates or (len(cells) > 0 and not _is_number(cells[at]))
        hint = _read_as(first) if is_date else _in_another_unit(first, unit, latest)
        why = "the time is before 1970" if first < 0 else f"the time is in the future{hint}"
        raise BadCell(at, why)
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_as(seconds: int) -> str:
    """Return how a date was read: the order of day and month, or the century, may be another."""
    return f"{READ_AS} {datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds):%Y-%m-%d}"


def _in_another_unit(first: int, unit: str, latest: int) -> str:
    """Return the advice to name a finer unit, if a time is in the past in that."""
    fits = [u for u, n in PER_SECOND.items() if first * PER_SECOND[unit] // n <= latest]
    return f"; for {_WORDS[fits[0]]} pass {setting('time_unit', fits[0])}" if fits else ""


def read_splits(cells: Sequence[str]) -> NDArray[np.int8]:
    """Return split labels, from train, valid or test, or 0, 1, 2."""
    why = "a split must be train, valid or test (or 0, 1, 2)"
    return np.asarray(_each(cells, lambda cell: _SPLITS[cell.lower()], why), dtype=np.int8)


def _each(cells: Sequence[str], read: Callable[[str], Any], why: str) -> list[Any]:
    """Read cells one by one; `why` says what is wrong with a cell that cannot be read."""
    values = []
    for index, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except (ValueError, KeyError):
            raise BadCell(index, why) from None
    return values
