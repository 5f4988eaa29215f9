"""Operations of agents: a request that somebody else sends for a person (Data Rights Protocol).

An agent's request is `open` when it arrives. It is then looked at: with a code that the person made
on their page it is carried out; without one it needs the person's own word, for 14 days. Only a
request that waits for that word can be revoked: what is erased cannot be given back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Row, insert, select, update

from rescind.core.deadlines import beyond_the_law
from rescind.ledger import tables
from rescind.ledger.accounts import spend_agent_code
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.errors import Ended, NotThere
from rescind.ledger.lending import LINK, TakeBack

OPEN, IN_PROGRESS, FULFILLED = "open", "in_progress", "fulfilled"
REVOKED, DENIED, EXPIRED = "revoked", "denied", "expired"
NEED_USER_VERIFICATION, INSUFFICIENT = "need_user_verification", "insuf_verification"
STATES = (OPEN, IN_PROGRESS, FULFILLED, REVOKED, DENIED, EXPIRED)
ACCESS, LEAVE = "access", "leave"
PATIENCE = timedelta(days=14)


@dataclass(frozen=True)
class Ask:
    """An agent asks for a person. The answer says `open`; `Advance` goes on from there."""

    agent: str
    kind: str
    callback: str | None = None
    code: bytes | None = None
    """Where the person's code is found (`credential.lookup`); None: no code came with it."""

    def carry_out(self, batch: Batch) -> Answer:
        name = batch.entropy(16).hex()
        due = batch.now + timedelta(days=batch.options.deadline_days)
        row = {
            "id": name,
            "kind": self.kind,
            "n": 0,
            "status": OPEN,
            "level": "L0",
            "received_at": batch.now,
            "expected_by": due,
            "agent": self.agent,
            "code": self.code,
            "callback": self.callback,
            "callback_due": batch.now if self.callback else None,
            "callback_tries": 0,
        }
        batch.tx.execute(insert(tables.request).values(row))
        times = {"received_at": batch.now.isoformat(), "expected_by": due.isoformat()}
        return Answer(200, {"request_id": name, "status": OPEN, **times})


@dataclass(frozen=True)
class Advance:
    """Look at requests that are open, and end those that waited too long for a person's word."""

    def carry_out(self, batch: Batch) -> Answer:
        rows = tables.request
        waiting = (rows.c.status == OPEN) | (rows.c.reason == NEED_USER_VERIFICATION)
        moved = 0
        for row in batch.tx.execute(select(rows).where(rows.c.agent.is_not(None), waiting)).all():
            moved += _advance(batch, row)
        return Answer(200, {"moved": moved})


def _advance(batch: Batch, row: Row) -> bool:
    if row.status == OPEN:
        person = spend_agent_code(batch, bytes(row.code)) if row.code else None
        if person is None:
            _set(batch, row.id, status=IN_PROGRESS, reason=NEED_USER_VERIFICATION)
        else:
            _carry_out_for(batch, row, person)
        return True
    if batch.now - row.received_at > PATIENCE:
        _set(batch, row.id, status=DENIED, reason=INSUFFICIENT)
        return True
    return False


@dataclass(frozen=True)
class GiveWord:
    """A person confirms a request that an agent sent for them; it is carried out at once."""

    person: bytes
    request: str

    def carry_out(self, batch: Batch) -> Answer:
        row = _row(batch, self.request)
        if row is None or row.agent is None or row.reason != NEED_USER_VERIFICATION:
            raise NotThere("there is no such request that waits for you.")
        return _carry_out_for(batch, row, self.person)


def _carry_out_for(batch: Batch, row: Row, person: bytes) -> Answer:
    """Delete everything and the account, or open the link to everything, for `access`."""
    if row.kind == LEAVE:
        answer = TakeBack(person, LEAVE, request=row.id).carry_out(batch)
        _tell(batch, row)
        return answer
    _set(
        batch,
        row.id,
        person=person,
        status=FULFILLED,
        reason=None,
        issued_at=batch.now,
        link=access_link(batch.keyed, row.id)[1],
        link_until=batch.now + LINK,
    )
    return Answer(200, {"request_id": row.id, "status": FULFILLED})


def access_link(keyed: Callable[[bytes, bytes], bytes], request: str) -> tuple[bytes, bytes]:
    """Return the token of the link to an access request's results, and its digest.

    The token is made from the server's secret, so that it need not be kept to be told again.
    """
    token = keyed(b"access link", request.encode())
    return token, hashlib.sha256(token).digest()


@dataclass(frozen=True)
class Revoke:
    """An agent takes its request back, while it still waits for the person's word."""

    agent: str
    request: str

    def carry_out(self, batch: Batch) -> Answer:
        row = _row(batch, self.request)
        if row is None or row.agent != self.agent:
            raise NotThere("there is no such request of this agent.")
        waits = row.status == OPEN or row.reason == NEED_USER_VERIFICATION
        if row.status != REVOKED and not waits:
            raise Ended(
                "this request was carried out already, and what is erased cannot be given back."
            )
        _set(batch, row.id, status=REVOKED, reason=None)
        return Answer(200, {"request_id": row.id, "status": REVOKED})


@dataclass(frozen=True)
class Extend:
    """The operator gives a request more time, with a reason that its person is told."""

    request: str
    days: int
    reason: str

    def carry_out(self, batch: Batch) -> Answer:
        """Write the new day, or refuse if the request has ended.

        The operator decides, so a day that the law does not allow is a warning.
        """
        row = _row(batch, self.request)
        if row is None:
            raise NotThere("there is no such request.")
        if row.status not in (OPEN, IN_PROGRESS):
            raise Ended(f"this request is {row.status}: it needs no more time.")
        due = row.expected_by + timedelta(days=self.days)
        reason = row.reason if row.reason == NEED_USER_VERIFICATION else self.reason
        _set(batch, row.id, expected_by=due, reason=reason)
        warning = beyond_the_law(row.received_at, due)
        told = {"warning": warning} if warning else {}
        return Answer(200, {"request_id": row.id, "expected_by": due.isoformat(), **told})


@dataclass(frozen=True)
class Told:
    """An agent was told a status, or could not be reached."""

    request: str
    tries: int
    due: datetime | None

    def carry_out(self, batch: Batch) -> Answer:
        _set(batch, self.request, callback_tries=self.tries, callback_due=self.due, tell=False)
        return Answer(200)


def _row(batch: Batch, request: str) -> Row | None:
    return batch.tx.execute(
        select(tables.request).where(tables.request.c.id == request)
    ).one_or_none()


def _tell(batch: Batch, row: Row) -> None:
    """Have the agent told what changed."""
    if row.callback:
        here = tables.request.c.id == row.id
        values = {"callback_due": batch.now, "callback_tries": 0}
        batch.tx.execute(update(tables.request).where(here).values(values))


def _set(batch: Batch, request: str, tell: bool = True, **values: object) -> None:
    here = tables.request.c.id == request
    batch.tx.execute(update(tables.request).where(here).values(**values))
    if tell and (row := _row(batch, request)) is not None:
        _tell(batch, row)
