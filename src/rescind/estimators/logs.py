"""A log in Parquet files, one row per record: found, cut into pieces, read piece by piece.

A user's rows may lie in any files. pyarrow is imported when a log is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rescind.errors import DataError
from rescind.estimators.frames import RECORD, Frame, Id, Ints, roles_of, times_in

ROWS = 2**21
"""Rows of a piece, or those of one row group; changes speed and memory only."""


def is_log(source: Any) -> bool:
    """Tell whether this names Parquet files: a path, a list of paths or a `pyarrow.dataset`."""
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(each, str | Path) for each in source)
    return isinstance(source, str | Path) or hasattr(source, "get_fragments")


class Piece(NamedTuple):
    """Some row groups of one file."""

    number: int
    fragment: Any
    rows: int
    """As the footer of the file says."""


class Rows(NamedTuple):
    """The columns of a piece, as Arrow arrays of int64 or large_string; times as numbers."""

    user: Any
    item: Any
    time: Ints | None


@dataclass(frozen=True)
class Columns:
    """Which columns of the files hold user, item and time."""

    schema: Any
    names: Mapping[str, str]
    """The column of each role; time only if it is read."""

    def read(self, source: Any, **options: Any) -> Rows:
        """Read a fragment or a dataset with one thread."""
        import pyarrow

        try:
            scanner = source.scanner(
                columns=list(self.names.values()), use_threads=False, **options
            )
            table = scanner.to_table()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"the log cannot be read: {error}. Check the files.") from None
        got = {role: table[name] for role, name in self.names.items()}
        time = times_in(got["time"]) if "time" in got else None
        return Rows(_ids(got["user"], "user"), _ids(got["item"], "item"), time)


@dataclass(frozen=True)
class Log:
    """Parquet files of one schema, as they were when they were opened."""

    source: Any
    dataset: Any
    columns: Columns

    @classmethod
    def opened(cls, source: Any, columns: Mapping[str, str] | None, timed: bool) -> Log:
        """Find the files and columns, or raise. source: see `is_log`; a path may be a pattern"""
        dataset = source if hasattr(source, "get_fragments") else _dataset(source)
        names = roles_of(dataset.schema.names, columns or {}, RECORD, () if timed else ("time",))
        names = {role: name for role, name in names.items() if timed or role != "time"}
        dataset = _again(dataset, _wide(dataset.schema, names))
        return cls(source, dataset, Columns(dataset.schema, names))

    def reopened(self) -> Log:
        """Return the log with the files that are there now: Arrow remembers their footers."""
        return self.opened(self.source, self.columns.names, "time" in self.columns.names)

    def pieces(self) -> list[Piece]:
        """Return the log in pieces of whole row groups, or raise if it is empty."""
        made: list[Piece] = []
        for fragment in self.dataset.get_fragments():
            if not hasattr(fragment, "row_groups"):
                raise DataError("the dataset is not in Parquet files. Write the log as such.")
            self._must_agree(fragment)
            for chosen, rows in _grouped(fragment.row_groups):
                made.append(Piece(len(made), fragment.subset(row_group_ids=chosen), rows))
        if not made:
            raise DataError("the log has no rows. Name files with records.")
        return made

    def _must_agree(self, fragment: Any) -> None:
        """Raise if a file has text where others have numbers: Arrow would convert one of them."""
        own = fragment.physical_schema
        for name in (self.columns.names["user"], self.columns.names["item"]):
            if name in own.names and _is_text(own.field(name)) != _is_text(
                self.columns.schema.field(name)
            ):
                raise DataError(f"'{name}' is {own.field(name).type} in {fragment.path} alone.")

    def of_users(self, users: Sequence[Id]) -> Frame:
        """Read all rows of some users: one pass over the log."""
        import pyarrow
        from pyarrow import compute

        column = self.dataset.schema.field(self.columns.names["user"])
        kind, text = getattr(column.type, "value_type", column.type), _is_text(column)
        wanted = pyarrow.array([each for each in users if isinstance(each, str) == text], kind)
        where = compute.field(column.name).cast(kind).isin(wanted)
        rows = self.columns.read(self.dataset, filter=where)
        user, item = rows.user.dictionary_encode(), rows.item.dictionary_encode()
        ids = [each.dictionary.to_pylist() for each in (user, item)]
        code = [each.indices.to_numpy().astype(np.int64) for each in (user, item)]
        return Frame(ids[0], code[0], ids[1], code[1], rows.time)


def _is_text(column: Any) -> bool:
    return "string" in str(getattr(column.type, "value_type", column.type))


def _wide(schema: Any, names: Mapping[str, str]) -> Any:
    """Return the schema with whole numbers of 64 bits as ids, so that files with fewer bits fit."""
    import pyarrow

    for name in (names["user"], names["item"]):
        column, at = schema.field(name), schema.get_field_index(name)
        if pyarrow.types.is_integer(column.type):
            schema = schema.set(at, column.with_type(pyarrow.int64()))
    return schema


def _grouped(groups: Iterable[Any]) -> Iterator[tuple[list[int], int]]:
    """Yield the numbers of row groups that make up a piece, and their rows."""
    chosen: list[int] = []
    rows = 0
    for group in groups:
        if chosen and rows + group.num_rows > ROWS:
            yield chosen, rows
            chosen, rows = [], 0
        if group.num_rows:
            chosen.append(group.id)
            rows += group.num_rows
    if chosen:
        yield chosen, rows


def _again(dataset: Any, schema: Any) -> Any:
    """Return a dataset of files with this schema, and with footers that are read anew."""
    import pyarrow.dataset

    if not isinstance(dataset, pyarrow.dataset.FileSystemDataset):
        return dataset
    return pyarrow.dataset.dataset(
        dataset.files, schema=schema, format=dataset.format,
        filesystem=dataset.filesystem, partitioning=dataset.partitioning,
    )  # fmt: skip


def _dataset(source: str | Path | Iterable[str | Path]) -> Any:
    """Return the files of a folder, a pattern or a list as one dataset."""
    import pyarrow
    import pyarrow.dataset

    given = [source] if isinstance(source, str | Path) else list(source)
    found: list[str] = []
    for each in map(str, given):
        here = sorted(glob(each, recursive=True)) if has_magic(each) else [each]
        missing = [path for path in here if not Path(path).exists()]
        if missing or not here:
            raise DataError(f"there is no file {each}. Give Parquet files, a folder or a pattern.")
        found += here
    try:
        folder = len(found) == 1 and Path(found[0]).is_dir()
        return pyarrow.dataset.dataset(
            found[0] if folder else found, format="parquet", partitioning="hive"
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"the log cannot be opened: {error}. Give Parquet files with the same columns."
        ) from None


def _ids(column: Any, role: str) -> Any:
    """Return a column of ids as int64 or large_string, or raise."""
    import pyarrow
    import pyarrow.types as kinds

    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if column.null_count:
        raise DataError(f"{column.null_count:,} rows of the log have no {role}. Remove them.")
    text = str(kind) in {"string", "large_string", "string_view"}
    if not text and not kinds.is_integer(kind):
        raise DataError(f"the column of the {role} is {kind}; ids are text or whole numbers.")
    try:
        plain = column.cast(kind).cast(pyarrow.large_string() if text else pyarrow.int64())
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"the column of the {role} cannot be read: {error}.") from None
    return pyarrow.concat_arrays([*plain.chunks, pyarrow.array([], plain.type)])
