"""Notes that something was asked for, so that asking again with the same key does nothing more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rescind.ledger.batch import Answer, Batch
from rescind.ledger.reading import Reading

SCAN = "scan"
"""The setting that holds what the last scan found: counts and a time."""


@dataclass(frozen=True)
class Scanned:
    """Keeps what a scan found, until the next one."""

    body: Mapping[str, Any]
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Answer 200 with it."""
        batch.keep(SCAN, json.dumps(dict(self.body)))
        return Answer(200, self.body)


def last_scan(reading: Reading) -> dict[str, Any] | None:
    """Return what the last scan found; None before the first."""
    text = reading.setting(SCAN)
    return None if text is None else dict(json.loads(text))


@dataclass(frozen=True)
class Note:
    """Records nothing but its answer. For work that takes longer than a transaction may."""

    what: str
    look: str
    """The route that tells what becomes of it."""
    check: Callable[[], None] = lambda: None
    """Raises where it cannot be done."""
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Answer 202: it was asked for now."""
        self.check()
        about = {"asked": self.what, "at": batch.now.isoformat(), "look": self.look}
        return Answer(202, about)
