"""How often somebody may call: per session, else per network; how much may be open at once.

A request to erase is slowed, never refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Hashable
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from rescind.service import problems
from rescind.service.policy import ACCOUNTS, CHANGES, Limit


class Rate(NamedTuple):
    """So many calls in so many seconds, counted from the first of them."""

    most: int
    seconds: float


RATES: dict[str, Rate] = {
    "sign-in": Rate(10, 60),
    "account": Rate(ACCOUNTS, 3600),
    "read": Rate(120, 60),
    "change": Rate(120, 60),
    "erase": Rate(120, 60),
    "contribute": Rate(30, 60),  # a difference is up to 5,000 records, and a page sends few
    "day": Rate(CHANGES, 24 * 3600),
}
CHANGING = frozenset({"change", "erase", "contribute"})
"""What makes the ledger grow: counted by person and day, too, whatever session sends it."""
BY_ADDRESS = frozenset({"sign-in", "account"})
"""Counted before anybody is known, so a new session does not start the count anew."""
SLOWED_SECONDS = 1.0
TIDY_SECONDS = 60.0
TURN_SECONDS = 10.0
"""From one request to erase to the next, of somebody whose changes of the day are spent."""
PROBES = 20
"""Different sets of loans per person and release that get a list of their own."""


class Limits:
    """Counts calls in memory. A restart forgets the counts, and an attacker cannot cause one."""

    def __init__(self, on: bool = True, accounts: int = ACCOUNTS, changes: int = CHANGES) -> None:
        self.on, self.most = on, {"account": accounts, "day": changes}
        self.sleep, self.clock = asyncio.sleep, time.monotonic
        self._windows: dict[tuple[str, Hashable], list[float]] = {}
        """When a count ends, what it is, and whose turn was given out last."""
        self._tidied = 0.0

    async def take(self, limit: Limit, session: bytes, address: str, person: bytes = b"") -> None:
        """Count one call; raise 429 if there were too many."""
        if not self.on or limit == "none":
            return
        alone = bool(session) and limit not in BY_ADDRESS
        wait = self._hit(limit, session if alone else network_of(address))
        if person and limit in CHANGING and (spent := self._hit("day", person)):
            if limit != "erase":
                raise problems.too_many_today(self.most["day"], ceil(spent))
            await self.sleep(self._turn(self._windows["day", person]))
            return
        if not wait:
            return
        if limit == "erase":
            await self.sleep(SLOWED_SECONDS)
            return
        raise problems.too_many(ceil(wait))

    def _hit(self, limit: str, who: Hashable) -> float:
        """Count one call; return the seconds until the next one is allowed, 0 for this one."""
        now, rate = self.clock(), RATES[limit]
        window = self._windows.get((limit, who))
        if window is None or window[0] <= now:
            self._tidy(now)
            self._windows[limit, who] = [now + rate.seconds, 1, now]
            return 0.0
        window[1] += 1
        return window[0] - now if window[1] > self.most.get(limit, rate.most) else 0.0

    def _turn(self, window: list[float]) -> float:
        """Return the seconds until the turn of one more call: turns are apart, also in parallel."""
        now = self.clock()
        window[2] = max(now, window[2]) + TURN_SECONDS
        return window[2] - now

    def _tidy(self, now: float) -> None:
        if now - self._tidied >= TIDY_SECONDS:
            self._tidied = now
            self._windows = {who: one for who, one in self._windows.items() if one[0] > now}

    def __len__(self) -> int:
        return len(self._windows)


@lru_cache(4096)
def network_of(address: str) -> str:
    """Return by what an address is counted: IPv4 whole, IPv6 by its /64, which one line has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket of the file system, or nothing
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)


class Seats:
    """Counts what is open at once: in all, and of each."""

    def __init__(self, most: int, each: int) -> None:
        self.most, self.each = most, max(1, each)
        self.open = 0
        self._by: Counter[Hashable] = Counter()

    def take(self, who: Hashable) -> bool:
        """Return whether one more may be open; whoever took a seat gives it back."""
        if self.open >= self.most or self._by[who] >= self.each:
            return False
        self.open += 1
        self._by[who] += 1
        return True

    async def held(self, who: Hashable, what: str, app: ASGIApp, *asgi: Any) -> None:
        """Answer while a seat is held, or say that there is none. asgi: scope, receive, send"""
        if not self.take(who):
            await problems.too_much_open(what).response()(*asgi)
            return
        try:
            await app(*asgi)
        finally:
            self.give_back(who)

    def give_back(self, who: Hashable) -> None:
        self.open -= 1
        self._by[who] -= 1
        if not self._by[who]:
            del self._by[who]


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
