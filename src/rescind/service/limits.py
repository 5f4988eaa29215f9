"""How often somebody may call: per session, else per network.

A request to erase is slowed, never refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import NamedTuple

from rescind.service import problems
from rescind.service.policy import Limit


class Rate(NamedTuple):
    """So many calls in so many seconds, counted from the first of them."""

    most: int
    seconds: float


ACCOUNTS = 5
"""New accounts an hour from one network, or as many as `serve --accounts-per-hour` says."""
RATES: dict[str, Rate] = {
    "sign-in": Rate(10, 60),
    "account": Rate(ACCOUNTS, 3600),
    "read": Rate(120, 60),
    "change": Rate(120, 60),
    "erase": Rate(120, 60),
    "contribute": Rate(30, 60),  # a difference is up to 5,000 records, and a page sends few
}
BY_ADDRESS = frozenset({"sign-in", "account"})
"""Counted before anybody is known, so a new session does not start the count anew."""
SLOWED_SECONDS = 1.0
TIDY_SECONDS = 60.0
"""How often counts that have ended are thrown away."""
PROBES = 20
"""Different sets of loans per person and release that get a list of their own."""


def network_of(address: str) -> str:
    """Return what one customer of a provider has: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or f"{IPv6Address(int(found) >> 64 << 64)}/64")


class Limits:
    """Counts calls in memory. A restart forgets the counts, and an attacker cannot cause one."""

    def __init__(self, on: bool = True, accounts: int = ACCOUNTS) -> None:
        self.on, self.accounts = on, accounts
        self.sleep, self.clock = asyncio.sleep, time.monotonic
        self._windows: dict[tuple[Limit, Hashable], list[float]] = {}
        """When a count ends, and what it is."""
        self._tidied = 0.0

    async def take(self, limit: Limit, session: bytes, address: str) -> None:
        """Count one call; raise 429 if there were too many."""
        if not self.on or limit == "none":
            return
        alone = bool(session) and limit not in BY_ADDRESS
        wait = self._hit(limit, session if alone else network_of(address))
        if not wait:
            return
        if limit == "erase":
            await self.sleep(SLOWED_SECONDS)
            return
        raise problems.too_many(ceil(wait))

    def _hit(self, limit: Limit, who: Hashable) -> float:
        """Count one call; return the seconds until the next one is allowed, 0 for this one."""
        now, rate = self.clock(), RATES[limit]
        if limit == "account":
            rate = rate._replace(most=self.accounts)
        window = self._windows.get((limit, who))
        if window is None or window[0] <= now:
            self._tidy(now)
            self._windows[limit, who] = [now + rate.seconds, 1]
            return 0.0
        window[1] += 1
        return window[0] - now if window[1] > rate.most else 0.0

    def _tidy(self, now: float) -> None:
        if now - self._tidied >= TIDY_SECONDS:
            self._tidied = now
            self._windows = {who: one for who, one in self._windows.items() if one[0] > now}

    def __len__(self) -> int:
        """How many counts are kept."""
        return len(self._windows)


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
