"""Rows of all clients in several versions, of which each change touches a few.

A round of 256 people writes 256 rows. The newest version has the table, and writes into it; an
older one has what to undo. So an old federation stays as it was, and a write costs what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rescind.core.params import Params
from rescind.core.table import PIECE, Piece, more_pieces, renewed

LINKS = 16
"""Steps between versions that a read follows; after more it gets a table of its own. Speed only."""
FEW = 32
"""A table has to have this many times the rows in which a version differs from it. Speed only."""
SMALL = 2**16
"""Numbers in a table that is copied without further thought. Speed only."""


class Version:
    """One version of a table: the table, or another version and the rows that differ from it."""

    def __init__(self, table: Tensor, seen: bool = True) -> None:
        """Make a version of a table. seen: others may have the tensor: nobody writes into it"""
        self._table: Tensor | None = table
        self._seen = seen
        self._written = 0
        """Rows written into the table since it was copied."""
        self._other: Version = self
        self._pieces: list[Piece] = []

    def _differ(self, other: Version, ids: Tensor, rows: Tensor) -> Version:
        if not bool((ids[1:] > ids[:-1]).all()):
            order = torch.argsort(ids)
            ids, rows = ids[order], rows[order]
        self._ids, self._rows, self._other = ids, rows, other
        self._table = None  # last: whatever interrupts, there is a way to a table
        return self

    def _path(self) -> tuple[Tensor, list[Version]]:
        """Return the nearest table, and the versions on the way back from it."""
        links: list[Version] = []
        at = self
        while at._table is None:
            links.append(at)
            at = at._other
        return at._table, links[::-1]

    def whole(self) -> Tensor:
        """Return the table."""
        table = self._own()
        self._seen = True
        return table

    def _own(self) -> Tensor:
        if self._table is None:
            nearest, links = self._path()
            table = nearest.clone()
            for link in links:
                table[link._ids] = link._rows
            self._table, self._other, self._seen, self._written = table, self, False, 0
        return self._table

    def __len__(self) -> int:
        return len(self._path()[0])

    def read(self, ids: Tensor) -> Tensor:
        """Return a copy of some rows."""
        table, links = self._path()
        if len(links) > LINKS:
            return self._own()[ids]
        rows = table[ids]
        for link in links:
            if len(link._ids):
                at = torch.searchsorted(link._ids, ids).clamp_(max=len(link._ids) - 1)
                known = link._ids[at] == ids
                rows[known] = link._rows[at[known]]
        return rows

    def pieces(self) -> list[Piece]:
        """Return what stands for the first `PIECE` rows, for the next, and so on."""
        return more_pieces(self._pieces, len(self))

    def rows_of_piece(self, number: int) -> Tensor:
        device = self._path()[0].device
        first = number * PIECE
        return self.read(torch.arange(first, min(first + PIECE, len(self)), device=device))

    def write(self, ids: Tensor, rows: Tensor) -> Version:
        """Return a version with other values of some rows. ids: each once"""
        after, (nearest, links) = Version(rows), self._path()
        after._pieces = renewed(self._pieces, ids)
        differ = len(ids) + sum(len(link._ids) for link in links)
        few = nearest.numel() > SMALL and differ * FEW < len(nearest)
        if few and len(links) < LINKS and (links or self._seen):
            return after._differ(self, ids, rows.to(nearest))
        table = self._own()
        # A copy after half the table was written: an old version then holds half a table at most.
        copied = self._seen or 2 * (self._written + len(ids)) > len(table)
        after._table = table.clone() if copied else table
        after._seen, after._written = False, len(ids) + (0 if copied else self._written)
        if not copied:
            self._differ(after, ids, table[ids])
        after._table[ids] = rows.to(table)
        return after


class Versions(Mapping[str, Tensor]):
    """Values of all clients by name, each [clients, ...]. A value, like a dictionary of tensors."""

    def __init__(self, values: Params) -> None:
        self._of = {name: Version(value) for name, value in values.items()}

    @classmethod
    def of(cls, values: Params) -> Versions:
        return values if isinstance(values, cls) else cls(values)

    def __getitem__(self, name: str) -> Tensor:
        return self._of[name].whole()

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def rows(self, name: str) -> Version:
        """Return a table whose rows are read without the rest."""
        return self._of[name]

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the rows of some clients."""
        return {name: version.read(ids) for name, version in self._of.items()}

    def with_(self, values: Params) -> Versions:
        """Return the values with other tables."""
        after = Versions(values)
        after._of = {**self._of, **after._of}
        return after

    def write(self, ids: Tensor, values: Params, clients: int) -> Versions:
        """Return the values with other rows of some clients; a new name starts as zeros."""
        after = self.with_({})
        for name, value in values.items():
            if name not in after._of:
                zeros = value.new_zeros((clients, *value.shape[1:]))
                after._of[name] = Version(zeros, seen=False)
            after._of[name] = after._of[name].write(ids, value)
        return after


def with_tables(values: Params, new: Params) -> Params:
    """Return values with other tables; versions stay versions."""
    return values.with_(new) if isinstance(values, Versions) else {**values, **new}
