"""Notes that something was asked for, so that asking again with the same key does nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rescind.ledger.batch import Answer, Batch


@dataclass(frozen=True)
class Told:
    """Records what was found, so that asking again with the same key gets the same answer."""

    body: Mapping[str, Any]
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Answer 200 with it."""
        return Answer(200, self.body)


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
