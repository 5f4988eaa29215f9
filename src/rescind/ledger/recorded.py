"""Recorded answers: a request has one effect, however often it is sent. And what expires.

On disk are digests and a box. The box opens only with the caller's Idempotency-Key together with a
key of ours, which is destroyed after 72 hours: an answer holds what only the caller may have, such
as the opening of a commitment.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Once
from rescind.ledger.errors import KeyReused
from rescind.ledger.keyslots import KeySlots, Slot, about, seal, unseal
from rescind.ledger.statements import Driver

EVERY = timedelta(hours=1)
ANSWERS = timedelta(hours=72)
IDLE = timedelta(days=7)
REQUESTS = timedelta(days=3 * 365)
NUMBERS = timedelta(days=365)


class Recorded:
    """Finds and makes rows of `answered`. One key of ours serves for an hour of answers."""

    def __init__(self, keys: KeySlots) -> None:
        self._keys = keys
        self._slot: tuple[datetime, Slot] | None = None

    def lookup(self, person: bytes | None, once: Once) -> bytes:
        """Return under what the answer to this request is found."""
        return self._keys.keyed(b"answered", (person or b"") + b"\0" + once.key.encode())

    def find(self, driver: Driver, lookups: list[bytes]) -> dict[bytes, Any]:
        rows = driver.within(tables.answered, "lookup", lookups)
        return {bytes(row.lookup): row for row in rows}

    def replay(self, row: Any, once: Once) -> Answer:
        """Open a recorded answer, or raise `KeyReused` if the body was another one."""
        if not hmac.compare_digest(bytes(row.body), self._body(once)):
            raise KeyReused(
                "this Idempotency-Key came before with another body. Make a new key for a new "
                "request."
            )
        key, bound = _answer_key(self._keys.get(row.slot), once), _bound(bytes(row.lookup))
        found = json.loads(unseal(key, bytes(row.box), bound))
        return Answer(found["status"], found["body"], replayed=True)

    def row(self, batch: Batch, lookup: bytes, once: Once, answer: Answer) -> dict[str, Any]:
        if self._slot is None or not 0 <= (batch.now - self._slot[0]) / EVERY < 1:
            self._slot = (batch.now, batch.new_key())
        slot = self._slot[1]
        text = f'{{"status":{answer.status},"body":{answer.text}}}'
        return {
            "lookup": lookup,
            "body": self._body(once),
            "slot": slot.id,
            "box": seal(_answer_key(slot, once), text.encode(), _bound(lookup)),
            "at": batch.now,
        }

    def forget_key(self) -> None:
        """Use a new key from now on: the batch that made this one was not written."""
        self._slot = None

    def _body(self, once: Once) -> bytes:
        return self._keys.keyed(b"body", once.key.encode() + b"\0" + once.body)


def _answer_key(slot: Slot, once: Once) -> bytes:
    return hmac.digest(slot.key, b"answer\0" + once.key.encode(), "sha256")


def _bound(lookup: bytes) -> bytes:
    return about(lookup, "answered", "box")


@dataclass(frozen=True)
class Expire:
    """Delete recorded answers, sessions, old requests, and old numbers of jobs and audits."""

    def carry_out(self, batch: Batch) -> Answer:
        tx, now, answered = batch.tx, batch.now, tables.answered.c
        old = answered.at < now - ANSWERS
        slots = set(tx.scalars(select(answered.slot).where(old).distinct()))
        tx.execute(delete(tables.answered).where(old))
        for slot_id in slots - set(tx.scalars(select(answered.slot).distinct())):
            batch.destroy(slot_id)
        session, request = tables.session.c, tables.request.c
        tx.execute(
            delete(tables.session).where(or_(session.expires < now, session.seen < now - IDLE))
        )
        tx.execute(update(tables.request).where(request.link_until < now).values(link=None))
        ended = request.receipt_slot.is_(None)  # never one that still waits for its receipt
        tx.execute(delete(tables.request).where(request.received_at < now - REQUESTS, ended))
        for table in (tables.round_, tables.audit):
            tx.execute(delete(table).where(table.c.at < now - NUMBERS))
        tx.execute(
            delete(tables.job).where(tables.job.c.at < now - NUMBERS, tables.job.c.key.is_(None))
        )
        tx.execute(delete(tables.token).where(tables.token.c.expires < now))
        return Answer(200)
