"""What a federation must remember of its own past to be able to undo a part of it.

Exact forgetting is the same rounds again, without the records. It need not begin at the first
round: up to the round in which a record first mattered, history is the same with and without it.
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
"""The round a client that never took part first took part in."""


@dataclass(frozen=True)
class RestorePoint:
    """Where one can go back to: the model on both sides of the boundary, and no data."""

    state: ServerState
    private: Params
    log: Log
    hosted: tuple[tuple[Params, Log], ...] = ()

    @property
    def round(self) -> int:
        """The round it was taken after."""
        return self.state.round

    @property
    def nbytes(self) -> int:
        """Bytes it occupies."""
        kept = [self.state.public, self.state.own, self.private, *(p for p, _ in self.hosted)]
        logs = [self.log, *(log for _, log in self.hosted)]
        memory = self.state.memory.nbytes
        return sum(map(nbytes, kept)) + sum(log.nbytes for log in logs) + memory


@dataclass(frozen=True)
class History:
    """How the present came about, less whatever was forgotten since."""

    origin: Holdings
    """The devices before the first round, or at the beginning of the present block."""
    first: Tensor
    """[clients] int32: the round each client first took part in, `NEVER` = 0."""
    base: RestorePoint | None = None
    """The model at the origin; None: first values."""
    story: tuple[tuple[int, Event], ...] = ()
    """(round, event), oldest first: what happened after that round."""
    points: tuple[RestorePoint, ...] = ()
    """Where one can go back to, oldest first."""

    @classmethod
    def begin(cls, origin: Holdings, base: RestorePoint | None = None) -> History:
        """Nothing has happened yet."""
        first = torch.full((origin.clients,), NEVER, dtype=torch.int32)
        return cls(origin, first.to(origin.members.device), base)

    def told(self, round_: int, event: Event, after: Holdings, here: RestorePoint) -> History:
        """The past after one more event."""
        if isinstance(event, Arrive):  # devices drop the block before: nobody can repeat it
            return History.begin(after, here)
        if isinstance(event, Erase | Withdraw):
            return self.without(event)
        past = replace(self, story=(*self.story, (round_, event)))
        return past._room(after.clients)

    def took_part(self, round_: int, who: Tensor) -> History:
        """Remember who was in a round's sums."""
        new = who[self.first[who] == NEVER]
        if not len(new):
            return self
        first = self.first.clone()
        first[new] = round_
        return replace(self, first=first)

    def with_point(self, point: RestorePoint) -> History:
        """One more point to go back to."""
        return replace(self, points=(*self.points, point))

    def until(self, round_: int) -> History:
        """Nothing after a round: what is left when an earlier one is restored."""
        return replace(self, points=tuple(p for p in self.points if p.round <= round_))

    def without(self, event: Event) -> History:
        """As if the records of a request had never been there; an Unshare leaves them on devices.

        The points stay: whoever purges must drop those that saw the records (`before`).
        """
        origin = self.origin
        if isinstance(event, Withdraw):
            client = event.client
            if client < origin.clients and bool(origin.members[client]):
                origin = origin.apply(event)
            story = tuple(
                (at, told)
                for at, told in ((at, _without_client(e, client)) for at, e in self.story)
                if told is not None
            )
            return replace(self, origin=origin, story=story)
        if isinstance(event, Unshare | Erase):
            records = event.records
            erased = isinstance(event, Erase)
            origin = origin.without(records) if erased else origin.without_loans(records)
            story = tuple(
                (at, told)
                for at, told in ((at, _without_records(e, records)) for at, e in self.story)
                if told is not None
            )
            return replace(self, origin=origin, story=story)
        return self

    def influence(self, event: Event, round_: int) -> int | None:
        """The first round that a request's records may have mattered in; None: in none so far.

        Lent records matter from the round after the loan, since the server learns from all it has;
        what a device keeps, from the round its owner first took part in. What the server hosts
        matters at once.
        """
        if isinstance(event, Withdraw):
            who = torch.tensor([event.client], device=self.first.device)
            lent = self.origin.records[self.origin.lent & (self.origin.records.client == who)]
        elif isinstance(event, Unshare | Erase):
            who = torch.unique(event.records.client).to(self.first.device)
            mine = self.origin.lent & self.origin.records.among(event.records)
            lent = self.origin.records[mine]
        else:
            return None
        start = 0 if self.base is None else self.base.round
        rounds = [start + 1] if len(lent) else []
        for at, told in self.story:
            if isinstance(told, Share) and _touches(told.records, event):
                rounds.append(at + 1)
            if isinstance(told, Host):
                rounds.append(at + 1)
        if not isinstance(event, Unshare):
            drawn = self.first[who[who < len(self.first)]]
            rounds += drawn[drawn != NEVER].tolist()
        rounds = [r for r in rounds if r <= round_]
        return min(rounds) if rounds else None

    def before(self, first: int) -> History:
        """Only the points that were taken before a round: the others saw what it brought."""
        return replace(self, points=tuple(p for p in self.points if p.round < first))

    @property
    def nbytes(self) -> int:
        """Bytes of all points."""
        return sum(p.nbytes for p in self.points) + (self.base.nbytes if self.base else 0)

    def _room(self, clients: int) -> History:
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
    """An event less some records; None if nothing is left of it."""
    if isinstance(event, Share | Unshare):
        left = event.records[~event.records.among(records)]
        return type(event)(left) if len(left) else None
    return event


def _without_client(event: Event, client: int) -> Event | None:
    """An event less one client; None if nothing is left of it."""
    if isinstance(event, Share | Unshare):
        left = event.records[event.records.client != client]
        return type(event)(left) if len(left) else None
    return None if getattr(event, "client", None) == client else event
