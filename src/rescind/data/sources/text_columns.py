"""Read columns of publishers' text files; every error names file, line and column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.errors import DataError


def cut(
    data: bytes,
    file: str,
    separator: str,
    names: Sequence[str],
    *,
    header: bool,
    encoding: str = "utf-8",
) -> dict[str, list[str]]:
    """Cut text into named columns of cells.

    Every line must have as many cells as `names`; a header line is skipped. Cells with an
    empty name are dropped.
    """
    # not splitlines(): in latin-1 it would also break at 0x85, which is text in some titles
    lines = decode(data, file, encoding).replace("\r\n", "\n").split("\n")
    if header:
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{file}: the file has no rows. Download it again.")
    rows = [line.split(separator) for line in lines]
    width = len(names)
    for number, row in enumerate(rows, 2 if header else 1):
        if len(row) != width:
            raise DataError(
                f"{file}, line {number}, column {min(len(row), width) + 1}: {len(row)} cells "
                f"separated by {separator!r} where {width} are expected ({', '.join(names)})."
            )
    return {name: [row[place] for row in rows] for place, name in enumerate(names) if name}


def decode(data: bytes, file: str, encoding: str) -> str:
    """Decode a file; an invalid byte is an error with its line and column."""
    nul = data.find(b"\0")
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        column = nul - data.rfind(b"\n", 0, nul)
        raise DataError(
            f"{file}, line {line}, column {column}: a NUL "
            "byte. This is not a text file, or it was cut off while being written."
        )
    try:
        return data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise DataError(
            f"{file}, line {line}, column {column}: a byte that is not {encoding} text."
        ) from error


def whole(
    cells: Sequence[str],
    file: str,
    column: str,
    first_line: int = 1,
    lines: Ints | None = None,
) -> Ints:
    """Convert cells to whole numbers that are not negative.

    The line of a cell is `first_line` plus its index, or is given by `lines`.
    """
    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.int64)
    except (ValueError, OverflowError):
        values = np.asarray([_whole_or_minus(cell) for cell in cells])
    bad = np.flatnonzero(values < 0)
    if len(bad):
        at = int(bad[0])
        line = at + first_line if lines is None else int(lines[at])
        raise DataError(
            f"{file}, line {line}, column '{column}': {cells[at]!r} is not a whole number from 0 "
            "to 2**63 - 1."
        )
    return values


def decimal(
    cells: Sequence[str], file: str, column: str, first_line: int = 1
) -> NDArray[np.float32]:
    """Convert cells to finite numbers."""
    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.float64)
    except ValueError:
        values = np.asarray([_decimal_or_nan(cell) for cell in cells])
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        at = int(bad[0])
        raise DataError(
            f"{file}, line {at + first_line}, column '{column}': {cells[at]!r} is not a finite "
            "number."
        )
    return values.astype(np.float32)


def _whole_or_minus(cell: str) -> int:
    try:
        number = int(cell)
    except ValueError:
        return -1
    return number if number < 2**63 else -1


def _decimal_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
