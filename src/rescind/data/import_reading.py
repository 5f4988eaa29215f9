"""Read the columns of a table: find them, check every cell, leave out what is empty."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
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
from rescind.data.import_tables import Table
from rescind.errors import DataError

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
_LONGEST = 40  # characters of a cell that are shown


def find_columns(
    table: Table, given: Mapping[str, str], header: bool, ignore: Collection[str] = ()
) -> dict[str, int]:
    """Return the index of each known column."""
    if not header and not given:
        given = dict(zip(("user", "item", "rating", "time"), table.header, strict=False))
    positions: dict[str, int] = {}
    for role, common in COLUMN_NAMES.items():
        places = [
            at
            for at, name in enumerate(table.header)
            if name not in ignore
            and (name == given[role] if role in given else name.lower() in common)
        ]
        if len(places) > 1 or (not places and (role in given or role not in _MAY_BE_ABSENT)):
            raise DataError(
                f"{table.file}, line 1: {'more than one' if places else 'no'} column for the "
                f"{role} among: {', '.join(table.header)}. Name it with --{role}; or give "
                f"--separator, or --no-header."
            )
        if places:
            positions[role] = places[0]
    if len(set(positions.values())) < len(positions):
        raise DataError(f"{table.file}: one column has two roles. Name each role's own column.")
    return positions


@dataclass
class Problems:
    """The invalid cells of a file: the first of each kind, and how many there are."""

    table: Table
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By column and reason."""
    first: dict[tuple[int, str], str] = field(default_factory=dict)
    rows: array[int] = field(default_factory=lambda: array("q"))
    """The numbers of rows with at least one invalid cell, in order: eight bytes for each."""

    def note(
        self, lines: Sequence[int], wrong: Mapping[tuple[int, int, str], tuple[str, str]]
    ) -> set[int]:
        """Add the invalid cells of a batch and return their rows.

        wrong: by row, column and role: the cell, and why
        """
        for (row, at, role), (cell, why) in sorted(wrong.items()):
            self.counts[at, why] += 1
            shown = cell if len(cell) <= _LONGEST else cell[:_LONGEST] + "..."
            place = f"{self.table.file}, {self.table.unit} {lines[row]}, column {at + 1}"
            text = f"{place} ('{self.table.header[at]}'): {shown!r} is not a valid {role}: {why}"
            self.first.setdefault((at, why), text)
        rows = {row for row, _, _ in wrong}
        self.rows.extend(lines[row] for row in sorted(rows))
        return rows

    def __str__(self) -> str:
        return "\n  ".join(
            self.first[kind] + (f" ({count:,} such cells)" if count > 1 else "")
            for kind, count in self.counts.most_common()
        )

    def error(self, total: int) -> DataError:
        """Return the error that says what to do. total: rows of the file"""
        return DataError(
            f"{self}.\n  Nothing was imported. Mend the file, import the other "
            f"{total - len(self.rows):,} of {total:,} rows with --drop-bad-rows, or leave out a "
            f"column with --ignore."
        )


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
        columns = reader.read(drop)
        if empty := reader.empty():
            names = ", ".join(f"'{table.header[wanted.positions[role]]}'" for role in empty)
            tell(f"without any value, so taken as absent: {names}")
            rest = {r: at for r, at in wanted.positions.items() if r not in empty}
            return read_table(opened, wanted._replace(positions=rest), drop, tell)
        if reader.problems.rows:
            if not drop:
                raise reader.problems.error(reader.total)
            dropped = reader.problems.rows
            tell(f"dropped {len(dropped):,} of {reader.total:,} rows:\n  {reader.problems}")
    rows, users, items = columns
    ordered = sorted_rows(rows, table.in_order)
    return Canonical(ordered, {"source_id": np.asarray(items)}, np.asarray(users)), dropped


class _CellReader:
    """Checks every cell of a table, batch by batch."""

    def __init__(self, table: Table, wanted: Wanted) -> None:
        self.table, self.positions = table, wanted.positions
        self.total = 0
        self.missing: Counter[str] = Counter()
        self.problems = Problems(table)
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
            values = self._all(cells)
            if values is None:
                bad = self.problems.note(lines, self._wrong(cells, columns))
                good = [row for row in range(len(lines)) if row not in bad]
                values = self._all({r: [some[row] for row in good] for r, some in cells.items()})
                assert values is not None, "every other cell was read"
            if drop or not self.problems.rows:
                for role, column in values.items():
                    out[role].frombytes(column.tobytes())
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
        wrong = {}
        for role, some in cells.items():
            at = self.positions[role]
            for row, why in _unreadable(some, self._checks[role]).items():
                empty = role in _MAY_BE_ABSENT and some[row].lower() in MISSING
                self.missing[role] += empty
                wrong[row, at, role] = columns[at][row], "the cell is empty" if empty else why
        return wrong

    def empty(self) -> list[str]:
        """Return the roles whose column has no value at all."""
        return [r for r in _MAY_BE_ABSENT if self.total and self.missing[r] == self.total]


def _unreadable(cells: Sequence[str], read: Callable[[Sequence[str]], Any]) -> dict[int, str]:
    """Return the rows whose cell cannot be read, and why. read: reads one cell in a list"""

    @lru_cache(maxsize=2**16)  # most columns repeat their values
    def why(cell: str) -> str:
        try:
            read([cell])
        except BadCell as bad:
            return str(bad.args[1])
        return ""

    return {row: reason for row, cell in enumerate(cells) if (reason := why(cell))}
