"""Read columns from CSV, TSV, RecBole and Parquet files, in batches of lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from rescind.data.sources.text_columns import place_of
from rescind.errors import ConfigError, DataError, suggest

_LONGEST_LINE = 2**20
_BATCH = 16_384
FORMATS = {".csv": "csv", ".tsv": "tsv", ".inter": "inter", ".parquet": "parquet"}

Batch = tuple[Sequence[int], list[Sequence[str]]]
"""The line number of each row, and the cells, column by column."""


@dataclass(frozen=True)
class Table:
    """The header of a file, and its rows in batches.

    For Parquet, a "line" is a row number, counted from 1.
    """

    file: str
    header: list[str]
    batches: Iterator[Batch]
    unit: str
    """What row numbers count: line, or row."""


def open_table(
    path: Path, separator: str | None = None, encoding: str = "utf-8", header: bool = True
) -> Table:
    """Open a file by its extension: .csv, .tsv, .inter (RecBole) or .parquet."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path}: the extension '{path.suffix}' is not supported; "
            f"{suggest(path.suffix, FORMATS)} Rename or convert the file."
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
    quoting: Any = csv.QUOTE_MINIMAL if kind == "csv" else csv.QUOTE_NONE
    lines = _lines(path, encoding)
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    first = next(iter(_rows(reader, 1, path)), None)
    if not first:
        raise DataError(f"{path}, line 1, column 1: this line is empty.")
    names = [cell.strip() for cell in first] if header else [str(n + 1) for n in range(len(first))]
    if kind == "inter":
        names = [name.rsplit(":", 1)[0] for name in names]
    _check_header(path, names)
    return Table(str(path), names, _batches(reader, names, first, header, path), "line")


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield decoded lines; NUL bytes, too long lines and invalid bytes raise an error."""
    with path.open("rb") as file:
        done, rest = 0, file.read(3).removeprefix(b"\xef\xbb\xbf")
        while True:
            block = file.read(_LONGEST_LINE)
            whole, newline, rest = (rest + block).rpartition(b"\n") if block else (rest, b"", b"")
            if len(rest) > _LONGEST_LINE:
                raise DataError(
                    f"{path}, line {done + whole.count(newline) + 1}, column {_LONGEST_LINE}: "
                    f"longer than {_LONGEST_LINE} bytes. Check separator and line endings."
                )
            lines = _decode(whole, encoding, path, done).split("\n") if whole or newline else []
            yield from (line + "\n" for line in lines)
            done += len(lines)
            if not block:
                return


def _decode(data: bytes, encoding: str, path: Path, done: int) -> str:
    """Decode some whole lines, `done` lines into the file."""
    text, why = "", "a NUL byte. Use a text file; convert UTF-16 to UTF-8"
    bad = data.find(b"\0")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if bad < 0:
            bad, why = error.start, f"a byte that is not {encoding}. Pass another --encoding"
    except LookupError as error:
        raise ConfigError(f"the encoding '{encoding}' is not known; try utf-8.") from error
    if bad >= 0:
        raise DataError(f"{path}, {place_of(data, bad, done)}: {why}.")
    return text


def _rows(reader: Any, limit: int, path: Path) -> list[list[str]]:
    """Read the next rows; csv errors become a DataError with a line number."""
    try:
        return list(islice(reader, limit))
    except csv.Error as error:
        place = f"line {reader.line_num}, column 1"
        raise DataError(f"{path}, {place}: {error}. Check quotes and line endings.") from error


def _check_header(path: Path, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise DataError(
                f"{path}, line 1, column {index + 1}: the header has '{name}' twice (first in "
                f"column {names.index(name) + 1}). Rename one of them."
            )


def _batches(
    reader: Any, names: list[str], first: list[str], header: bool, path: Path
) -> Iterator[Batch]:
    """Yield rows as batches of columns; without a header the first row is data."""
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
            raise DataError(f"{path}, line {line}, column 1: a second header. Remove it.")
        if rows:
            yield lines, list(zip(*rows, strict=True))
        before, rows = reader.line_num, _rows(reader, _BATCH, path)


def _line_numbers(rows: list[list[str]], before: int, last: int) -> Sequence[int]:
    """Return the last line of each row; a quoted cell may contain several lines."""
    if last - before == len(rows):
        return range(before + 1, last + 1)
    heights = (1 + sum(cell.count("\n") for cell in row) for row in rows)
    return [before + end for end in accumulate(heights)]


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    except errors as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{path}, line 1, column 1: not a Parquet file ({why}).") from error
    _check_header(path, names)
    for field in file.schema_arrow:
        if pa.types.is_nested(field.type):
            raise DataError(
                f"{path}, column '{field.name}': lists and structs ({field.type}) are not "
                "supported. Remove the column."
            )

    def batches() -> Iterator[Batch]:
        done = 0
        try:
            for batch in file.iter_batches(_BATCH):
                lines = range(done + 1, done + batch.num_rows + 1)
                columns = [column.to_pylist() for column in batch]
                yield lines, [["" if v is None else str(v) for v in column] for column in columns]
                done += batch.num_rows
        except errors as error:
            why = str(error).splitlines()[0]
            raise DataError(f"{path}, row {done + 1}: damaged ({why}).") from error

    return Table(str(path), names, batches(), "row")
