"""Read records with original ids from pandas, polars, Arrow, scipy, columns or tuples.

No library of frames is imported: their columns speak Arrow (`__arrow_c_stream__`) or numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.dataset import Dataset
from rescind.data.import_reading import COLUMN_NAMES
from rescind.errors import ConfigError, DataError, suggest

Id = str | int
"""An original id of a user or an item."""
Ints = NDArray[np.int64]
RECORD = {role: COLUMN_NAMES[role] for role in ("user", "item", "time")}


@dataclass(frozen=True)
class Frame:
    """Records as numbers, with the distinct original ids they stand for."""

    users: Sequence[Id]
    user: Ints
    """[n] positions in `users`"""
    items: Sequence[Id]
    item: Ints
    time: Ints | None = None
    """[n], None if it was not asked for"""

    def __len__(self) -> int:
        return len(self.user)


def read(
    frame: Any,
    columns: Mapping[str, str] | None = None,
    timed: bool = False,
    usual: Mapping[str, str] | None = None,
) -> Frame:
    """Read the records of a frame; raise `DataError` if it has none that can be read.

    frame: pandas, polars, Arrow, a mapping of columns, tuples (user, item, time), a scipy sparse
    matrix (a record for each value that is not 0; ids are row and column numbers) or a `Dataset`
    columns: names of the columns for user, item and time. Default: common names
    timed: also read times: whole numbers or dates
    usual: names of an earlier frame, which count where this one has them
    """
    given: dict[str, Any]
    if isinstance(frame, Dataset):
        given = {"user": frame.user, "item": frame.item}
        given |= {"time": frame.time} if frame.has_time else {}
    elif hasattr(frame, "tocoo"):
        matrix = frame.tocoo()
        some = matrix.data != 0
        given = {"user": matrix.row[some], "item": matrix.col[some]}
    else:
        table, names = named(frame, tuple(RECORD))
        known = {role: name for role, name in (usual or {}).items() if name in names}
        roles = roles_of(names, {**known, **(columns or {})}, RECORD, ("time",))
        given = {role: table[name] for role, name in roles.items()}
    if timed and "time" not in given:
        raise DataError("there is no column of times: columns={'time': ...}, or use Gram.")
    users, user = ids_in(given["user"], "user")
    items, item = ids_in(given["item"], "item")
    if isinstance(frame, Dataset):  # numbers stand for ids here
        users = frame.users[np.asarray(users, np.int64)].tolist()
        items = frame.items[np.asarray(items, np.int64)].tolist()
    time = times_in(given["time"]) if timed else None
    sizes = {"user": len(user), "item": len(item)} | ({} if time is None else {"time": len(time)})
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"columns must be equally long; got {told}.")
    return Frame(users, user, items, item, time)


def ids_that_read(text: str) -> list[Id]:
    """Return the ids that a text may stand for: itself, and a whole number."""
    return [text, int(text)] if text.isdecimal() and str(int(text)) == text else [text]


def plain_id(value: Any, what: str = "id") -> Id:
    """Return an id as text or as a whole number of Python, or raise."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value) if isinstance(value, str) else value
    raise DataError(f"{what} {value!r} is a {type(value).__name__}; ids are text or whole numbers.")


def in_order(ids: Iterable[Id]) -> list[Id]:
    """Sort ids: numbers first, then text. The same for any order in which they came."""
    return sorted(ids, key=lambda each: (isinstance(each, str), each))


def roles_of(
    names: Sequence[str],
    columns: Mapping[str, str],
    roles: Mapping[str, Sequence[str]],
    optional: Sequence[str] = (),
) -> dict[str, str]:
    """Return the name of the column of each role. roles: common names of each, in lower case"""
    if unknown := sorted(set(columns) - set(roles)):
        raise ConfigError(f"columns has '{unknown[0]}'; allowed are {', '.join(roles)}.")
    found = {}
    for role, common in roles.items():
        if role in columns:
            if columns[role] not in names:
                raise DataError(f"there is no column '{columns[role]}': {suggest('', names)}")
            found[role] = columns[role]
            continue
        known = [name for name in names if name.lower() in common]
        if len(known) > 1:
            raise DataError(
                f"several columns could be the {role}: {', '.join(known)}. Use columns="
            )
        if known:
            found[role] = known[0]
        elif role not in optional:
            raise DataError(
                f"no column of {', '.join(names)} is the {role}: columns={{'{role}': ...}} says."
            )
    return found


