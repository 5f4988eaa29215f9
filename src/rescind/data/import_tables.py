"""Read columns from CSV, TSV, RecBole, sequence and Parquet files, in batches of lines."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from rescind.data.import_columns import Columns, Wanted, plain_parquet, plain_text
from rescind.data.sources.text_columns import place_of
from rescind.errors import ConfigError, DataError

_LONGEST_LINE = 2**20
_LONGEST_CELL = 2**12
_LONGEST_NAME = 256
_MOST_COLUMNS = 1_000
MOST_ROWS = 50_000_000
_FEW_ROWS, _ROWS_A_BYTE = 1_000_000, 20  # lists of real people need a byte a row or more
_LARGEST_COLUMN = 2**29  # unpacked bytes of a column in one row group
_SMALL_COLUMN, _HIGHEST_RATIO = 2**24, 200  # as in archives: a bomb shrinks a thousand times
BATCH = 16_384
FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".inter": "inter", ".item": "inter", ".txt": "sequence",
    ".parquet": "parquet",
}  # fmt: skip

Batch = tuple[Sequence[int], list[Sequence[str]]]
"""The line number of each row, and the cells, column by column."""


@dataclass(frozen=True)
class Table:
    """The header of a file, and its rows in batches.

    For Parquet, a "line" is a row number, counted from 1.
    """

    file: str
    header: list[str]
    batches: Callable[[Collection[int]], Iterator[Batch]]
    """Reads the columns at these positions. The others may be left empty."""
    plain: Callable[[Wanted], Columns | None]
    """Reads whole columns at once; None if something is unusual, so that `batches` must read it."""
    unit: str
    """What row numbers count: line, or row."""
    in_order: bool = False
    """The rows of a user are in the order of their history."""


def check_there(path: Path) -> None:
    """Refuse a file that is not there."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file{' but a folder' * path.is_dir()}.")


def open_table(
    path: Path,
    separator: str | None = None,
    encoding: str = "utf-8",
    header: bool = True,
    max_rows: int | None = None,
) -> Table:
    """Open a file by its extension: .csv, .tsv, .inter (RecBole), .txt (sequences) or .parquet.

    A .txt file has lines `user item` without a header, from a user's first item to the last: the
    format of SASRec and of those who compare with it.

    max_rows: Default: 50 million, and for Parquet at most 20 rows a byte: a file may state more
    rows than it has bytes
    """
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows must be at least 1, got {max_rows}.")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path}: the extension '{path.suffix}' is not supported; {', '.join(FORMATS)} are."
        )
    check_there(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path}, line 1, column 1: the file is empty.")
    if kind == "parquet":
        return _parquet(path, max_rows)
    header = header and kind != "sequence"
    separator = separator or {"csv": ",", "sequence": " "}.get(kind, "\t")
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
    if kind == "sequence":
        if len(names) != 2:
            raise DataError(
                f"{path}, line 1, column 1: {len(names)} cells. A .txt file has lines `user item`, "
                f"in order: give their --separator, or rename a table to .csv."
            )
        names = ["user", "item"]
    check_header(path, names)

    def batches(_: Collection[int]) -> Iterator[Batch]:
        done = 0
        for lines, columns in _batches(reader, names, first, header, path):
            done += len(lines)
            _check_rows(path, done, max_rows or MOST_ROWS)
            yield lines, columns

    def plain(wanted: Wanted) -> Columns | None:
        if codecs.lookup(encoding).name != "utf-8":
            return None
        quotes, most = kind == "csv", max_rows or MOST_ROWS
        return plain_text(path, separator, quotes, first, header, most, wanted)

    return Table(str(path), names, batches, plain, "line", in_order=kind == "sequence")


def _check_rows(path: Path, rows: int, most: int) -> None:
    if rows > most:
        raise DataError(
            f"{path}: it has {rows:,} rows or more; at most {most:,} are read from a file of its "
            f"size. If they are right: --max-rows {rows}."
        )


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
            bad, why = error.start, f"a byte that is not {encoding}. Give --encoding latin-1"
    except LookupError as error:
        raise ConfigError(f"the encoding '{encoding}' is not known; try utf-8.") from error
    if bad >= 0:
        raise DataError(f"{path}, {place_of(data, bad, done)}: {why}.")
    return text


def _rows(reader: Any, limit: int, path: Path) -> list[list[str]]:
    """Read the next rows; csv errors become a DataError with a line number."""
    rows = []
    try:
        for row in islice(reader, limit):
            if len(row) > _MOST_COLUMNS:  # at once: a line of separators is eight times as large
                _too_many_columns(f"{path}, line {reader.line_num}", len(row))
            rows.append(row)
        return rows
    except csv.Error as error:
        place = f"line {reader.line_num}, column 1"
        raise DataError(f"{path}, {place}: {error}. Check quotes and line endings.") from error


def _too_many_columns(where: str, columns: int) -> None:
    raise DataError(f"{where}: it has {columns:,} columns; at most {_MOST_COLUMNS:,} are read.")


