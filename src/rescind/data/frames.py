"""Datasets from frames and matrices in memory.

A frame is checked cell by cell as a file is: the same columns, the same errors. No library of
frames is imported here: they speak Arrow (`__arrow_c_stream__`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace as replace_fields
from typing import Any

import numpy as np

from rescind.data.dataset import Dataset
from rescind.data.import_columns import plain_arrow
from rescind.data.import_dataset import Reading, dataset_of
from rescind.data.import_reading import Tell
from rescind.data.import_tables import BATCH, MOST_ROWS, Batch, Table, cells_of, check_header
from rescind.data.importing import check_name, store
from rescind.errors import DataError

log = logging.getLogger(__name__)
_INDEX = re.compile(r"__index_level_\d+__")
"""How Arrow names the index of a pandas frame that has no name: the numbers of rows, not data."""


def from_frame(
    frame: Any,
    name: str = "frame",
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str = "s",
    text_ids: bool = False,
    terms: str = "",
    ignore: Collection[str] = (),
    drop_bad_rows: bool = False,
    keep: bool = False,
    replace: bool = False,
    tell: Tell = log.warning,
) -> Dataset:
    """Make a dataset from a pandas, polars or Arrow frame, columns, or a scipy sparse matrix.

    Settings are those of `import_file`. A matrix has users as rows and items as columns; a value
    that is not 0 is an interaction, and values other than 1 are ratings.

    keep: also store it under its name, so that recipes and `load` find it
    """
    if keep:
        check_name(name, replace)
    arrow = _arrow(frame)
    how = Reading(columns or {}, True, time_unit, text_ids, ignore, drop_bad_rows, tell)
    made = dataset_of(lambda: _table(arrow), name, how)
    dataset = replace_fields(made, terms=terms, source="" if not keep else made.source)
    return store(name, dataset, "a frame", tell=tell) if keep else dataset


def _arrow(frame: Any) -> Any:
    """Return a frame as an Arrow table with text of one kind."""
    import pyarrow as pa

    try:
        if hasattr(frame, "tocoo"):
            return _matrix(frame)
        if isinstance(frame, pa.Table):
            table = frame
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        elif isinstance(frame, Mapping):
            table = pa.table({str(n): pa.array(column) for n, column in frame.items()})
        else:
            raise DataError(
                f"no dataset from an object of type {type(frame).__name__}; give a frame."
            )
        names = [n for n in table.column_names if not _INDEX.fullmatch(n)]
        return pa.table({n: _texts(table[n]) for n in names})
    except (pa.ArrowException, TypeError) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"the frame cannot be read as columns of one type each: {why}.") from error


def _matrix(frame: Any) -> Any:
    import pyarrow as pa

    matrix = frame.tocoo()
    some = matrix.data != 0
    values = np.asarray(matrix.data[some], dtype=np.float64)
    columns = {"user": matrix.row[some], "item": matrix.col[some]}
    columns |= {} if (values == 1).all() else {"rating": values}
    return pa.table({n: pa.array(c) for n, c in columns.items()})


def _texts(column: Any) -> Any:
    """Return a column whose text, if it is text, has the one type that files have.

    pandas makes whole numbers with a gap fractions: they are whole numbers here, and missing ones.
    """
    import pyarrow as pa

    if pa.types.is_floating(column.type):
        return _whole(column)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = pa.types.is_large_string(kind) or str(kind) == "string_view"
    return column.cast(pa.string() if text else kind)


def _whole(column: Any) -> Any:
    """Return fractions as whole numbers, if some are missing and the others are whole."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.if_else(pc.is_nan(column), None, column)
    values = known.drop_null().to_numpy()
    if not known.null_count or not len(values) or (values != np.floor(values)).any():
        return column
    return known.cast(pa.int64()) if np.abs(values).max() < 2**53 else column


def _table(arrow: Any) -> Table:
    names, what = list(arrow.column_names), "the frame"
    check_header(what, names)

    def batches(wanted: Collection[int]) -> Iterator[Batch]:
        done = 0
        for batch in arrow.to_batches(BATCH):
            cells: list[Any] = [()] * len(names)
            for at in wanted:
                cells[at] = cells_of(what, names[at], batch.column(at))
            yield range(done, done + batch.num_rows), cells
            done += batch.num_rows

    return Table(
        what, names, batches, lambda w: plain_arrow(arrow, names, MOST_ROWS, w), "row index"
    )
