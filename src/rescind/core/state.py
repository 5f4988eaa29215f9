"""State kept between rounds: `ServerState` on the server, `Private` on devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.params import Params
from rescind.core.update import Rows

REFERENCE = "reference/"
"""Prefix of public parameters that are broadcast but not trained."""


@dataclass(frozen=True)
class Snapshot:
    """Values that the server stored, with the round they come from."""

    name: str
    round: int
    values: Params

    @property
    def nbytes(self) -> int:
        return params.nbytes(self.values)


@dataclass(frozen=True)
class Memory:
    """Past values that a server keeps, each with name and round, so that they can be removed."""

    snapshots: tuple[Snapshot, ...] = ()

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.snapshots)

    def keep(self, name: str, round_: int, values: Params, last: int | None = None) -> Memory:
        """Add a snapshot and keep only the `last` ones with this name."""
        mine = [s for s in self.snapshots if s.name == name] + [Snapshot(name, round_, values)]
        others = tuple(s for s in self.snapshots if s.name != name)
        return Memory(others + tuple(mine if last is None else mine[max(len(mine) - last, 0) :]))

    def named(self, name: str) -> tuple[Snapshot, ...]:
        return tuple(s for s in self.snapshots if s.name == name)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.snapshots)


@dataclass(frozen=True)
class ServerState:
    """The state of the server between two rounds."""

    public: Params
    """Broadcast to clients."""
    own: Params = field(default_factory=dict)
    """Never leaves the server: rows of sharing users, an auxiliary model, optimiser moments."""
    memory: Memory = field(default_factory=Memory)
    round: int = 0

    def next(
        self, public: Params, own: Params | None = None, memory: Memory | None = None
    ) -> ServerState:
        """Return the state one round later."""
        own = self.own if own is None else own
        memory = self.memory if memory is None else memory
        return replace(self, public=public, own=own, memory=memory, round=self.round + 1)


@dataclass(frozen=True)
class Log:
    """The rows of their own updates that devices stored, by round and table."""

    entries: tuple[tuple[int, str, Rows], ...] = ()
    """(round, table, rows); `owner` is the client's number."""
    reader: Tensor | None = None
    """[C] the clients whose log is read; None: all, by client number."""

    def add(self, round_: int, ids: Tensor, kept: Mapping[str, Rows]) -> Log:
        """Add what the clients `ids` store of this round."""
        new = tuple((round_, n, replace(r, owner=ids[r.owner])) for n, r in kept.items())
        return Log(self.entries + new)

    def of(self, ids: Tensor) -> Log:
        """Select the log of these clients; `owner` is then their position in `ids`."""
        return replace(self, reader=ids)

    def at(self, round_: int, table: str = "item") -> Rows | None:
        """Return the rows of one round (all chunks together), or None."""
        found = [self._read(rows) for r, name, rows in self.entries if (r, name) == (round_, table)]
        if not found:
            return None
        parts = zip(*((r.owner, r.index, r.value) for r in found), strict=True)
        owner, index, value = (torch.cat(part) for part in parts)
        return Rows(owner, index, value, found[0].size)

    def _read(self, rows: Rows) -> Rows:
        if self.reader is None:
            return rows
        mine = rows[torch.isin(rows.owner, self.reader)]
        order = torch.argsort(self.reader)
        return replace(mine, owner=order[torch.searchsorted(self.reader[order], mine.owner)])

    @property
    def rounds(self) -> tuple[int, ...]:
        """Return the rounds with entries, oldest first."""
        return tuple(dict.fromkeys(r for r, _, _ in self.entries))

    def without(self, ids: Tensor) -> Log:
        left = ((r, name, rows[~torch.isin(rows.owner, ids)]) for r, name, rows in self.entries)
        return Log(tuple(left))

    @property
    def nbytes(self) -> int:
        """Return the bytes stored on all devices together."""
        return sum(rows.nbytes for _, _, rows in self.entries)


@dataclass(frozen=True)
class Private:
    """What the devices of a cohort keep: named tensors [C, ...], and a log."""

    values: Params
    log: Log = field(default_factory=Log)

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def with_(self, **values: Tensor) -> Private:
        """Return a copy with some values set."""
        return replace(self, values={**self.values, **values})


# -- values a server keeps per client --------------------------------------------------------------


def has_user_rows(name: str, value: Tensor, clients: int) -> bool:
    """Return whether a server value has one row per client: its name ends in "user"."""
    return name.rsplit("/", 1)[-1] == "user" and value.dim() >= 1 and len(value) == clients


def reset_rows(own: Params, first: Params, ids: Tensor, clients: int) -> dict[str, Tensor]:
    """Reset the rows of the clients `ids` to their initial values, or to 0 if there are none.

    own, first: the server's values now, and those of a new federation
    """
    out = dict(own)
    for name, value in own.items():
        if has_user_rows(name, value, clients):
            out[name] = value.clone()
            out[name][ids.to(value.device)] = first[name].to(value)[ids] if name in first else 0
    return out


def without_optimiser_state(own: Params) -> dict[str, Tensor]:
    """Return the server's values without the moments of its optimisers."""
    return {name: value for name, value in own.items() if "server/" not in name}
