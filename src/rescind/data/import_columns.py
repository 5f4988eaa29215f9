"""Read plain files column by column; whatever is unusual is left to the careful reader.

The careful reader (`import_tables`, `import_cells`) reads every cell as text and names the place of
an invalid one. Most files are plain, and Arrow reads them many times faster. Both functions here
return None for a file, a column or a cell that the two could read differently, and for everything
invalid. So they raise no errors about cells, and what they return is what the careful reader would.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rescind.data.import_cells import (
    LONGEST_ID,
    PER_SECOND,
    BadCell,
    check_ids,
    check_ratings,
    check_times,
    is_format,
    read_splits,
)

_BLOCK = 2**22
_WINDOW = 2**16  # a line break in each: no line is longer than the csv module reads
_ROWS = 2**20
_TOGETHER = 2**22  # rows whose texts are numbered together: each dictionary is looked up once more
_LONGEST = 4 * LONGEST_ID  # bytes


class Columns(NamedTuple):
    """Checked columns in the order of the file, and ids by first appearance."""

    rows: dict[str, NDArray[Any]]
    """By role: user and item (int32), rating (float32), time (int64), split (int8)."""
    users: list[str]
    items: list[str]


class Wanted(NamedTuple):
    """What is read from a file."""

    positions: Mapping[str, int]
    """The column of each role."""
    text_ids: bool
    unit: str
    """Of times: s or ms."""


class _Unusual(Exception):
    """The careful reader must read this file."""


def plain_text(
    path: Path, separator: str, quotes: bool, first: Sequence[str], header: bool, most: int,
    wanted: Wanted,
) -> Columns | None:  # fmt: skip
    """Read a table of text; None if it is unusual.

    quotes: a quote character has a meaning    first: the cells of the first line
    """
    import pyarrow as pa
    from pyarrow import csv

    names = [str(n) for n in range(len(first))]
    text = pa.string()

    def read(ids: Any) -> Columns:
        types = {"user": ids, "item": ids, "rating": pa.float64(), "time": pa.int64()}
        kinds = {names[at]: types.get(role, text) for role, at in wanted.positions.items()}
        batches = csv.open_csv(
            path,
            csv.ReadOptions(block_size=_BLOCK, column_names=names, skip_rows=int(header)),
            csv.ParseOptions(delimiter=separator, quote_char=False),
            csv.ConvertOptions(
                column_types=kinds, include_columns=list(kinds), null_values=[], check_utf8=False
            ),
        )
        return _columns(batches, list(kinds), most, wanted)

    if not separator.isascii() or separator in '"\r\n':
        return None
    try:
        timed = "time" in wanted.positions
        if _check_bytes(path, separator.encode(), quotes, header, timed):
            try:
                columns = read(pa.int64())
            except pa.ArrowInvalid:
                columns = read(text)
        else:
            columns = read(text)
    except (_Unusual, BadCell, pa.ArrowException, UnicodeDecodeError):
        return None
    again = header and first[wanted.positions["user"]] in set(columns.users)
    return None if again else columns  # perhaps a second header


def plain_parquet(path: Path, names: Sequence[str], most: int, wanted: Wanted) -> Columns | None:
    """Read a Parquet file whose stated sizes were checked; None if it is unusual."""
    import pyarrow as pa
    from pyarrow import parquet

    read = [names[at] for at in wanted.positions.values()]
    try:
        schema = parquet.read_schema(path)
        # Repeated text stays a dictionary, so that its length is known before it is repeated.
        text = [n for n in read if pa.types.is_string(schema.field(n).type)]
        file = parquet.ParquetFile(path, read_dictionary=text)
        return _columns(file.iter_batches(_ROWS, columns=read), read, most, wanted)
    except (_Unusual, BadCell, pa.ArrowException, OSError, UnicodeDecodeError):
        return None


def plain_arrow(table: Any, names: Sequence[str], most: int, wanted: Wanted) -> Columns | None:
    """Read an Arrow table in memory; None if it is unusual."""
    import pyarrow as pa

    read = [names[at] for at in wanted.positions.values()]
    try:
        return _columns(table.select(read).to_batches(_ROWS), read, most, wanted)
    except (_Unusual, BadCell, pa.ArrowException, UnicodeDecodeError):
        return None


def _check_bytes(path: Path, separator: bytes, quotes: bool, header: bool, timed: bool) -> bool:
    """Look once at every byte, also of columns that nobody asked for.

    header: the first line was read    timed: there is a time, and Arrow would read 0x10 as one

    returns: whether every whole number is written as `str` writes it, so that ids may be read as
    numbers
    """
    decode = codecs.getincrementaldecoder("utf-8")().decode
    unusual = [b"\0", *([b"0x", b"0X"] if timed else [])]
    before, begun, as_written = b"\n", False, True
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            joined = before + block  # two or three characters may lie in two blocks
            ends = joined.count(b"\r", 0, -1) if b"\r" in joined else 0
            windows = range(0, len(block) - _WINDOW + 1, _WINDOW)
            if (
                any(one[-1:] in joined and one in joined for one in unusual)  # one byte is fast
                or (
                    quotes
                    and block.find(b'"', 0 if begun or not header else block.find(b"\n")) >= 0
                )
                or ends != (joined.count(b"\r\n") if ends else 0)
                or any(block.find(b"\n", at, at + _WINDOW) < 0 for at in windows)
                or (not begun and block.startswith(codecs.BOM_UTF8))
            ):
                raise _Unusual
            decode(block)
            as_written = as_written and _as_written(joined, separator)
            before, begun = joined[-2:], True
        decode(b"", final=True)
    if before.endswith(b"\r"):
        raise _Unusual
    return as_written


def _as_written(text: bytes, separator: bytes) -> bool:
    """Return whether no number has a sign, a space, another base, or a zero before its digits."""
    if any(one in text for one in (b"+", b"-", b" ", b"\t", b"x", b"X") if one != separator):
        return False
    at = np.frombuffer(text, dtype=np.uint8)
    begins = (at[:-2] == ord(separator)) | (at[:-2] == ord("\n"))
    begins &= at[1:-1] == ord("0")
    begins &= at[2:] - np.uint8(ord("0")) < 10  # below "0" it is large: unsigned
    return not begins.any()


def _columns(batches: Any, names: list[str], most: int, wanted: Wanted) -> Columns:
    """Read batches. names: the column of each role in the batches"""
    import pyarrow as pa

    if len(set(names)) < len(wanted.positions):  # one column has two roles
        raise _Unusual
    parts: dict[str, list[Any]] = {role: [] for role in wanted.positions}
    ids: dict[str, list[str]] = {}
    done = since = 0
    for batch in batches:
        batch.validate(full=True)  # compiled code trusts the numbers of a dictionary
        done += batch.num_rows
        if done > most:
            raise _Unusual
        for (role, held), name in zip(parts.items(), names, strict=True):
            held.append(_checked(role, batch.column(name), wanted.unit))
        since += batch.num_rows
        if since >= _TOGETHER:
            since = 0
            for role in parts.keys() - {"rating", "time"}:
                _encode(parts[role])
    if not done:
        raise _Unusual
    rows: dict[str, NDArray[Any]] = {}
    for role in wanted.positions:
        held = parts.pop(role)  # so that no column is held twice
        if role in ("rating", "time"):
            rows[role] = np.concatenate(held)
        else:
            _encode(held)
            rows[role], ids[role] = _numbered(held)
    pa.default_memory_pool().release_unused()  # it keeps what was freed, and sorting needs memory
    for role in ("user", "item"):
        check_ids(ids[role], wanted.text_ids)
    if "split" in ids:
        rows["split"] = read_splits([cell.strip() for cell in ids["split"]])[rows["split"]]
    return Columns(rows, ids["user"], ids["item"])


def _checked(role: str, column: Any, unit: str) -> Any:
    """Return ratings and times as numbers that were checked, text as a dictionary."""
    import pyarrow as pa

    if column.null_count:
        raise _Unusual
    if role == "rating":
        return _ratings(column)
    if role == "time":
        return _times(column, unit)
    if pa.types.is_string(column.type):
        return column
    return _narrow(column) if role != "split" and pa.types.is_integer(column.type) else column


def _encode(parts: list[Any]) -> None:
    """Replace the last parts that are texts by numbers of one dictionary."""
    import pyarrow as pa

    texts: list[Any] = []
    while parts and pa.types.is_string(parts[-1].type):
        texts.insert(0, parts.pop())
    if texts:
        chunks = pa.chunked_array(texts).dictionary_encode().chunks  # with one dictionary
        codes = pa.concat_arrays([chunk.indices for chunk in chunks])
        parts.append(pa.DictionaryArray.from_arrays(codes, chunks[0].dictionary))


def _narrow(column: Any) -> Any:
    """Return whole numbers from 0 in 32 bits, which need half of the memory; others as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    low, high = pc.min_max(column).as_py().values()
    return column.cast(pa.int32(), safe=False) if low >= 0 and high < 2**31 else column


