"""Check and read the cells of an imported file: ids, ratings, times and splits.

Each reader takes many cells of one column. It first tries to read them all at once; only if that
fails, it reads each cell, to find the first invalid one or a less common valid form such as a
date.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_LONGEST_ID = 256
_MISSING = frozenset(("", "nan", "null", "none", "na", "n/a"))
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_SIGNED = re.compile(r"[+-]\d+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEEP = "pass --text-ids to keep ids exactly as they are written"
_DAY = 86_400
_LARGEST_RATING = 3e38  # near the largest float32
_SPLITS = {"0": 0, "train": 0, "1": 1, "valid": 1, "validation": 1, "2": 2, "test": 2}


class BadCell(Exception):
    """An invalid cell: its index among the given cells, and why."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why


class Reader(Protocol):
    """A reader of one column."""

    def read(self, cells: Sequence[str]) -> NDArray[Any]:
        """Return the values of the cells, or raise BadCell for the first invalid one."""
        ...


class IdReader:
    """A reader of ids: whole numbers from 0 to 2**63 - 1, or text, numbered by first appearance.

    With `text_ids`, only empty, too long and unprintable ids are invalid.
    """

    def __init__(self, ids: dict[str, int], text_ids: bool) -> None:
        self.ids = ids
        self.text_ids = text_ids

    def read(self, cells: Sequence[str]) -> NDArray[np.int32]:
        """Return the numbers of the ids; each distinct id is checked once."""
        numbers = [self.ids.get(cell) for cell in cells]
        if None in numbers:
            for index, cell in enumerate(cells):
                if cell not in self.ids:
                    why = self._problem(cell)
                    if why:
                        raise BadCell(index, why)
                    self.ids[cell] = len(self.ids)
            numbers = [self.ids[cell] for cell in cells]
        return np.asarray(numbers, dtype=np.int32)

    def _problem(self, cell: str) -> str:
        """Return what is wrong with an id, or an empty text."""
        if cell == "" or len(cell) > _LONGEST_ID:
            return f"an id must have 1 to {_LONGEST_ID} characters; this one has {len(cell)}"
        if _CONTROL.search(cell):
            return "an id must not contain control characters"
        if self.text_ids:
            return ""
        if cell.lower() in _MISSING:
            return f"the id is missing; {_KEEP}"
        if _SIGNED.fullmatch(cell):
            return f"a numeric id must not have a sign; {_KEEP}"
        if _FRACTION.fullmatch(cell):
            return f"an id must not be a fraction; write 12, not 12.0, or {_KEEP}"
        if cell.isascii() and cell.isdigit() and int(cell) >= 2**63:
            return f"a numeric id must be below 2**63; {_KEEP}"
        return ""


class RatingReader:
    """A reader of finite numbers that fit into 32 bits."""

    def read(self, cells: Sequence[str]) -> NDArray[np.float32]:
        """Return the ratings."""
        try:
            values = np.asarray(cells, dtype=np.str_).astype(np.float64)
        except ValueError:
            values = np.asarray(_each(cells, _rating))
        wrong = np.flatnonzero(~(np.abs(values) < _LARGEST_RATING))
        if len(wrong):
            why = "a rating must be a finite number; remove these rows, or the rating column"
            raise BadCell(int(wrong[0]), why)
        return values.astype(np.float32)


class TimeReader:
    """A reader of Unix seconds (or milliseconds), or dates such as 2024-05-01 12:00:00, in UTC."""

    def __init__(self, unit: str) -> None:
        self.scale = {"s": 1, "ms": 1000}[unit]
        self.latest = math.floor(time.time()) + _DAY

    def read(self, cells: Sequence[str]) -> NDArray[np.int64]:
        """Return the times in seconds."""
        try:
            values = np.asarray(cells, dtype=np.str_).astype(np.int64) // self.scale
        except (ValueError, OverflowError):
            values = np.asarray(_each(cells, self._one), dtype=np.int64)
        wrong = np.flatnonzero((values < 0) | (values > self.latest))
        if len(wrong):
            hint = "; for milliseconds pass --time-unit ms" if self.scale == 1 else ""
            early = values[wrong[0]] < 0
            why = "the time is before 1970" if early else f"the time is in the future{hint}"
            raise BadCell(int(wrong[0]), why)
        return values

    def _one(self, cell: str) -> int:
        for kind in (int, float):
            try:
                seconds = math.floor(kind(cell) / self.scale)
            except (ValueError, OverflowError):
                continue
            return max(-1, min(seconds, self.latest + 1))  # clipped, but still out of range
        try:
            when = datetime.fromisoformat(cell)
        except ValueError:
            raise ValueError(
                "a time must be Unix seconds or a date such as 2024-05-01 12:00:00 (UTC)"
            ) from None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return math.floor((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


class SplitReader:
    """A reader of splits: train, valid or test, or 0, 1, 2."""

    def read(self, cells: Sequence[str]) -> NDArray[np.int8]:
        """Return the labels."""
        return np.asarray(_each(cells, _split), dtype=np.int8)


def _each(cells: Sequence[str], read: Callable[[str], Any]) -> list[Any]:
    """Read cells one by one; a ValueError becomes a BadCell with its index."""
    values = []
    for index, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except ValueError as error:
            raise BadCell(index, str(error)) from None
    return values


def _rating(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError("a rating must be a number") from None


def _split(cell: str) -> int:
    if cell.lower() not in _SPLITS:
        raise ValueError("a split must be train, valid or test (or 0, 1, 2)")
    return _SPLITS[cell.lower()]
