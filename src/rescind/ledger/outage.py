"""Say when the database goes and when it is back: callers are told, and so is the operator."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
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
    except Busy:
        text = "the database went away during the start. Start again when it is there. "
        raise CannotStart(text + AGAIN) from None
    except LogRemoved:
        raise
    except DiskFull:
        text = "the disk of the ledger is full. Make space there, then start again. "
        raise CannotStart(text + AGAIN) from None


class Outage:
    """What hinders changes now. Two lines for each outage, however many changes are refused."""

    def __init__(self) -> None:
        self.fault: DiskFull | Busy | None = None
        self._since = 0.0
        self._refused = 0

    def refused(self, error: DiskFull | Busy, changes: int) -> None:
        """Note that changes were refused."""
        if self.fault is None:
            self._since, self._refused = time.monotonic(), 0
            LOG.warning("%s since %s: changes are refused (%d).", _what(error), now(), _of(error))
        self.fault = error
        self._refused += changes

    def ended(self) -> None:
        """Note that a change was written."""
        if self.fault is not None:
            LOG.warning(
                "changes are written again since %s, after %.0f s; %d were refused, its own "
                "included.",
                now(), time.monotonic() - self._since, self._refused,
            )  # fmt: skip
        self.fault = None


def _what(error: DiskFull | Busy) -> str:
    if isinstance(error, LogRemoved):
        return "ledger.db-wal was removed (stop the service as usual, then start it)"
    return "the disk is full" if isinstance(error, DiskFull) else "the database is away"


def _of(error: DiskFull | Busy) -> int:
    """Return the status that callers get, as `service.problems` says."""
    return 507 if isinstance(error, DiskFull) else 503


def now() -> str:
    """Return the time of day, as lines of the log have it."""
    return datetime.now(UTC).strftime("%H:%M:%S UTC")
