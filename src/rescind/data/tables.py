"""Rows out of CSV, TSV, RecBole and Parquet files, one at a time, with their line numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rescind.errors import ConfigError, DataError, suggest

_LONGEST_LINE = 2**20
_BATCH = 65_536
FORMATS = {".csv": "csv", ".tsv": "tsv", ".inter": "inter", ".parquet": "parquet"}


@dataclass(frozen=True)
class Table:
    """The columns of a file, and its rows with the line each stands on.

    For Parquet a "line" is the number of the row, counted from 1.
    """

    file: str
    header: list[str]
    rows: Iterator[tuple[int, list[str]]]
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
    rows = _numbered(reader, path)
    line, first = next(rows, (1, []))
    if not first:
        raise DataError(f"{path}, line 1, column 1: there is nothing in it.")
    names = [cell.strip() for cell in first] if header else [str(n + 1) for n in range(len(first))]
    if typed:
        names = [name.rsplit(":", 1)[0] for name in names]
    _check_header(path, names)
    body = _checked(rows, names, first, path) if header else _again(line, first, rows, names, path)
    return Table(str(path), names, body, "line")


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Decoded lines; NUL bytes, overlong lines and undecodable bytes are errors with a place."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(_LONGEST_LINE + 1):
            number += 1
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if b"\0" in raw:
                raise DataError(
                    f"{path}, line {number}, column {raw.index(0) + 1}: a NUL byte. This is not "
                    "text in UTF-8; if it is UTF-16, convert it first."
                )
            if len(raw) > _LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number}, column {_LONGEST_LINE}: the line is longer than "
                    f"{_LONGEST_LINE} bytes. Is the separator or the line ending another one?"
                )
            try:
                yield raw.decode(encoding)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}, column {error.start + 1}: a byte that is not "
                    f"{encoding}. Pass --encoding, for example --encoding latin-1."
                ) from error
            except LookupError as error:
                raise ConfigError(f"there is no encoding '{encoding}'; try utf-8.") from error


def _numbered(reader: Iterable[list[str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of their last line; blank lines are skipped."""
    rows = iter(reader)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            line = getattr(reader, "line_num", 0)
            raise DataError(
                f"{path}, line {line}, column 1: {error}. Check quotes and line endings there."
            ) from error
        if row:
            yield getattr(reader, "line_num", 0), row


def _check_header(path: Path, names: list[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataError(
                f"{path}, line 1, column {place + 1}: the header has '{name}' twice (first in "
                f"column {names.index(name) + 1}). Rename one of them."
            )


def _checked(
    rows: Iterator[tuple[int, list[str]]], names: list[str], header: list[str], path: Path
) -> Iterator[tuple[int, list[str]]]:
    width = len(names)
    for line, row in rows:
        if len(row) != width:
            raise DataError(
                f"{path}, line {line}, column {min(len(row), width) + 1}: {len(row)} cells, the "
                f"header has {width} ({', '.join(names)})."
            )
        if row == header:
            raise DataError(
                f"{path}, line {line}, column 1: the header again. Were two files joined?"
            )
        yield line, row


def _again(
    line: int, first: list[str], rows: Iterator[tuple[int, list[str]]], names: list[str], path: Path
) -> Iterator[tuple[int, list[str]]]:
    """All rows of a file without a header, the one already read included."""
    yield line, first
    yield from _checked(rows, names, [], path)


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}, line 1, column 1: not a Parquet file ({str(error).splitlines()[0]})."
        ) from error
    names = file.schema_arrow.names
    _check_header(path, names)
    for field in file.schema_arrow:
        if pa.types.is_nested(field.type):
            raise DataError(
                f"{path}, column '{field.name}': lists and structs ({field.type}) are not read. "
                "Leave the column out."
            )

    def rows() -> Iterator[tuple[int, list[str]]]:
        number = 0
        try:
            for batch in file.iter_batches(_BATCH):
                columns = [[_cell(value) for value in column.to_pylist()] for column in batch]
                for row in zip(*columns, strict=True):
                    number += 1
                    yield number, list(row)
        except (pa.ArrowException, OSError) as error:
            why = str(error).splitlines()[0]
            raise DataError(f"{path}, row {number + 1}: damaged ({why}).") from error

    return Table(str(path), names, rows(), "row")


def _cell(value: object) -> str:
    """A value as text; None is an empty cell."""
    return "" if value is None else str(value)
