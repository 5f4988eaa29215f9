"""A silo's table of its own people, over a list of items that all silos of a run have.

The j-th user of silo I of N has number j * N + I in the run, and an item the number of its line in
the list. So silos number alone, and none has rows or ids of another's people.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rescind.core.labels import left
from rescind.data import Dataset
from rescind.errors import DataError

NAMED = 5
"""Items that an error names."""


def elsewhere(number: int) -> str:
    """Return what stands for the id of another silo's user."""
    return f"(on another silo: {number})"


@dataclass(frozen=True)
class OwnPeople:
    """Which numbers a silo gives to its own people, and where the list of items is."""

    items: Path
    """A text file with one item id on each line, the same on every silo."""
    silo: int
    silos: int

    def numbered(self, table: Dataset) -> Dataset:
        """Return a table with the numbers of the run.

        Raises if the list misses an item, without its id: the server reads the error.
        """
        listed = read_items(self.items)
        if missing := self.missing(table):
            raise DataError(f"{self._told(table, missing)}. Join again, which names them.")
        old = np.arange(len(table.users))
        place = old * self.silos + self.silo
        users = np.array(
            [elsewhere(n) for n in range(int(place[-1]) + 1 if len(place) else 0)], dtype=object
        )
        users[place] = table.users
        for number in table.left_places.tolist():
            users[place[number]] = left(int(place[number]))
        line = _lines_of(table, listed)
        about = table.titles, table.genres
        titles, genres = (_moved(texts, line, len(listed)) for texts in about)
        return replace(
            table, user=place[table.user], item=line[table.item], users=users.astype(str),
            items=np.array(listed), titles=titles, genres=genres,
        )  # fmt: skip

    def check(self, table: Dataset) -> None:
        """Refuse a list that misses items of a table, and name some of them."""
        if missing := self.missing(table):
            named = f"{', '.join(missing[:NAMED])}{', ...' * (len(missing) > NAMED)}"
            raise DataError(
                f"{self._told(table, missing)}: {named}. Add them to the list (one id a line) and "
                f"give the same list to every silo."
            )

    def missing(self, table: Dataset) -> list[str]:
        """Return the items with rows in a table that the list does not have."""
        used = np.unique(table.item)
        lines = _lines_of(table, read_items(self.items))
        return [str(table.items[item]) for item in used[lines[used] < 0]]

    def _told(self, table: Dataset, missing: list[str]) -> str:
        count, of = len(missing), len(np.unique(table.item))
        return f"{count} of the {of} items of '{table.name}' are not in the list {self.items.name}"


def _lines_of(table: Dataset, listed: list[str]) -> NDArray[np.int64]:
    """Return the line of each item of a table; -1 if it is not listed."""
    at = {name: line for line, name in enumerate(listed)}
    return np.array([at.get(str(name), -1) for name in table.items], dtype=np.int64)


def read_items(path: Path) -> list[str]:
    """Read a list of items: one id on each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"the list of items {path} cannot be read ({error}).") from None
    listed = [line.strip() for line in lines if line.strip()]
    if not listed:
        raise DataError(f"the list of items {path} is empty. Write one item id on each line.")
    name, times = Counter(listed).most_common(1)[0]
    if times > 1:
        raise DataError(f"the list of items {path} has '{name}' twice. Each item has one line.")
    return listed


def _moved(
    texts: NDArray[np.str_] | None, line: NDArray[np.int64], listed: int
) -> NDArray[np.str_] | None:
    """Return texts about a table's items at the lines of the list, "" where there are none."""
    if texts is None:
        return None
    moved = np.full(listed, "", dtype=object)
    moved[line[line >= 0]] = texts[line >= 0]
    return moved.astype(str)
