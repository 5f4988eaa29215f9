"""An operator holds an account: its loans leave the store and the sum, and it cannot lend."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import update

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.kept_part import NO_PART, kept_part_of, replace_kept_part
from rescind.ledger.lending import NOTHING, QUARANTINED, loans_of, logged, member, replace_loans


@dataclass(frozen=True)
class Quarantine:
    """Take somebody's loans out. A loan is a copy: they still have the records themselves."""

    person: bytes
    reason: str

    def carry_out(self, batch: Batch) -> Answer:
        """Destroy the key of the loans and hold the account. The reason is not kept here."""
        row = member(batch, self.person)
        old = loans_of(batch, row)
        if len(old):
            replace_loans(batch, row, old, NOTHING)
        if row.kept_box is not None:
            replace_kept_part(batch, row, kept_part_of(batch, row), NO_PART.items, b"")
        here = tables.person.c.id == self.person
        batch.tx.execute(update(tables.person).where(here).values(state=QUARANTINED))
        logged(batch, "quarantine", self.person, old)
        return Answer(200, {"state": QUARANTINED, "n": len(old)})
