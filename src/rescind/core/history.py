"""What a federation stores of its past, so that a part can be undone.

Exact forgetting reruns the same rounds without the records. It can start at the round in which a
record was first used: until then the run is the same with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.core.holdings import Holdings
from rescind.core.params import Params, nbytes
from rescind.core.records import Arrive, Erase, Event, Records, Share, Unshare, Withdraw
from rescind.core.state import Log, ServerState
from rescind.core.world import Host

NEVER = 0
"""Stored as the first round of a client that never took part."""


@dataclass(frozen=True)
class RestorePoint:
    """A point to restore: the model on server and devices, without data."""

    state: ServerState
    private: Params
    log: Log
    hosted: tuple[tuple[Params, Log], ...] = ()

    @property
    def round(self) -> int:
        """Return the round after which it was taken."""
        return self.state.round

    @property
    def nbytes(self) -> int:
        """Return its size in bytes."""
        kept = [self.state.public, self.state.own, self.private, *(p for p, _ in self.hosted)]
        logs = [self.log, *(log for _, log in self.hosted)]
        memory = self.state.memory.nbytes
        return sum(map(nbytes, kept)) + sum(log.nbytes for log in logs) + memory


@dataclass(frozen=True)
class History:
    """How the current model was trained, without forgotten records."""

    origin: Holdings
    """The devices before the first round, or at the start of the current block."""
    first: Tensor
    """[clients] int32: the round each client first took part in, `NEVER` = 0."""
    base: RestorePoint | None = None
    """The model at the origin; None: initial values."""
    story: tuple[tuple[int, Event], ...] = ()
    """(round, event), oldest first: events after that round."""
    points: tuple[RestorePoint, ...] = ()
    """Restore points, oldest first."""

    @classmethod
    def begin(cls, origin: Holdings, base: RestorePoint | None = None) -> History:
        """Start an empty history."""
        first = torch.full((origin.clients,), NEVER, dtype=torch.int32)
        return cls(origin, first.to(origin.members.device), base)

    def after_event(
        self, round_: int, event: Event, after: Holdings, here: RestorePoint
    ) -> History:
        """Return the history after one more event."""
        if isinstance(event, Arrive):  # devices delete the previous block: it cannot be rerun
            return History.begin(after, here)
        if isinstance(event, Erase | Withdraw):
            return self.without(event)
        past = replace(self, story=(*self.story, (round_, event)))
        return past._extend(after.clients)

    def record_participants(self, round_: int, ids: Tensor) -> History:
        """Record which clients were in a round's sums."""
        new = ids[self.first[ids] == NEVER]
        if not len(new):
            return self
        first = self.first.clone()
        first[new] = round_
        return replace(self, first=first)

    def with_point(self, point: RestorePoint) -> History:
        """Add a restore point."""
        return replace(self, points=(*self.points, point))

    def until(self, round_: int) -> History:
        """Drop restore points after a round, when that round is restored."""
        return replace(self, points=tuple(p for p in self.points if p.round <= round_))

    def without(self, event: Event) -> History:
        """Remove the records of a request from the history; an Unshare leaves them on devices.

        Restore points stay: drop those that used the records with `before`.
        """
        origin = self.origin
        if isinstance(event, Withdraw):
            client = event.client
            if client < origin.clients and bool(origin.members[client]):
                origin = origin.apply(event)
            story = tuple(
                (at, left)
                for at, left in ((at, _without_client(e, client)) for at, e in self.story)
                if left is not None
            )
            return replace(self, origin=origin, story=story)
        if isinstance(event, Unshare | Erase):
            records = event.records
            erased = isinstance(event, Erase)
            origin = origin.without(records) if erased else origin.without_loans(records)
            story = tuple(
                (at, left)
                for at, left in ((at, _without_records(e, records)) for at, e in self.story)
                if left is not None
            )
            return replace(self, origin=origin, story=story)
        return self

    def influence(self, event: Event, round_: int) -> int | None:
        """Return the first round that the request's records may have influenced; None: no round.

        Shared records count from the round after sharing, since the server learns from all of
        them; records on a device from the first round its client took part in; hosted data at once.
        """
        if isinstance(event, Withdraw):
            ids = torch.tensor([event.client], device=self.first.device)
            lent = self.origin.records[self.origin.lent & (self.origin.records.client == ids)]
        elif isinstance(event, Unshare | Erase):
            ids = torch.unique(event.records.client).to(self.first.device)
            mine = self.origin.lent & self.origin.records.among(event.records)
            lent = self.origin.records[mine]
        else:
            return None
        start = 0 if self.base is None else self.base.round
        rounds = [start + 1] if len(lent) else []
        for at, past in self.story:
            if isinstance(past, Share) and _touches(past.records, event):
                rounds.append(at + 1)
            if isinstance(past, Host):
                rounds.append(at + 1)
        if not isinstance(event, Unshare):
            first = self.first[ids[ids < len(self.first)]]
            rounds += first[first != NEVER].tolist()
        rounds = [r for r in rounds if r <= round_]
        return min(rounds) if rounds else None

    def before(self, first: int) -> History:
        """Keep only the restore points taken before a round."""
        return replace(self, points=tuple(p for p in self.points if p.round < first))

    @property
    def nbytes(self) -> int:
        """Return the size of all restore points in bytes."""
        return sum(p.nbytes for p in self.points) + (self.base.nbytes if self.base else 0)

    def _extend(self, clients: int) -> History:
        missing = clients - len(self.first)
        if missing <= 0:
            return self
        return replace(self, first=torch.cat([self.first, self.first.new_zeros(missing)]))


def _touches(records: Records, event: Event) -> bool:
    if isinstance(event, Withdraw):
        return bool((records.client == event.client).any())
    assert isinstance(event, Unshare | Erase)
    return bool(records.among(event.records).any())


def _without_records(event: Event, records: Records) -> Event | None:
    """Return the event without these records; None if it is empty then."""
    if isinstance(event, Share | Unshare):
        left = event.records[~event.records.among(records)]
        return type(event)(left) if len(left) else None
    return event


def _without_client(event: Event, client: int) -> Event | None:
    """Return the event without one client; None if it is empty then."""
    if isinstance(event, Share | Unshare):
        left = event.records[event.records.client != client]
        return type(event)(left) if len(left) else None
    return None if getattr(event, "client", None) == client else event
