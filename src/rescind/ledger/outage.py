"""Say when the database goes and when it is back: callers are told, and so is the operator."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rescind.ledger.errors import Busy, CannotStart, DiskFull, LogRemoved

LOG = logging.getLogger("rescind.service")

AGAIN = "What was acknowledged is not lost, and what this start began is finished by the next one."


@contextmanager
def told_at_a_start() -> Iterator[None]:
    """Tell whoever starts a ledger what to do; `Busy` and `DiskFull` speak to whoever calls one."""
    try:
        yield
    except LogRemoved:
        raise
    except (Busy, DiskFull) as error:
        raise CannotStart(f"{what(error)}. Mend that, then start again. {AGAIN}") from None


class Outage:
    """What hinders changes or chores now: two lines for each outage, however many it hinders."""

    def __init__(self, hindered: str, again: str) -> None:
        """hindered, again: what the lines say"""
        self.fault: DiskFull | Busy | None = None
        self._texts, self._since = (hindered, again), 0.0
        self._whose: set[Hashable] = set()

    def hit(self, error: DiskFull | Busy, whose: Hashable = None) -> None:
        if self.fault is None:
            self._since = time.monotonic()
            LOG.warning("%s since %s: %s.", what(error), _now(), self._texts[0])
        self.fault = error
        self._whose.add(whose)

    def over(self, whose: Hashable = None) -> None:
        """Note that it went; one that was never hindered says nothing about the outage."""
        self._whose.discard(whose)
        if self.fault is not None and not self._whose:
            seconds = time.monotonic() - self._since
            LOG.warning("%s since %s, after %.0f s.", self._texts[1], _now(), seconds)
            self.fault = None


def what(error: Exception) -> str:
    """Return what hinders, in words that hold no id."""
    if isinstance(error, LogRemoved):
        return "ledger.db-wal was removed (stop the service as usual, then start it)"
    return "the disk is full" if isinstance(error, DiskFull) else "the database is away"


def _now() -> str:
    return datetime.now(UTC).strftime("%H:%M:%S UTC")
