"""An operator holds an account, or removes whoever was let in: another one, an agent, a token."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select, update

from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.kept_part import KEPT, LOANS, kept_part_of, replace_part
from rescind.ledger.lending import NOTHING, QUARANTINED, loans_of, logged, member

NAMED = {
    "operator": tables.operator.c.name,
    "agent": tables.agent.c.id,
    "token": tables.token.c.name,
}
"""What can be removed, and the column of the name it goes by. Invitations are tokens, too."""


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
            replace_part(batch, row, LOANS, old, NOTHING)
        if row.kept_box is not None:
            replace_part(batch, row, KEPT, kept_part_of(batch, row).items, NOTHING)
        here = tables.person.c.id == self.person
        batch.tx.execute(update(tables.person).where(here).values(state=QUARANTINED))
        logged(batch, "quarantine", self.person, old)
        return Answer(200, {"state": QUARANTINED, "n": len(old)})


@dataclass(frozen=True)
class Remove:
    """Remove all that go by this name, with their sessions. 200 with how many there were."""

    kind: str
    name: str

    def carry_out(self, batch: Batch) -> Answer:
        if self.kind not in NAMED:
            raise ConfigError(f"'{self.kind}' cannot be removed. There are: {', '.join(NAMED)}.")
        column, session = NAMED[self.kind], tables.session.c.operator
        if self.kind == "operator":
            gone = select(tables.operator.c.id).where(column == self.name)
            batch.tx.execute(delete(tables.session).where(session.in_(gone)))
        count = batch.tx.execute(delete(column.table).where(column == self.name)).rowcount
        if not count:
            known = ", ".join(sorted(set(batch.tx.scalars(select(column))))) or "none"
            raise ConfigError(
                f"there is no {self.kind} '{self.name}'. There are: {known}. Whoever was invited "
                f"and is not here yet is a token: rescind tokens list."
            )
        return Answer(200, {"removed": count})
