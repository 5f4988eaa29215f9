"""Notes that something was asked for, so that asking again with the same key does nothing more."""

from __future__ import annotations

from dataclasses import dataclass

from rescind.ledger.batch import Answer, Batch


@dataclass(frozen=True)
class Note:
    """Records nothing but its answer. For work that takes longer than a transaction may."""

    what: str
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Answer 202: it was asked for now."""
        return Answer(202, {"asked": self.what, "at": batch.now.isoformat()})
