"""Rows sorted by client, of which a few change at a time: the cost of a change follows the change.

A federation is a value, so an event makes new tables. They share the columns with the old ones, and
have the rows of the clients that changed beside them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from rescind.core import jagged

Columns = Mapping[str, Tensor]
MOST = 1024
"""Changed clients whose rows lie beside the columns; more are merged into them. Speed only."""


class _Base(dict[str, Tensor]):
    """Columns that several tables share."""

    merged: weakref.ref[_Base] | None = None
    """What they were last merged into: two tables that changed alike then share that, too."""


class Table:
    """Columns of rows sorted by "client", one of them. A value: `put` returns another table.

    Changes are merged when all rows are read. Until then the shared columns, in memory only, still
    have the old rows of the clients that changed.
    """

    def __init__(self, columns: Columns) -> None:
        self._base = columns if isinstance(columns, _Base) else _Base(columns)
        self._changed: dict[int, Columns] = {}
        self._tallies: dict[str, Tensor] = {}
        self._length = len(columns["client"])

    def __len__(self) -> int:
        return self._length

    @property
    def device(self) -> torch.device:
        return self._base["client"].device

    @property
    def columns(self) -> Columns:
        """Return all rows."""
        return self._all()

    def _all(self) -> _Base:
        if self._changed:
            keys = sorted(self._changed)
            rows = {n: torch.cat([self._changed[k][n] for k in keys]) for n in self._base}
            self._base = _merged(self._base, torch.tensor(keys), rows)
            self._changed = {}
        return self._base

    def of_one(self, client: int) -> Columns:
        """Return the rows of one client, without a copy."""
        if client in self._changed:
            return self._changed[client]
        column = self._base["client"]
        edges = torch.tensor([client, client + 1], dtype=column.dtype, device=column.device)
        begin, end = torch.searchsorted(column, edges).tolist()
        return {name: column[begin:end] for name, column in self._base.items()}

    def take(self, ids: Tensor) -> tuple[Tensor, Columns]:
        """Return the rows of some clients, in their order: (position in ids, columns)."""
        if len(ids) == 1:
            alone = self.of_one(int(ids))
            return torch.zeros_like(alone["client"], dtype=torch.int64), alone
        begin, count = _where((self._all() if len(ids) > MOST else self._base)["client"], ids)
        known = self._changed.keys()
        fresh = [(at, i) for at, i in enumerate(ids.tolist()) if i in known] if known else []
        if fresh:
            count[[at for at, _ in fresh]] = 0
        if not fresh and bool((begin[1:] == (begin + count)[:-1]).all()):  # they lie in a row
            near = slice(int(begin[0]), int(begin[-1] + count[-1])) if len(ids) else slice(0)
            return jagged.owners_of(count), {n: c[near] for n, c in self._base.items()}
        owner, place = jagged.spread(begin, count)
        rows = {name: column[place] for name, column in self._base.items()}
        if not fresh:
            return owner, rows
        pieces = [self._changed[i] for _, i in fresh]
        owners = [owner.new_full((len(self._changed[i]["client"]),), at) for at, i in fresh]
        owner, order = torch.sort(torch.cat([owner, *owners]), stable=True)
        more = {name: torch.cat([rows[name], *(p[name] for p in pieces)]) for name in rows}
        return owner, {name: column[order] for name, column in more.items()}

    def put(self, clients: Tensor, rows: Columns) -> Table:
        """Return the table with other rows of some clients.

        clients: [k] sorted, each once    rows: theirs alone, sorted by client; other columns than
        those of the table are left out
        """
        rows = {name: rows[name] for name in self._base}
        if len(clients) + len(self._changed) > MOST:
            after = Table(_merged(self._all(), clients, rows))
        else:
            after = Table(self._base)
            theirs = {c: Table(rows).of_one(c) for c in clients.tolist()}
            after._changed = {**self._changed, **theirs}
            after._length = len(self) - len(self.take(clients)[0]) + len(rows["client"])
        for name, tally in self._tallies.items():
            fewer = _counted(tally, self.take(clients)[1][name], -1)
            after._tallies[name] = _counted(fewer, rows[name], 1)
        return after

    def tally(self, name: str) -> Tensor:
        """Return how many rows have each value of a column, up to the largest."""
        if name not in self._tallies:
            self._tallies[name] = torch.bincount(self.columns[name])
        return self._tallies[name]


def _where(client: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the rows of each client begin, and their number. client: sorted"""
    edges = torch.stack([ids, ids + 1]).to(client)
    begin, end = torch.searchsorted(client, edges)
    return begin, end - begin


def _everything(ids: Tensor, count: Tensor, columns: Columns) -> bool:
    """Return whether some clients, with these numbers of rows, are all there are, in order."""
    return int(count.sum()) == len(columns["client"]) and bool((ids[1:] > ids[:-1]).all())


def _counted(tally: Tensor, values: Tensor, sign: int) -> Tensor:
    more = torch.bincount(values, minlength=len(tally))
    more[: len(tally)] = tally + sign * more[: len(tally)]
    return more


def _merged(columns: _Base, clients: Tensor, rows: Columns) -> _Base:
    """Return columns with other rows of some clients; those that stay equal are shared."""
    client, new = columns["client"], rows["client"]
    begin, count = _where(client, clients)
    if _everything(clients, count, columns):
        return _Base({n: c if torch.equal(c, rows[n]) else rows[n] for n, c in columns.items()})
    _, old = jagged.spread(begin, count)
    if torch.equal(client[old], new):  # the same rows with other values
        same = {n: torch.equal(c[old], rows[n]) for n, c in columns.items()}
        changed = {n: c if same[n] else c.index_copy(0, old, rows[n]) for n, c in columns.items()}
        return _Base(changed)
    stays = torch.ones_like(client, dtype=torch.bool)
    stays[old] = False
    place = torch.searchsorted(client[stays], new) + torch.arange(len(new), device=new.device)
    before = torch.ones(len(client) - len(old) + len(new), dtype=torch.bool, device=new.device)
    before[place] = False
    out = _Base()
    twin = columns.merged() if columns.merged is not None else None
    for name, column in columns.items():
        made = column.new_empty(len(before))
        made[before], made[place] = column[stays], rows[name]
        out[name] = twin[name] if twin is not None and torch.equal(twin[name], made) else made
    columns.merged = weakref.ref(out)
    return out
