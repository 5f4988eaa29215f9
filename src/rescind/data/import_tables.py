"""Columns out of CSV, TSV, RecBole and Parquet files, a batch of lines at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from rescind.errors import ConfigError, DataError, suggest

_LONGEST_LINE = 2**20
_BATCH = 16_384
FORMATS = {".csv": "csv", ".tsv": "tsv", ".inter": "inter", ".parquet": "parquet"}

Batch = tuple[Sequence[int], list[Sequence[str]]]
"""The line each row stands on, and the cells, column by column."""


@dataclass(frozen=True)
class Table:
    """The columns of a file, and its rows in batches.

    For Parquet a "line" is the number of the row, counted from 1.
    """

    file: str
    header: list[str]
    batches: Iterator[Batch]
    unit: str
    """What the number of a row counts: line, or row."""


def open_table(
    path: Path, separator: str | None = None, encoding: str = "utf-8", header: bool = True
) -> Table:
    """Open a file by its ending: .csv, .tsv, .inter (RecBole) or .parquet."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path}: the ending '{path.suffix}' is not known; "
            f"{suggest(path.suffix, FORMATS)} Rename the file, or convert it."
        )
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}, line 1, column 1: the file is empty.")
    if kind == "parquet":
        return _parquet(path)
    separator = separator or ("," if kind == "csv" else "\t")
    if len(separator) != 1:
        raise ConfigError(f"the separator is {separator!r}; it must be one character.")
    return _text(path, separator, encoding, header, quoted=kind == "csv", typed=kind == "inter")


def _text(
    path: Path, separator: str, encoding: str, header: bool, quoted: bool, typed: bool
) -> Table:
    reader = csv.reader(
        _lines(path, encoding),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    first = next((row for row in _rows(reader, 1, path)), None)
    if not first:
        raise DataError(f"{path}, line 1, column 1: there is nothing in it.")
    names = [cell.strip() for cell in first] if header else [str(n + 1) for n in range(len(first))]
    if typed:
        names = [name.rsplit(":", 1)[0] for name in names]
    _check_header(path, names)
    batches = _batches(reader, names, first, header, path)
    return Table(str(path), names, batches, "line")


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Decoded lines; NUL bytes, overlong lines and undecodable bytes are errors with a place."""
    with path.open("rb") as file:
        done, rest = 0, file.read(3).removeprefix(b"\xef\xbb\xbf")
        while True:
            block = file.read(_LONGEST_LINE)
            whole, newline, rest = (rest + block).rpartition(b"\n") if block else (rest, b"", b"")
            if len(rest) > _LONGEST_LINE:
                raise DataError(
                    f"{path}, line {done + whole.count(newline) + 1}, column {_LONGEST_LINE}: the "
                    f"line is longer than {_LONGEST_LINE} bytes. Is the separator or the line "
                    "ending another one?"
                )
            lines = _decode(whole, encoding, path, done).split("\n") if whole or newline else []
            yield from (line + "\n" for line in lines)
            done += len(lines)
            if not block:
                return


def _decode(data: bytes, encoding: str, path: Path, done: int) -> str:
    """Text of some whole lines, `done` lines into the file."""
    text, why = "", "a NUL byte. Is this text? If it is UTF-16, convert it first"
    bad = data.find(b"\0")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if bad < 0:
            bad, why = error.start, f"a byte that is not {encoding}. Pass --encoding, as latin-1"
    except LookupError as error:
        raise ConfigError(f"there is no encoding '{encoding}'; try utf-8.") from error
    if bad >= 0:
        line, column = data.count(b"\n", 0, bad) + 1, bad - data.rfind(b"\n", 0, bad)
        raise DataError(f"{path}, line {done + line}, column {column}: {why}.")
    return text


def _rows(reader: Any, most: int, path: Path) -> list[list[str]]:
    """The next rows; what the csv module dislikes becomes an error with a place."""
    try:
        return list(islice(reader, most))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}, column 1: {error}. Check quotes and line endings "
            "there."
        ) from error


def _check_header(path: Path, names: list[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataError(
                f"{path}, line 1, column {place + 1}: the header has '{name}' twice (first in "
                f"column {names.index(name) + 1}). Rename one of them."
            )


def _batches(
    reader: Any, names: list[str], first: list[str], header: bool, path: Path
) -> Iterator[Batch]:
    """Rows of the right width, turned into columns; the first row is data without a header."""
    width, before, rows = len(names), 0, [first]
    if header:
        before, rows = reader.line_num, _rows(reader, _BATCH, path)
    while rows:
        lines = _line_numbers(rows, before, reader.line_num)
        if set(map(len, rows)) != {width}:
            kept = [(line, row) for line, row in zip(lines, rows, strict=True) if row]
            for line, row in kept:
                if len(row) != width:
                    raise DataError(
                        f"{path}, line {line}, column {min(len(row), width) + 1}: {len(row)} "
                        f"cells, {width} are expected ({', '.join(names)})."
                    )
            lines, rows = [line for line, _ in kept], [row for _, row in kept]
        if header and first in rows:
            line = lines[rows.index(first)]
            raise DataError(f"{path}, line {line}, column 1: the header again. Joined files?")
        if rows:
            yield lines, list(zip(*rows, strict=True))
        before, rows = reader.line_num, _rows(reader, _BATCH, path)


def _line_numbers(rows: list[list[str]], before: int, last: int) -> Sequence[int]:
    """The last line of each row; a quoted cell may run over several."""
    if last - before == len(rows):
        return range(before + 1, last + 1)
    heights = (1 + sum(cell.count("\n") for cell in row) for row in rows)
    return [before + end for end in accumulate(heights)]


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    damage = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    except damage as error:
        raise DataError(
            f"{path}, line 1, column 1: not a Parquet file ({str(error).splitlines()[0]})."
        ) from error
    _check_header(path, names)
    for field in file.schema_arrow:
        if pa.types.is_nested(field.type):
            raise DataError(
                f"{path}, column '{field.name}': lists and structs ({field.type}) are not read. "
                "Leave the column out."
            )

    def batches() -> Iterator[Batch]:
        done = 0
        try:
            for batch in file.iter_batches(_BATCH):
                lines = range(done + 1, done + batch.num_rows + 1)
                yield lines, [[_cell(value) for value in column.to_pylist()] for column in batch]
                done += batch.num_rows
        except damage as error:
            why = str(error).splitlines()[0]
            raise DataError(f"{path}, row {done + 1}: damaged ({why}).") from error

    return Table(str(path), names, batches(), "row")


def _cell(value: object) -> str:
    """A value as text; None is an empty cell."""
    return "" if value is None else str(value)
