"""What the ledger in place has done, and a backup of before does not know."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from rescind.core.words import count_of
from rescind.ledger import tables
from rescind.ledger.reading import OPEN


@dataclass(frozen=True)
class Undone:
    """What going back from the ledger in place to another one undoes."""

    answers: int
    """Requests that are answered here and open there."""
    answers_without_key: int
    """Those of them that cannot get another receipt: its key was destroyed with the first one."""
    requests: int
    """Requests that are not there at all. What they took back stays gone: its keys are."""
    tokens_lost: int
    tokens_back: int
    """Tokens that were revoked or spent since, and open doors again."""

    def __str__(self) -> str:
        if self == Undone(0, 0, 0, 0, 0):
            return "Undone: nothing. Every request and token of the ledger in place is known."
        again = self.answers - self.answers_without_key
        receipts = f": {again:,} can get another receipt, {self.answers_without_key:,} cannot"
        end = "ends" if self.tokens_lost == 1 else "end"
        back = "opens" if self.tokens_back == 1 else "open"
        return (
            f"Undone: {_are(self.answers, 'answered request')} open again"
            f"{receipts if self.answers else ''}; {_are(self.requests, 'request')} not known any "
            f"more, so the links and receipts that people hold of such requests lead nowhere (what "
            f"they took back stays gone).\n"
            f"Tokens: {self.tokens_lost:,} made since {end}; {self.tokens_back:,} that ended "
            f"since {back} doors again: rescind tokens list, then revoke."
        )

    @classmethod
    def between(cls, here: Connection, there: Connection, without_key: set[str]) -> Undone:
        """Compare the ledger in place with the one that replaces it.

        without_key: open requests of the other one whose receipts cannot be issued
        """
        table = tables.request
        question = select(table.c.id, table.c.status)
        now, then = ({row.id: row.status for row in one.execute(question)} for one in (here, there))
        made, kept = (
            {bytes(digest) for digest in one.scalars(select(tables.token.c.digest))}
            for one in (here, there)
        )
        known = now.keys() & then.keys()
        answered = {name for name in known if then[name] in OPEN and now[name] not in OPEN}
        return cls(
            len(answered),
            len(answered & without_key),
            len(now.keys() - known),
            len(made - kept),
            len(kept - made),
        )


def _are(number: int, thing: str) -> str:
    return f"{count_of(number, thing)} {'is' if number == 1 else 'are'}"
