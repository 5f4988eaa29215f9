"""What is wrong in an imported file: all invalid cells are counted, the first ones are shown."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rescind.data.import_cells import READ_AS, BadCell
from rescind.data.import_words import setting
from rescind.errors import DataError

SHOWN, OF_EACH = 20, 3
"""Invalid cells that are listed one by one, in all and of each kind; the others are counted."""
_LONGEST = 40
EMPTY = "the cell is empty"


def unreadable(cells: Sequence[str], read: Callable[[Sequence[str]], Any]) -> dict[int, str]:
    """Return the rows whose cell cannot be read, and why. read: reads one cell in a list"""

    @lru_cache(maxsize=2**16)  # most columns repeat their values
    def why(cell: str) -> str:
        try:
            read([cell])
        except BadCell as bad:
            return str(bad.args[1])
        return ""

    return {row: reason for row, cell in enumerate(cells) if (reason := why(cell))}


@dataclass
class Problems:
    """The invalid cells of a file."""

    file: str
    unit: str
    """What row numbers count: line, or row."""
    header: Sequence[str]
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By column and kind of reason: a day that was read does not make another kind."""
    said: dict[tuple[int, str], str] = field(default_factory=dict)
    """The whole reason of the first of each kind."""
    first: list[str] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("q"))
    """The numbers of rows with at least one invalid cell, in order: eight bytes for each."""

    def note(
        self, lines: Sequence[int], wrong: Mapping[tuple[int, int, str], tuple[str, str]]
    ) -> set[int]:
        """Add the invalid cells of a batch and return their rows.

        wrong: by row, column and role: the cell, and why
        """
        for (row, at, role), (cell, why) in sorted(wrong.items()):
            kind = (at, why.partition(READ_AS)[0])
            self.counts[kind] += 1
            self.said.setdefault(kind, why)
            if len(self.first) < SHOWN and self.counts[kind] <= OF_EACH:
                shown = cell if len(cell) <= _LONGEST else cell[:_LONGEST] + "..."
                self.first.append(
                    f"{self.file}, {self.unit} {lines[row]}, column {at + 1} "
                    f"('{self.header[at]}'): {shown!r} is not a valid {role}"
                )
        rows = {row for row, _, _ in wrong}
        self.rows.extend(lines[row] for row in sorted(rows))
        return rows

    def told(self) -> str:
        """Return the first cells of each kind, how many there are, and what is wrong with them."""
        total = sum(self.counts.values())
        if total == 1:
            return f"{self.first[0]}: {next(iter(self.said.values()))}."
        lines = list(self.first)
        if total > len(lines):
            lines.append(f"... and {total - len(lines):,} more")
        return "\n  ".join([*lines, self.counted()])

    def counted(self) -> str:
        """Return how many invalid cells there are of each kind."""
        return "\n  ".join(
            f"column '{self.header[at]}': {count:,} cell{'s' * (count > 1)}: "
            + self.said[at, why].replace("; it was", "; the first was" if count > 1 else "; it was")
            for (at, why), count in self.counts.most_common()
        )

    def error(self, total: int) -> DataError:
        """Return the error that says what to do. total: rows of the file"""
        columns = sorted({at for at, _ in self.counts} - self.needed)
        left, ways = total - len(self.rows), []
        if left:
            drop = setting("drop_bad_rows", True)
            ways.append(f"pass {drop} to import the other {left:,} of {total:,} rows")
        if columns:
            names = [self.header[at] for at in columns]
            what = "a column" if len(names) == 1 else "columns"
            ways.append(f"leave {what} out with {setting('ignore', names)}")
        told = "Nothing was imported. " + ", or ".join(["Mend these cells", *ways])
        return DataError(f"{self.told()}\n  {told}.")

    needed: frozenset[int] = frozenset()
    """Columns that cannot be left out."""
