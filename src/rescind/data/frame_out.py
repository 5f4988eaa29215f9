"""The rows of a dataset as a frame of pandas, polars or Arrow."""

from __future__ import annotations

from typing import Any

from rescind.errors import DataError


def to_frame(dataset: Any, kind: str = "pandas") -> Any:
    """Return interactions with original ids: columns user, item, and what else there is.

    dataset: a `Dataset`, which has this as its own function
    """
    import pyarrow as pa

    columns: dict[str, Any] = {
        "user": dataset.users[dataset.user], "item": dataset.items[dataset.item],
        "rating": dataset.rating, "time": dataset.time if dataset.has_time else None,
        "split": dataset.split, "block": dataset.block,
    }  # fmt: skip
    for column, texts in (("title", dataset.titles), ("genres", dataset.genres)):
        columns[column] = None if texts is None else texts[dataset.item]
    table = pa.table({n: pa.array(_plain(c)) for n, c in columns.items() if c is not None})
    if kind == "arrow":
        return table
    if kind == "pandas":
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise DataError(
                "pandas is not installed. Add it (pip install pandas), or use to_frame('arrow')."
            ) from error
        return table.to_pandas()
    if kind == "polars":
        try:
            import polars
        except ImportError as error:
            raise DataError("polars is not installed. Install it, or use kind='arrow'.") from error
        return polars.from_arrow(table)
    raise DataError(f"kind is '{kind}'; allowed are pandas, polars and arrow.")


def _plain(column: Any) -> Any:
    return column.tolist() if column.dtype.kind == "U" else column