def _ratings(column: Any) -> NDArray[np.float32]:
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_float64(kind) or pa.types.is_float32(kind) or pa.types.is_integer(kind)):
        raise _Unusual
    return check_ratings(column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False))


def _times(column: Any, unit: str) -> NDArray[np.int64]:
    import pyarrow as pa

    if is_format(unit):
        raise _Unusual
    if pa.types.is_timestamp(column.type):
        if column.type.tz not in (None, "UTC"):
            raise _Unusual
        values, scale = column.cast(pa.int64()).to_numpy(), PER_SECOND[column.type.unit]
        if scale == PER_SECOND["ns"] and (values % 1000).any():
            raise _Unusual  # finer than a datetime
        return check_times(values // scale)
    if not pa.types.is_signed_integer(column.type):
        raise _Unusual
    values = column.to_numpy().astype(np.int64, copy=False)
    return check_times(values if unit == "s" else values // PER_SECOND[unit])


def _numbered(parts: list[Any]) -> tuple[NDArray[np.int32], list[str]]:
    """Number whole numbers or texts by first appearance; return the numbers and the texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len({part.type for part in parts}) > 1:  # some numbers do not fit into 32 bits
        parts = [part.cast(pa.int64()) for part in parts]
    column = pa.chunked_array(parts)
    kind = column.type
    if pa.types.is_integer(kind):
        low, high = pc.min_max(column).as_py().values()
        if low >= 0 and high < len(column) + 2**20:  # a table of all numbers is small
            values = np.concatenate([part.to_numpy() for part in parts], dtype=np.int32,
                                    casting="unsafe")  # fmt: skip
            parts.clear()
            del column
            numbers, found = _by_appearance(values, high + 1)
            return numbers, found.astype(str).tolist()
        column = column.dictionary_encode()
    elif not (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)):
        raise _Unusual
    distinct = column.chunk(column.num_chunks - 1).dictionary
    if not all(part.dictionary.equals(distinct[: len(part.dictionary)]) for part in column.chunks):
        column = column.unify_dictionaries()
        distinct = column.chunk(0).dictionary
    is_text = pa.types.is_string(distinct.type)
    if distinct.null_count or (is_text and pc.max(pc.binary_length(distinct)).as_py() > _LONGEST):
        raise _Unusual
    texts = [str(value) for value in distinct.to_pylist()]
    if len(set(texts)) < len(texts):
        raise _Unusual
    codes = np.concatenate([part.indices.to_numpy() for part in column.chunks])
    numbers, found = _by_appearance(codes, len(texts))
    return numbers, [texts[n] for n in found.tolist()]


def _by_appearance(codes: NDArray[Any], size: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Renumber codes below `size` by first appearance; return them, and the code of each number.

    codes: [n]
    """
    rows = len(codes)
    if _appear(codes) and codes.max() == size - 1:
        return codes.astype(np.int32, copy=False), np.arange(size)
    first = np.full(size, rows, dtype=np.int32)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1, dtype=np.int32)  # the last one written stays
    found = np.flatnonzero(first < rows)
    found = found[np.argsort(first[found])]
    number = np.empty(size, dtype=np.int32)
    number[found] = np.arange(len(found), dtype=np.int32)
    return number[codes], found


def _appear(codes: NDArray[Any]) -> bool:
    """Return whether codes are numbered by first appearance already."""
    highest = np.maximum.accumulate(codes)
    return bool(codes[0] == 0 and (highest[1:] - highest[:-1] < 2).all())
