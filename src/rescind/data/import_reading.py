"""Read the columns of a table: find them, check every cell, leave out what is empty."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.canonical import Canonical
from rescind.data.import_cells import (
    MISSING,
    BadCell,
    check_id,
    read_ids,
    read_ratings,
    read_splits,
    read_times,
)
from rescind.data.import_columns import Columns, Wanted
from rescind.data.import_order import sorted_rows
from rescind.data.import_problems import EMPTY, Problems, unreadable
from rescind.data.import_tables import OtherWidth, Table
from rescind.data.import_words import column, columns_of, setting
from rescind.errors import ConfigError, DataError, suggest

log = logging.getLogger(__name__)

Tell = Callable[[str], None]
"""Takes one line about what was read otherwise than written."""

COLUMN_NAMES = {
    "user": ("user", "user_id", "userid", "uid", "user_idx", "reviewerid"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "artistid", "asin"),
    "rating": ("rating", "score", "stars", "overall"),
    "time": ("time", "timestamp", "ts", "date", "unixreviewtime"),
    "split": ("split",),
}
"""Column names recognised by default, in lower case."""


_KINDS = {"user": "i", "item": "i", "rating": "f", "time": "q", "split": "b"}
"""Types of the columns while a file is read."""


_MAY_BE_ABSENT = ("rating", "time", "split")
NEEDED = ("user", "item")
"""Columns that every table of interactions has."""


def find_columns(
    table: Table, given: dict[str, str], header: bool, ignore: Collection[str] = ()
) -> dict[str, int]:
    """Return the index of each known column."""
    if not header and not given:
        given = dict(zip(("user", "item", "rating", "time"), table.header, strict=False))
    positions: dict[str, int] = {}
    ignored = ignoring(table.header, ignore)
    for role in NEEDED:
        if given.get(role) in ignore:
            raise ConfigError(f"the column '{given[role]}' is the {role}: it cannot be ignored.")
    given = {role: name for role, name in given.items() if name not in ignore}
    for role, common in COLUMN_NAMES.items():
        if role in given:
            wanted = [n for n, name in enumerate(table.header) if name == given[role]]
        else:
            wanted = [n for n, name in enumerate(table.header) if name.lower() in common]
        wanted = [n for n in wanted if n not in ignored]
        if len(wanted) > 1:
            names = ", ".join(table.header[n] for n in wanted)
            raise DataError(
                f"{table.file}, line 1, column {wanted[1] + 1}: more than one column could be the "
                f"{role} ({names}). Choose one with {column(role)}."
            )
        if wanted:
            positions[role] = wanted[0]
    missing = [r for r in COLUMN_NAMES if r not in positions and (r in given or r in NEEDED)]
    if missing:
        raise _no_columns(table, missing, given)
    _check_different(table, positions)
    return positions


def other_separator(header: Sequence[str]) -> str:
    """Return what seems to stand between the cells of a header that was read as one; or ""."""
    only = header[0] if len(header) == 1 else ""
    return next((one for one in (";", "\t", "|", ",") if one in only), "")


def _no_columns(table: Table, missing: Sequence[str], given: Mapping[str, str]) -> DataError:
    """Return the error that names all missing columns at once."""
    asked = [f"'{given[r]}' for the {r}" if r in given else f"for the {r}" for r in missing]
    data = f", or pass {setting('header', False)} if the first line is data"
    other = other_separator(table.header)
    split = f" If its cells are separated by {other!r}, pass {setting('separator', other)}."
    choose = f"{'one' if len(missing) == 1 else 'them'} with "
    choose += columns_of(dict.fromkeys(missing, "COLUMN"))
    return DataError(
        f"{table.file}, line 1, column 1: there is no column {', and none '.join(asked)}. The "
        f"columns are {', '.join(table.header)}. Choose {choose}"
        f"{data if table.unit == 'line' else ''}.{split if other else ''}"
    )


def _check_different(table: Table, positions: Mapping[str, int]) -> None:
    """Raise an error if one column is read as two things."""
    first: dict[int, str] = {}
    for role, at in positions.items():
        if at in first:
            raise ConfigError(
                f"{table.file}: the column '{table.header[at]}' is both the {first[at]} and the "
                f"{role}. The columns are {', '.join(table.header)}. Choose another with "
                f"{column(role)}."
            )
        first[at] = role


def read_table(
    opened: Callable[[], Table],
    wanted: Wanted,
    drop: bool = False,
    tell: Tell = log.warning,
) -> tuple[Canonical, Sequence[int]]:
    """Read and check the columns, then sort the rows by user, time and item.

    Return them, and the numbers of the rows that were dropped, in the order of the file.

    opened: opens the table, each time from its beginning    drop: leave out rows with an invalid
    cell instead of refusing the file
    """
    table, dropped = opened(), array("q")
    columns = table.plain(wanted)
    if columns is None:
        reader = _CellReader(table, wanted)
        try:
            columns = reader.read(drop)
        except OtherWidth as error:
            if not drop:
                raise
            asked = setting("drop_bad_rows", True)
            raise OtherWidth(
                f"{error} {asked} drops rows with an invalid cell, but none of another width."
            ) from None
        if empty := reader.empty():
            for role in empty:
                name = table.header[wanted.positions[role]]
                tell(f"column '{name}' is empty in all {reader.total:,} rows: taken as absent")
            left = {r: at for r, at in wanted.positions.items() if r not in empty}
            return read_table(opened, wanted._replace(positions=left), drop, tell)
        if reader.problems.rows:
            if not drop:
                raise reader.problems.error(reader.total)
            dropped = reader.problems.rows
            tell(
                f"dropped {len(dropped):,} of {reader.total:,} rows with invalid cells:\n  "
                + reader.problems.counted()
            )
    rows, users, items = columns
    ordered = sorted_rows(rows, table.in_order)
    return Canonical(ordered, {"source_id": np.asarray(items)}, np.asarray(users)), dropped


class _CellReader:
    """Checks every cell of a table, batch by batch."""

    def __init__(self, table: Table, wanted: Wanted) -> None:
        self.table, self.positions = table, wanted.positions
        self.total = 0
        self.missing: dict[str, int] = {}
        needed = frozenset(at for r, at in self.positions.items() if r not in _MAY_BE_ABSENT)
        self.problems = Problems(table.file, table.unit, table.header, needed=needed)
        self._ids: dict[str, dict[str, int]] = {"user": {}, "item": {}}
        self._checks: dict[str, Callable[[Sequence[str]], Any]] = {
            "user": partial(check_id, text_ids=wanted.text_ids),
            "item": partial(check_id, text_ids=wanted.text_ids),
            "rating": read_ratings,
            "time": partial(read_times, unit=wanted.unit),
            "split": read_splits,
        }
        self._readers = self._checks | {
            role: partial(read_ids, ids=ids, text_ids=wanted.text_ids)
            for role, ids in self._ids.items()
        }

    def read(self, drop: bool) -> Columns:
        """Read all batches; rows with an invalid cell are noted and left out."""
        out: dict[str, array[Any]] = {role: array(_KINDS[role]) for role in self.positions}
        for lines, columns in self.table.batches(self.positions.values()):
            self.total += len(lines)
            cells = {r: [c.strip() for c in columns[at]] for r, at in self.positions.items()}
            found = self._all(cells)
            if found is None:
                bad = self.problems.note(lines, self._wrong(cells, columns))
                good = [row for row in range(len(lines)) if row not in bad]
                found = self._all({r: [some[row] for row in good] for r, some in cells.items()})
                assert found is not None, "every other cell was read"
            if drop or not self.problems.rows:
                for role, values in found.items():
                    out[role].frombytes(values.tobytes())
        rows: dict[str, NDArray[Any]] = {role: np.asarray(column) for role, column in out.items()}
        return Columns(rows, list(self._ids["user"]), list(self._ids["item"]))

    def _all(self, cells: Mapping[str, list[str]]) -> dict[str, NDArray[Any]] | None:
        """Read all cells of a batch at once; None if one is invalid, and no id is kept then."""
        known = {role: len(ids) for role, ids in self._ids.items()}
        try:  # ids come last, because they are kept
            return {
                r: self._readers[r](cells[r]) for r in sorted(cells, key=self._ids.__contains__)
            }
        except BadCell:
            for role, ids in self._ids.items():
                for new in list(ids)[known[role] :]:
                    del ids[new]
            return None

    def _wrong(
        self, cells: Mapping[str, list[str]], columns: Sequence[Sequence[str]]
    ) -> dict[tuple[int, int, str], tuple[str, str]]:
        """Return the invalid cells of a batch by row, column and role, and why."""
        found = {}
        for role, some in cells.items():
            at = self.positions[role]
            for row, why in unreadable(some, self._checks[role]).items():
                empty = role in _MAY_BE_ABSENT and some[row].lower() in MISSING
                self.missing[role] = self.missing.get(role, 0) + empty
                found[row, at, role] = columns[at][row], EMPTY if empty else why
        return found

    def empty(self) -> list[str]:
        """Return the roles whose column has no value at all."""
        return [r for r in _MAY_BE_ABSENT if self.total and self.missing.get(r) == self.total]


def ignoring(header: Sequence[str], ignore: Collection[str]) -> set[int]:
    """Return the places of columns to leave out; raise if there is no such column."""
    for name in ignore:
        if name not in header:
            raise ConfigError(f"there is no column '{name}' to ignore; {suggest(name, header)}")
    return {at for at, name in enumerate(header) if name in ignore}
