"""What persists between rounds: on the server a state with a dated memory, on devices `Private`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.params import Params
from rescind.core.update import Rows

REFERENCE = "reference/"
"""Public parameters under this name are broadcast to be read, not trained."""


@dataclass(frozen=True)
class Snapshot:
    """Something the server remembered, with the round it was made in."""

    name: str
    round: int
    values: Params

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return params.nbytes(self.values)


@dataclass(frozen=True)
class Memory:
    """Named, dated, measured: whatever a server keeps of the past, so that it can be purged."""

    snapshots: tuple[Snapshot, ...] = ()

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.snapshots)

    def keep(self, name: str, round_: int, values: Params, last: int | None = None) -> Memory:
        """Add a snapshot; of those with this name only the `last` ones stay."""
        mine = [s for s in self.snapshots if s.name == name] + [Snapshot(name, round_, values)]
        others = tuple(s for s in self.snapshots if s.name != name)
        return Memory(others + tuple(mine if last is None else mine[max(len(mine) - last, 0) :]))

    def named(self, name: str) -> tuple[Snapshot, ...]:
        """The snapshots of a name, oldest first."""
        return tuple(s for s in self.snapshots if s.name == name)

    def purge(self, first: int, last: int | None = None) -> Memory:
        """Without everything made in rounds first..last: what the forgotten records touched."""
        return Memory(
            tuple(
                s
                for s in self.snapshots
                if s.round < first or (last is not None and s.round > last)
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of everything kept."""
        return sum(s.nbytes for s in self.snapshots)


@dataclass(frozen=True)
class ServerState:
    """The server between two rounds."""

    public: Params
    """Broadcast to clients."""
    own: Params = field(default_factory=dict)
    """Never leaves the server: its rows for sharers, an auxiliary model, optimiser moments."""
    memory: Memory = field(default_factory=Memory)
    round: int = 0

    def next(
        self, public: Params, own: Params | None = None, memory: Memory | None = None
    ) -> ServerState:
        """The state one round later."""
        return replace(
            self,
            public=public,
            own=self.own if own is None else own,
            memory=self.memory if memory is None else memory,
            round=self.round + 1,
        )


@dataclass(frozen=True)
class Log:
    """The rows devices kept of their own updates, by round and table."""

    entries: tuple[tuple[int, str, Rows], ...] = ()
    """(round, table, rows); `owner` is the client's number."""
    reader: Tensor | None = None
    """[C] whose log this is; None is everybody's, under their own numbers."""

    def add(self, round_: int, ids: Tensor, kept: Mapping[str, Rows]) -> Log:
        """Write down what the clients `ids` keep of this round."""
        new = tuple((round_, n, replace(r, owner=ids[r.owner])) for n, r in kept.items())
        return Log(self.entries + new)

    def of(self, ids: Tensor) -> Log:
        """What these clients kept; in what is read, `owner` is their place in `ids`."""
        return replace(self, reader=ids)

    def at(self, round_: int, table: str = "item") -> Rows | None:
        """The rows of one round (of all chunks it was written in), or None."""
        found = [self._mine(rows) for r, name, rows in self.entries if (r, name) == (round_, table)]
        if not found:
            return None
        return Rows(
            torch.cat([r.owner for r in found]),
            torch.cat([r.index for r in found]),
            torch.cat([r.value for r in found]),
            found[0].size,
        )

    def _mine(self, rows: Rows) -> Rows:
        if self.reader is None:
            return rows
        mine = rows[torch.isin(rows.owner, self.reader)]
        order = torch.argsort(self.reader)
        place = order[torch.searchsorted(self.reader[order], mine.owner)]
        return replace(mine, owner=place)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds something was written in, oldest first."""
        return tuple(dict.fromkeys(r for r, _, _ in self.entries))

    def without(self, ids: Tensor) -> Log:
        """The log with nothing of these clients in it."""
        return Log(
            tuple((r, name, rows[~torch.isin(rows.owner, ids)]) for r, name, rows in self.entries)
        )

    @property
    def nbytes(self) -> int:
        """Bytes kept on all devices together."""
        return sum(rows.nbytes for _, _, rows in self.entries)


@dataclass(frozen=True)
class Private:
    """What a cohort keeps to itself: named tensors [C, ...], and its log."""

    values: Params
    log: Log = field(default_factory=Log)

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def with_(self, **values: Tensor) -> Private:
        """The same with some values set."""
        return replace(self, values={**self.values, **values})


# -- what a server keeps of people -----------------------------------------------------------------


def rows_of_people(name: str, value: Tensor, clients: int) -> bool:
    """Whether a value of the server has a row per client: its last name is "user"."""
    return name.rsplit("/", 1)[-1] == "user" and value.dim() >= 1 and len(value) == clients


def begun_anew(own: Params, first: Params, who: Tensor, clients: int) -> dict[str, Tensor]:
    """What a server keeps, with the rows of some people as they first were; 0 where none are known.

    own, first: the server's values now, and those a new federation would have
    """
    out = dict(own)
    for name, value in own.items():
        if rows_of_people(name, value, clients):
            out[name] = value.clone()
            out[name][who.to(value.device)] = first[name].to(value)[who] if name in first else 0
    return out


def without_moments(own: Params) -> dict[str, Tensor]:
    """What a server keeps, but for what its optimisers remember of gradients."""
    return {name: value for name, value in own.items() if "server/" not in name}
