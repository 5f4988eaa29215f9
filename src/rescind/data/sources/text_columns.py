"""Read columns of publishers' text files; every error names file, line and column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.data.sources.archive import Files
from rescind.errors import DataError


@dataclass(frozen=True)
class Columns:
    """The cells of a text file by column name, and what its error messages need."""

    file: str
    first_line: int
    cells: dict[str, list[str]]

    def __getitem__(self, name: str) -> list[str]:
        return self.cells[name]

    def whole(self, name: str) -> Ints:
        """Convert a column to whole numbers that are not negative."""
        return whole(self.cells[name], self.file, name, self.first_line)

    def decimal(self, name: str) -> NDArray[np.float32]:
        """Convert a column to finite numbers."""
        cells = self.cells[name]
        try:
            values = np.asarray(cells, dtype=np.str_).astype(np.float64)
        except ValueError:
            values = np.asarray([_parse(float, cell, float("nan")) for cell in cells])
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            at = int(bad[0])
            place = f"{self.file}, line {at + self.first_line}, column '{name}'"
            raise DataError(f"{place}: {cells[at]!r} is not a finite number.")
        return values.astype(np.float32)


def cut(
    files: Files,
    name: str,
    separator: str,
    names: Sequence[str],
    header: bool = False,
    encoding: str = "utf-8",
) -> Columns:
    """Cut a file into named columns of cells.

    Every line must have as many cells as `names`; a header line is skipped.
    """
    file, width, first_line = files.label(name), len(names), 2 if header else 1
    # not splitlines(): in latin-1 it would also break at 0x85, which is text in some titles
    lines = decode(files.read(name), file, encoding).replace("\r\n", "\n").split("\n")
    lines = lines[first_line - 1 :]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{file}: the file has no rows. Download it again.")
    rows = [line.split(separator) for line in lines]
    for number, row in enumerate(rows, first_line):
        if len(row) != width:
            raise DataError(
                f"{file}, line {number}, column {min(len(row), width) + 1}: {len(row)} cells "
                f"separated by {separator!r} where {width} are expected ({', '.join(names)})."
            )
    cells = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return Columns(file, first_line, cells)


def decode(data: bytes, file: str, encoding: str) -> str:
    """Decode a file; an invalid byte is an error with its line and column."""
    nul = data.find(b"\0")
    if nul >= 0:
        why = "a NUL byte. This is not a text file, or it was cut off while being written"
        raise DataError(f"{file}, {place_of(data, nul)}: {why}.")
    try:
        return data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        place = place_of(data, error.start)
        raise DataError(f"{file}, {place}: a byte that is not {encoding} text.") from error


def place_of(data: bytes, at: int, lines_before: int = 0) -> str:
    """Return the line and column of a byte, for error messages."""
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    return f"line {lines_before + line}, column {column}"


def whole(
    cells: Sequence[str], file: str, column: str, first_line: int = 1, lines: Ints | None = None
) -> Ints:
    """Convert cells to whole numbers that are not negative.

    The line of a cell is `first_line` plus its index, or is given by `lines`.
    """
    try:
        values = np.asarray(cells, dtype=np.str_).astype(np.int64)
    except (ValueError, OverflowError):
        numbers = (_parse(int, cell, -1) for cell in cells)
        values = np.asarray([number if number < 2**63 else -1 for number in numbers])
    bad = np.flatnonzero(values < 0)
    if len(bad):
        at = int(bad[0])
        line = at + first_line if lines is None else int(lines[at])
        raise DataError(
            f"{file}, line {line}, column '{column}': {cells[at]!r} is not a whole number."
        )
    return values


def _parse(kind: Callable[[str], Any], cell: str, invalid: Any) -> Any:
    try:
        return kind(cell)
    except ValueError:
        return invalid
