"""Whom the next release mixes, and how many records were taken back since the last one.

People count who were in the last release and whose loans differ now: an account that lends and
takes back at once changes nothing between two releases, and hides nobody. So the sum's parts of the
last release stay in memory until the next one (`LiveSum.loans` are never changed in place, so this
costs no copy). On a disk is one number beside each event: how its person stood then, against the
release. A start reads these, so it counts as before; what somebody had who changed before it is not
known any more, nor who left.

Of records that were taken back a start has the number alone, from the history: their keys are
destroyed, and a copy for an audit would undo that. The audit after it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import and_, case, func, select

from rescind.ledger import tables
from rescind.ledger.batch import Batch, Items
from rescind.ledger.kept_part import PERSON_BYTES, name_of

NEW, SAME, DIFFERENT = range(3)
"""Against a release: not in it, in it and the same now, in it and different now."""
HOLD = "quarantine"
"""Whom an operator holds never counts: it may be somebody made up."""

COUNTED = ("unshare", "erase", "leave")
"""Events that say how many records were taken back."""
UNCOUNTED = ("contribute", "quarantine", "dropped")
"""Events that may take records out of the sum, and do not say how many."""
FEWEST = 100
"""Records from which on an audit judges: fewer say too little, and it of few people."""
NOT_KEPT = (
    "Not judged: the service keeps nothing of what was taken back, and it was started again since."
)


class Tally:
    """The writer notes what it committed; whoever wants to know asks for `number`."""

    def __init__(self, live: Any) -> None:
        """live: the sum, which changes before `note`"""
        self._live = live
        self._last: dict[bytes, Items | None] | None = None
        """Parts of the last release (None: another than now); None: there was no release."""
        self._coming: dict[bytes, Items | None] | None = None
        self._different: set[bytes] = set()
        self._left = 0
        """How many left before the start of this process."""
        self.first: datetime | None = None
        """When the first change since the last release happened."""
        self._first_since_copy: datetime | None = None

    @property
    def number(self) -> int:
        """How many people the next release would mix; before the first one: who lend."""
        return len(self._different) + self._left

    def begin(self, tx: Any, seq: int | None) -> None:
        """Read what a start can know. seq: of the last release; None: there is none"""
        event, since = tables.event.c, -1 if seq is None else seq
        chosen = select(event.seq, event.person, event.kind, event.at, event.against)
        rows = tx.execute(chosen.where(event.seq > since).order_by(event.seq)).all()
        self.first = next((row.at for row in rows if row.kind in tables.CHANGES), None)
        people = {name[:PERSON_BYTES] for name in self._live.loans}
        if seq is None:
            self._different = people
            return
        made = next((row.seq for row in rows if row.kind == "release"), 0)
        stood: dict[bytes, int] = {}
        for row in (row for row in rows if row.against is not None):
            coming, last = divmod(row.against, 3)
            standing = coming if row.seq < made else last
            if row.person is not None:
                stood[bytes(row.person)] = standing
            elif row.kind == "leave":  # earlier events of whoever left name nobody either
                self._left += standing == DIFFERENT
        self._last = {
            name: items
            for name, items in self._live.loans.items()
            if stood.get(name[:PERSON_BYTES], SAME) == SAME
        }
        self._different = {person for person, how in stood.items() if how == DIFFERENT}
        self._last |= dict.fromkeys(self._different)

    def standing(self, person: bytes, batch: Batch, kind: str) -> int:
        """Return how a person stands: last release + 3 x the one being made, if there is one."""

        def now(name: bytes) -> Any:
            return batch.changes[name][1] if name in batch.changes else self._now(name)

        if kind == HOLD:
            return NEW
        if self._coming is None:
            return _standing(person, self._last, now)
        coming = _standing(person, self._coming, now)
        if any(one["kind"] == "release" for one in batch.events):  # it was made in this batch
            return coming
        return _standing(person, self._last, now) + 3 * coming

    def note(self, batch: Batch) -> None:
        """Take note of a batch that is committed, and in the sum."""
        people = {name[:PERSON_BYTES] for name in batch.changes}
        for one in batch.events:
            if one["kind"] in tables.CHANGES:
                self.first = self.first or one["at"]
                self._first_since_copy = self._first_since_copy or one["at"]
            elif one["kind"] == HOLD:
                people.add(one["person"])
                for parts in (self._last or {}, self._coming or {}):
                    for name in (one["person"], name_of(one["person"])):
                        parts.pop(name, None)
        self._look(people)

    def copied(self, loans: Mapping[bytes, Items]) -> int:
        """Remember what a release is made from, until it is made; return whom it mixes."""
        self._coming, self._first_since_copy = dict(loans), None
        return self.number

    def failed(self) -> None:
        """Count against the last release again: no other was made."""
        self._coming = None

    def released(self) -> None:
        """Count against the release that was just made."""
        self._last, self._coming, self._left = self._coming, None, 0
        self.first, self._different = self._first_since_copy, set()
        self._look({name[:PERSON_BYTES] for name in self._last or ()})

    def _now(self, name: bytes) -> Any:
        return self._live.loans.get(name, ())

    def _look(self, people: Iterable[bytes]) -> None:
        for person in people:
            if _standing(person, self._last, self._now) == DIFFERENT:
                self._different.add(person)
            else:
                self._different.discard(person)


def _standing(
    person: bytes, parts: Mapping[bytes, Items | None] | None, now: Callable[[bytes], Any]
) -> int:
    """parts: of a release; None: there was none    now: returns what a part of the sum is"""
    names = (person, name_of(person))
    if parts is None:  # before the first release there is nothing to compare with
        return DIFFERENT if any(len(now(name)) for name in names) else NEW
    if not any(name in parts for name in names):
        return NEW
    return SAME if all(_same(parts.get(name, ()), now(name)) for name in names) else DIFFERENT


def _same(then: Any, now: Any) -> bool:
    return then is now or (then is not None and np.array_equal(then, now))


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
