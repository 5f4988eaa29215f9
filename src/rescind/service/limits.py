"""How often somebody may call: per session, else per address.

A request to erase is slowed, never refused.
"""

from __future__ import annotations

import asyncio
import time

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from rescind.service import problems
from rescind.service.policy import Limit

RATES: dict[str, RateLimitItem] = {
    "sign-in": parse("10/minute"),
    "account": parse("5/hour"),
    "read": parse("120/minute"),
    "change": parse("120/minute"),
    "erase": parse("120/minute"),
    "contribute": parse("30/minute"),  # a difference is up to 5,000 records, and a page sends few
}
BY_ADDRESS = frozenset({"sign-in", "account"})
"""Counted before anybody is known, so a new session does not start the count anew."""
SLOWED_SECONDS = 1.0
PROBES = 20
"""Different sets of loans per person and release that get a list of their own."""


class Limits:
    """Counts calls in memory. A restart forgets the counts, and an attacker cannot cause one."""

    def __init__(self, on: bool = True, slowed: float = SLOWED_SECONDS) -> None:
        self.on, self.slowed, self.sleep = on, slowed, asyncio.sleep
        self._count = FixedWindowRateLimiter(MemoryStorage())

    async def take(self, limit: Limit, session: str, address: str) -> None:
        """Count one call; raise 429 if there were too many."""
        if not self.on or limit == "none":
            return
        rate = RATES[limit]
        who = address if limit in BY_ADDRESS or not session else session
        if self._count.hit(rate, limit, who):
            return
        if limit == "erase":
            await self.sleep(self.slowed)
            return
        left = self._count.get_window_stats(rate, limit, who).reset_time - time.time()
        raise problems.too_many(int(left) + 1)


class Probing:
    """Stops a person from reading others out of their own lists.

    Whoever changes their loans and looks, again and again, measures the weights. So one release
    answers at most `PROBES` different sets of loans; after that the last list stays.
    """

    def __init__(self, most: int = PROBES) -> None:
        self.most = most
        self._release: int | None = None
        self._seen: dict[bytes, dict[bytes, bytes]] = {}

    def known(self, person: bytes, release: int, loans: bytes) -> tuple[bytes, bool]:
        """Return the list to repeat ("" if it is gone), and whether the limit is reached."""
        if release != self._release:
            self._release, self._seen = release, {}
        lists = self._seen.get(person, {})
        if loans in lists or len(lists) < self.most:
            return b"", False
        return lists[next(reversed(lists))], True

    def keep(self, person: bytes, loans: bytes, answer: bytes) -> None:
        """Remember the list that a set of loans got; only the last one can be asked for."""
        lists = self._seen.setdefault(person, {})
        self._empty(lists)
        lists.pop(loans, None)
        lists[loans] = answer

    def forget(self, person: bytes, left: bool = False) -> None:
        """Drop lists, which name loans, of somebody who took something back. The count stays."""
        self._empty(self._seen.get(person, {}))
        if left:
            self._seen.pop(person, None)

    @staticmethod
    def _empty(lists: dict[bytes, bytes]) -> None:
        for one in lists:
            lists[one] = b""
