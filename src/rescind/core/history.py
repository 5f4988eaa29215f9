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
from rescind.core.records import (
    Arrive,
    Erase,
    EraseEdges,
    Event,
    Records,
    Share,
    Unshare,
    Withdraw,
    concerned,
)
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
        # Events then need not carry its lots on.
        return cls(origin.without_lots(), first.to(origin.members.device), base)

    def after_event(self, at: int, event: Event, after: Holdings, here: RestorePoint) -> History:
        """Return the history after one more event, which follows round `at`."""
        if isinstance(event, Arrive):  # devices delete the previous block: it cannot be rerun
            return History.begin(after, here)
        if isinstance(event, Erase | Withdraw):
            return self.without(event)
        new = self.first.new_full((max(after.clients - len(self.first), 0),), NEVER)
        first = torch.cat([self.first, new]) if len(new) else self.first
        return replace(self, first=first, story=(*self.story, (at, event)))

    def record_participants(self, round_: int, ids: Tensor) -> History:
        """Record which clients were in a round's sums."""
        new = ids[self.first[ids] == NEVER]
        return replace(self, first=self.first.index_fill(0, new, round_)) if len(new) else self

    def with_point(self, point: RestorePoint) -> History:
        return replace(self, points=(*self.points, point))

    def until(self, round_: int) -> History:
        """Drop restore points after a round, when that round is restored."""
        return replace(self, points=tuple(p for p in self.points if p.round <= round_))

    def without(self, event: Event) -> History:
        """Remove the records of a request from the history; an Unshare leaves them on devices.

        Restore points stay: drop those that used the records with `before`.
        """
        origin = self.origin
        match event:
            case Withdraw(client):
                if client < origin.clients and bool(origin.members[client]):
                    origin = origin.apply(event)
            case Erase():
                origin = origin.erased(event)
            case Unshare(records):
                origin = origin.without_loans(records)
            case _:
                return self
        left = ((at, _without(past, event)) for at, past in self.story)
        return replace(self, origin=origin, story=tuple((at, e) for at, e in left if e is not None))

    def influence(self, event: Event, round_: int) -> int | None:
        """Return the first round that the request's records may have influenced; None: no round.

        Shared records count from the round after sharing, since the server learns from all of
        them; records on a device from the first round its client took part in; hosted data at once.
        """
        if not isinstance(event, Withdraw | Unshare | Erase):
            return None
        start = 0 if self.base is None else self.base.round
        origin = self.origin.part(concerned(event))
        lent = _named(origin.records[origin.lent], event)
        rounds = [start + 1] if len(lent) else []
        for at, past in self.story:
            shared = isinstance(past, Share) and len(_named(past.records, event)) > 0
            if shared or isinstance(past, Host):
                rounds.append(at + 1)
        if not isinstance(event, Unshare):
            ids = concerned(event).to(self.first.device)
            first = self.first[ids[ids < len(self.first)]]
            rounds += first[first != NEVER].tolist()
        return min((r for r in rounds if r <= round_), default=None)

    def before(self, first: int) -> History:
        """Keep only the restore points taken before a round."""
        return replace(self, points=tuple(p for p in self.points if p.round < first))

    @property
    def nbytes(self) -> int:
        """Return the size of all restore points in bytes."""
        return sum(p.nbytes for p in self.points) + (self.base.nbytes if self.base else 0)


def _named(records: Records, request: Withdraw | Unshare | Erase) -> Records:
    if isinstance(request, Withdraw):
        return records.of_clients(concerned(request))
    if isinstance(request, EraseEdges):  # the nodes at its ends stay
        return Records.none()
    return records.matching(request.records)


def _left(records: Records, request: Withdraw | Unshare | Erase) -> Records:
    if isinstance(request, Withdraw):
        return records.without_client(request.client)
    return records if isinstance(request, EraseEdges) else records.without(request.records)


def _without(event: Event, request: Withdraw | Unshare | Erase) -> Event | None:
    """Return a past event without what a request names; None if it is empty then."""
    if isinstance(event, Share | Unshare):
        left = _left(event.records, request)
        if left is event.records:
            return event
        return type(event)(left) if len(left) else None
    gone = isinstance(request, Withdraw) and getattr(event, "client", None) == request.client
    return None if gone else event
