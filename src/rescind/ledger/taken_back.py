"""How many records were taken back, where nothing of the records themselves is kept.

An audit asks about the records. They are in memory until the next release, and on no disk: their
keys are destroyed, and a copy for an audit would undo that. So a start has their number alone, from
the history, and the audit after it says so instead of calling them few.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, case, func, select

from rescind.ledger import tables

COUNTED = ("unshare", "erase", "leave")
"""Events that say how many records were taken back."""
UNCOUNTED = ("contribute", "quarantine", "dropped")
"""Events that may take records out of the sum, and do not say how many."""
FEWEST = 100
"""Records from which on an audit judges: fewer say too little, and it of few people."""
NOT_KEPT = (
    "Not judged: the service keeps nothing of what was taken back, and it was started again since."
)


def at_most(tx: Any, after: int, until: int) -> int | None:
    """Return how many records were taken back between two `seq`; None: it was not counted.

    At most so many: one that was lent again and taken back again counts twice.
    """
    if until <= after:
        return 0
    column = tables.event.c
    within = and_(column.seq > after, column.seq <= until)
    counted = func.sum(case((column.kind.in_(COUNTED), column.n), else_=0))
    uncounted = func.sum(case((column.kind.in_(UNCOUNTED), 1), else_=0))
    number, unknown = tx.execute(select(counted, uncounted).where(within)).one()
    return None if unknown else int(number or 0)


def why_not_judged(known: int, lost: int | None, judged: str) -> str:
    """Return why an audit does not judge fewer than `FEWEST` records.

    known: how many there are to judge    lost: how many a start knows the number of only, at most
    judged: which records would be judged, after "100 records or more"
    """
    if lost is not None and known + lost < FEWEST:
        return f"Too few were taken back: {FEWEST} records or more {judged} are judged as one."
    later = f" What was taken back after that is too little: fewer than {FEWEST} records."
    return NOT_KEPT + later * bool(known)
