"""Refusals that only a running service has: `service.problems` gives each its HTTP status.

`OlderLedger` and `CannotStart` end a start with a sentence and exit code 2.
"""

from __future__ import annotations

from rescind.errors import ConfigError, ConsentError, DataError, RescindError


class NotThere(RescindError):
    """There is no such thing, or it is not the caller's: one answer for both."""


class CodeNotKnown(NotThere):
    """A recovery code that opens nothing, or no longer."""

    def __init__(self) -> None:
        super().__init__("this recovery code is not known here, or was used before.")


class StillRunning(RescindError):
    """The first request with this Idempotency-Key has not been answered yet."""


class Ended(ConsentError):
    """A request that has ended: nothing about it can be changed any more."""


class VersionConflict(RescindError):
    """The loans have changed since the caller read them (`If-Match`)."""


class KeyReused(RescindError):
    """An Idempotency-Key came again with another body."""


class DiskFull(RescindError):
    """The disk is full: nothing was written, reading goes on."""


class LogRemoved(DiskFull):
    """The write-ahead log of SQLite has lost its name: what is written is on no disk after a crash.

    A stop saves everything: it moves the log, which the process still has open, into the database.
    """


class Busy(RescindError):
    """The database is away for a moment: nothing was acknowledged, send it again."""


class Closing(RescindError):
    """The service is ending and takes no more changes."""


class CannotStart(DataError):
    """What is on disk does not fit together. The message says what to do."""


class OlderLedger(ConfigError):
    """The ledger is older than its keys, or not theirs: starting would destroy keys."""
