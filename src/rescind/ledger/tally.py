"""Counts who changed something since the last release, without asking the database every time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rescind.ledger.tables import CHANGES

NAMELESS = ("leave", "dropped")
"""Events that name nobody. Earlier ones of that person do not either from then on: count anew."""
MOST = 10_000
"""Events that wait to be counted; with more of them the database is asked."""


class Since(NamedTuple):
    """What events after one `seq` say."""

    people: set[bytes]
    left: int
    """Events that name nobody: each is one person."""
    first: datetime | None
    """When the first of them happened."""

    @property
    def number(self) -> int:
        """How many people changed something."""
        return len(self.people) + self.left


class Tally:
    """The writer notes what it committed; whoever wants to know counts it."""

    def __init__(self) -> None:
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._news: list[Mapping[str, Any]] = []
        self._stale, self._anew = True, False
        """Whether the database must be asked; whether somebody left while it was."""
        self._after, self._found = 0, Since(set(), 0, None)

    def note(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take note of events that are committed. events: rows of the table"""
        with self._lock:
            self._news += [one for one in events if one["kind"] in CHANGES]
            if len(self._news) > MOST or any(one["kind"] in NAMELESS for one in self._news):
                self._news, self._stale, self._anew = [], True, True

    def knows(self, after: int) -> bool:
        """Whether a count after this `seq` needs no question to the database."""
        return not self._stale and after == self._after

    def since(self, after: int, read: Callable[[int], Since]) -> Since:
        """Return what happened after a `seq`. read: asks the database for it"""
        with self._counting:
            with self._lock:
                news, self._news = self._news, []
                known, self._stale, self._anew = self.knows(after), True, False
            if not known:
                # Whatever was noted before is committed, so it is found; what is noted meanwhile
                # is added later, and adding a person twice changes nothing.
                self._after, self._found = after, read(after)
            people, left, first = self._found
            for one in news if known else ():
                people.add(one["person"])
                first = one["at"] if first is None else min(first, one["at"])
            self._found = Since(people, left, first)
            with self._lock:
                self._stale = self._anew
            return self._found
