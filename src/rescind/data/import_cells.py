"""Cells of somebody's file: what is a valid id, rating, time or split, and what is not.

Each reader takes the cells of one column, many at a time. It first tries to read them all at once;
only if something is odd does it look at each cell, to find the first bad one or an unusual but
valid form such as a date.
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
_LARGEST_RATING = 3e38  # the end of 32-bit numbers
_SPLITS = {"0": 0, "train": 0, "1": 1, "valid": 1, "validation": 1, "2": 2, "test": 2}


class BadCell(Exception):
    """A cell that is not accepted: its place among those given, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place
        self.why = why


class Reader(Protocol):
    """Reads the cells of one column."""

    def read(self, cells: Sequence[str]) -> NDArray[Any]:
        """The values of the cells, or BadCell for the first bad one."""
        ...


class IdReader:
    """Ids, numbered by first appearance: whole numbers from 0 to 2**63 - 1, or text.

    With `text_ids` a number may look like anything; only empty, overlong and unprintable ids are
    refused then.
    """

    def __init__(self, ids: dict[str, int], text_ids: bool) -> None:
        self.ids = ids
        self.text_ids = text_ids

    def read(self, cells: Sequence[str]) -> NDArray[np.int32]:
        """The numbers of ids; each distinct one is checked once."""
        numbers = [self.ids.get(cell) for cell in cells]
        if None in numbers:
            for place, cell in enumerate(cells):
                if cell not in self.ids:
                    why = self._wrong(cell)
                    if why:
                        raise BadCell(place, why)
                    self.ids[cell] = len(self.ids)
            numbers = [self.ids[cell] for cell in cells]
        return np.asarray(numbers, dtype=np.int32)

    def _wrong(self, cell: str) -> str:
        """What is wrong with an id; empty if nothing."""
        if cell == "" or len(cell) > _LONGEST_ID:
            return f"an id has 1 to {_LONGEST_ID} characters, this one {len(cell)}"
        if _CONTROL.search(cell):
            return "an id must not contain control characters"
        if self.text_ids:
            return ""
        if cell.lower() in _MISSING:
            return f"the id is missing; {_KEEP}"
        if _SIGNED.fullmatch(cell):
            return f"a number as an id must not have a sign; {_KEEP}"
        if _FRACTION.fullmatch(cell):
            return f"an id must not be a fraction; write 12, not 12.0, or {_KEEP}"
        if cell.isascii() and cell.isdigit() and int(cell) >= 2**63:
            return f"a number as an id must be below 2**63; {_KEEP}"
        return ""


class RatingReader:
    """Finite numbers that fit into 32 bits."""

    def read(self, cells: Sequence[str]) -> NDArray[np.float32]:
        """The ratings."""
        try:
            values = np.asarray(cells, dtype=np.str_).astype(np.float64)
        except ValueError:
            values = np.asarray(_each(cells, _rating))
        wrong = np.flatnonzero(~(np.abs(values) < _LARGEST_RATING))
        if len(wrong):
            why = "a rating must be a finite number; leave such rows out, or give no rating"
            raise BadCell(int(wrong[0]), why)
        return values.astype(np.float32)


class TimeReader:
    """Unix seconds (or milliseconds), or dates such as 2024-05-01 12:00:00, in UTC."""

    def __init__(self, unit: str) -> None:
        self.scale = {"s": 1, "ms": 1000}[unit]
        self.latest = math.floor(time.time()) + _DAY

    def read(self, cells: Sequence[str]) -> NDArray[np.int64]:
        """The times in seconds."""
        try:
            values = np.asarray(cells, dtype=np.str_).astype(np.int64) // self.scale
        except (ValueError, OverflowError):
            values = np.asarray(_each(cells, self._one), dtype=np.int64)
        wrong = np.flatnonzero((values < 0) | (values > self.latest))
        if len(wrong):
            hint = "; for milliseconds pass --time-unit ms" if self.scale == 1 else ""
            early = values[wrong[0]] < 0
            why = "the time lies before 1970" if early else f"the time lies in the future{hint}"
            raise BadCell(int(wrong[0]), why)
        return values

    def _one(self, cell: str) -> int:
        for kind in (int, float):
            try:
                seconds = math.floor(kind(cell) / self.scale)
            except (ValueError, OverflowError):
                continue
            return max(-1, min(seconds, self.latest + 1))  # what is out of range stays so
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
    """train, valid or test, or 0, 1, 2."""

    def read(self, cells: Sequence[str]) -> NDArray[np.int8]:
        """The labels."""
        return np.asarray(_each(cells, _split), dtype=np.int8)


def _each(cells: Sequence[str], read: Callable[[str], Any]) -> list[Any]:
    """Read cells one by one; a ValueError becomes a BadCell with its place."""
    values = []
    for place, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except ValueError as error:
            raise BadCell(place, str(error)) from None
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
