"""An operator removes whoever was let in: another operator, an agent, a token for scripts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select

from rescind.errors import ConfigError, suggest
from rescind.ledger import tables
from rescind.ledger.accounts import INVITED
from rescind.ledger.batch import Answer, Batch

NAMED = {
    "operator": tables.operator.c.name,
    "agent": tables.agent.c.id,
    "token": tables.token.c.name,
}
"""What can be removed, and the column of the name it goes by. Invitations are tokens, too."""


@dataclass(frozen=True)
class Remove:
    """Remove all that go by this name, with their sessions. 200 with how many there were."""

    kind: str
    name: str
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Delete the rows; whoever is signed in by one of them is signed out."""
        if self.kind not in NAMED:
            raise ConfigError(f"'{self.kind}' cannot be removed: {suggest(self.kind, NAMED)}")
        column, session = NAMED[self.kind], tables.session.c.operator
        if self.kind == "operator":
            gone = select(tables.operator.c.id).where(column == self.name)
            batch.tx.execute(delete(tables.session).where(session.in_(gone)))
        count = batch.tx.execute(delete(column.table).where(column == self.name)).rowcount
        if not count:
            known = sorted(set(batch.tx.scalars(select(column))))
            raise ConfigError(
                f"there is no {self.kind} '{self.name}'. There are: {', '.join(known) or 'none'}."
                f"{_invited(batch) if self.kind == 'operator' else ''}"
            )
        return Answer(200, {"removed": count})


def _invited(batch: Batch) -> str:
    """Return who may still come in as operator or officer, and how an invitation is taken back."""
    token = tables.token.c
    waiting = token.role.startswith(INVITED) & (token.expires > batch.now)
    names = sorted(set(batch.tx.scalars(select(token.name).where(waiting))))
    if not names:
        return ""
    return (
        f" Invited, and not here yet: {', '.join(names)}. --remove token={names[0]} takes an "
        f"invitation back."
    )