def named(frame: Any, roles: Sequence[str] = ()) -> tuple[Any, list[str]]:
    """Return a frame that gives columns by name, and the names. roles: what tuples hold"""
    if isinstance(frame, Mapping):
        return frame, [str(name) for name in frame]
    if hasattr(frame, "collect") and not hasattr(frame, "__len__"):  # a lazy frame of polars
        frame = frame.collect()
    names = getattr(frame, "column_names", None)  # pyarrow, whose `columns` are the values
    names = getattr(frame, "columns", None) if names is None else names
    if names is not None:
        return frame, [str(name) for name in names]
    if hasattr(frame, "__arrow_c_stream__"):
        import pyarrow

        table = pyarrow.table(frame)
        return table, table.column_names
    if isinstance(frame, Sequence) and not isinstance(frame, str | bytes):
        return _from_tuples(frame, roles)
    raise DataError(
        f"records cannot be read from a {type(frame).__name__}. Give a pandas, polars or Arrow "
        f"frame, a mapping of columns, or tuples {_told(roles)}."
    )


def _from_tuples(rows: Sequence[Any], roles: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    size = len(rows[0]) if rows and isinstance(rows[0], tuple | list) else 2
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) != size or not 2 <= size <= len(roles):
            raise DataError(f"records must be tuples {_told(roles)}, equally long; got {row!r}.")
    columns = zip(*rows, strict=True) if rows else ((),) * len(roles)
    found = dict(zip(roles, columns, strict=False))
    return found, list(found)


def _told(roles: Sequence[str]) -> str:
    return " or ".join(f"({', '.join(roles[:size])})" for size in range(2, len(roles) + 1))


def ids_in(column: Any, role: str) -> tuple[Sequence[Id], Ints]:
    """Return the distinct ids of a column, and each row's position in them."""
    arrow = _arrow(column)
    if arrow is not None:
        import pyarrow
        import pyarrow.types as kinds

        if kinds.is_dictionary(arrow.type):
            arrow = arrow.cast(arrow.type.value_type)
        if arrow.null_count:
            row = arrow.is_null().index(True).as_py()
            raise DataError(f"the {role} of row {row} (counted from 0) is missing. Remove the row.")
        if str(arrow.type) == "string_view":  # polars; has no dictionary in Arrow
            arrow = arrow.cast(pyarrow.large_string())
        coded = pyarrow.concat_arrays([*arrow.chunks, pyarrow.array([], arrow.type)])
        coded = coded.dictionary_encode()
        distinct = [plain_id(each, role) for each in coded.dictionary.to_pylist()]
        return distinct, coded.indices.to_numpy().astype(np.int64)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuU":
        unique, code = np.unique(column, return_inverse=True)
        return unique.tolist(), code.astype(np.int64).reshape(-1)
    place: dict[Id, int] = {}
    numbers = [place.setdefault(plain_id(each, role), len(place)) for each in column]
    return list(place), np.asarray(numbers, dtype=np.int64)


def times_in(column: Any) -> Ints:
    """Return times as whole numbers; dates as microseconds."""
    arrow = _arrow(column)
    values = np.asarray(column) if arrow is None else arrow.to_numpy()
    if values.dtype.kind == "O" and len(values):
        values = np.asarray(values.tolist())
    if values.dtype.kind == "M" and not np.isnat(values).any():
        return values.astype("datetime64[us]").astype(np.int64)
    if values.dtype.kind in "iu" or not len(values):
        return values.astype(np.int64)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == values.round()).all():
        return values.astype(np.int64)
    raise DataError(
        f"times must be whole numbers or dates, and none may be missing; got {values.dtype}. "
        f"Convert the column, leave rows out, or use Gram, which needs no times."
    )


def _arrow(column: Any) -> Any:
    """Return a column as an Arrow array, or None if it does not speak Arrow."""
    if not hasattr(column, "__arrow_c_stream__") and not hasattr(column, "__arrow_c_array__"):
        return None
    import pyarrow

    try:
        if hasattr(column, "__arrow_c_stream__"):
            return pyarrow.chunked_array(column)
        return pyarrow.chunked_array([pyarrow.array(column)])
    except (pyarrow.ArrowException, TypeError):  # such as objects of several types in pandas
        return None