def check_header(path: Path | str, names: list[str]) -> None:
    """Refuse too many columns, too long names, and a name that occurs twice."""
    if len(names) > _MOST_COLUMNS:
        _too_many_columns(str(path), len(names))
    for index, name in enumerate(names):
        if len(name) > _LONGEST_NAME or name in names[:index]:
            raise DataError(
                f"{path}, line 1, column {index + 1}: the header has '{name[:_LONGEST_NAME]}' "
                f"twice, or it is longer than {_LONGEST_NAME} characters. Rename it, or give "
                f"--no-header."
            )


def _batches(
    reader: Any, names: list[str], first: list[str], header: bool, path: Path
) -> Iterator[Batch]:
    """Yield rows as batches of columns; without a header the first row is data."""
    width, before, rows = len(names), 0, [first]
    if header:
        before, rows = reader.line_num, _rows(reader, BATCH, path)
    while rows:
        lines = _line_numbers(rows, before, reader.line_num)
        if set(map(len, rows)) != {width}:
            filled = [(line, row) for line, row in zip(lines, rows, strict=True) if row]
            for line, row in filled:
                if len(row) != width:
                    raise DataError(
                        f"{path}, line {line}, column {min(len(row), width) + 1}: {len(row)} "
                        f"cells, {width} are expected ({', '.join(names)}). Mend the file there: "
                        f"--drop-bad-rows drops no rows of another width."
                    )
            lines, rows = [line for line, _ in filled], [row for _, row in filled]
        if header and first in rows:
            line = lines[rows.index(first)]
            raise DataError(f"{path}, line {line}, column 1: a second header. Remove it.")
        if rows:
            yield lines, list(zip(*rows, strict=True))
        before, rows = reader.line_num, _rows(reader, BATCH, path)


def _line_numbers(rows: list[list[str]], before: int, last: int) -> Sequence[int]:
    """Return the last line of each row; a quoted cell may contain several lines."""
    if last - before == len(rows):
        return range(before + 1, last + 1)
    heights = (1 + sum(cell.count("\n") for cell in row) for row in rows)
    return [before + end for end in accumulate(heights)]


def _parquet(path: Path, max_rows: int | None) -> Table:
    """Open a Parquet file. What it states about its size is checked before anything is unpacked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
    try:
        file = pq.ParquetFile(path)
        schema, about = file.schema_arrow, file.metadata
    except errors as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{path}, line 1, column 1: not a Parquet file ({why}).") from error
    names = schema.names
    check_header(path, names)
    for field in schema:
        if pa.types.is_nested(field.type):
            raise DataError(f"{path}, column '{field.name}': lists and structs cannot be read.")
    by_size = max(_FEW_ROWS, _ROWS_A_BYTE * path.stat().st_size)
    most = max_rows or min(MOST_ROWS, by_size)
    _check_rows(path, about.num_rows, most)

    def check_columns(wanted: Collection[int]) -> None:
        for group in range(about.num_row_groups):
            for at in wanted:
                _check_column(path, names[at], about.row_group(group).column(at))

    def plain(wanted: Wanted) -> Columns | None:
        check_columns(wanted.positions.values())
        return plain_parquet(path, names, most, wanted)

    def batches(wanted: Collection[int]) -> Iterator[Batch]:
        done, columns = 0, [names[at] for at in sorted(wanted)]
        check_columns(wanted)
        try:
            # Repeated text stays a dictionary, so that its length is known before it is repeated.
            text = [n for n in columns if _is_text(schema.field(n).type)]
            opened = pq.ParquetFile(path, read_dictionary=text)
            for batch in opened.iter_batches(BATCH, columns=columns):
                batch.validate(full=True)
                lines = range(done + 1, done + batch.num_rows + 1)
                cells: list[Sequence[str]] = [()] * len(names)
                for name in columns:
                    cells[names.index(name)] = cells_of(path, name, batch.column(name))
                yield lines, cells
                done += batch.num_rows
        except errors as error:
            why = str(error).splitlines()[0]
            raise DataError(f"{path}, row {done + 1}: damaged ({why}).") from error

    return Table(str(path), names, batches, plain, "row")


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _check_column(path: Path, name: str, about: Any) -> None:
    size, packed = about.total_uncompressed_size, about.total_compressed_size
    most = min(_LARGEST_COLUMN, max(_SMALL_COLUMN, _HIGHEST_RATIO * packed))
    if size > most:
        raise DataError(
            f"{path}, column '{name}': {packed:,} bytes unpack to {size:,}; at most {most:,}."
        )


def cells_of(path: Path | str, name: str, column: Any) -> list[str]:
    """Return the cells of a column as text; text is measured before it is made."""
    import pyarrow as pa
    import pyarrow.compute as pc

    held = column.dictionary if pa.types.is_dictionary(column.type) else column
    if _is_text(held.type) or pa.types.is_large_string(held.type):
        longest = pc.max(pc.binary_length(held)).as_py() or 0
        if longest > _LONGEST_CELL:
            raise DataError(
                f"{path}, column '{name}': a cell has {longest:,} bytes; at most {_LONGEST_CELL:,}."
            )
    return ["" if value is None else str(value) for value in column.to_pylist()]
