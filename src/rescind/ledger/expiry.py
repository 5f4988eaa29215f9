"""Deletes what its rule ends by time, about once an hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, or_, select, update

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch

EVERY = timedelta(hours=1)
ANSWERS = timedelta(hours=72)
IDLE = timedelta(days=7)
REQUESTS = timedelta(days=3 * 365)
NUMBERS = timedelta(days=365)


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
