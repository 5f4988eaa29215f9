"""Recorded answers: a request has one effect, however often it is sent.

On disk are digests and a box. The box opens only with the caller's Idempotency-Key together with a
key of ours, which is destroyed after 72 hours: an answer holds what only the caller may have, such
as the opening of a commitment.
"""

from __future__ import annotations

import hmac
import json
from datetime import datetime
from typing import Any

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Once
from rescind.ledger.errors import KeyReused
from rescind.ledger.expiry import EVERY
from rescind.ledger.keyslots import KeySlots, Slot, about, seal, unseal
from rescind.ledger.statements import Driver


class Recorded:
    """Finds and makes rows of `answered`. One key of ours serves for an hour of answers."""

    def __init__(self, keys: KeySlots) -> None:
        self._keys = keys
        self._slot: tuple[datetime, Slot] | None = None

    def lookup(self, person: bytes | None, once: Once) -> bytes:
        """Return under what the answer to this request is found."""
        return self._keys.keyed(b"answered", (person or b"") + b"\0" + once.key.encode())

    def find(self, driver: Driver, lookups: list[bytes]) -> dict[bytes, Any]:
        """Return the rows of those that were answered before."""
        rows = driver.within(tables.answered, "lookup", lookups)
        return {bytes(row.lookup): row for row in rows}

    def replay(self, row: Any, once: Once) -> Answer:
        """Open a recorded answer, or raise `KeyReused` if the body was another one."""
        if not hmac.compare_digest(bytes(row.body), self._body(once)):
            raise KeyReused(
                "this Idempotency-Key came before with another body. Make a new key for a new "
                "request."
            )
        key, bound = _answer_key(self._keys.get(row.slot), once), _bound(bytes(row.lookup))
        found = json.loads(unseal(key, bytes(row.box), bound))
        return Answer(found["status"], found["body"], replayed=True)

    def row(self, batch: Batch, lookup: bytes, once: Once, answer: Answer) -> dict[str, Any]:
        """Return the row that records an answer."""
        if self._slot is None or not 0 <= (batch.now - self._slot[0]) / EVERY < 1:
            self._slot = (batch.now, batch.new_key())
        slot = self._slot[1]
        text = f'{{"status":{answer.status},"body":{answer.text}}}'
        return {
            "lookup": lookup,
            "body": self._body(once),
            "slot": slot.id,
            "box": seal(_answer_key(slot, once), text.encode(), _bound(lookup)),
            "at": batch.now,
        }

    def forget_key(self) -> None:
        """Use a new key from now on: the batch that made this one was not written."""
        self._slot = None

    def _body(self, once: Once) -> bytes:
        return self._keys.keyed(b"body", once.key.encode() + b"\0" + once.body)


def _answer_key(slot: Slot, once: Once) -> bytes:
    return hmac.digest(slot.key, b"answer\0" + once.key.encode(), "sha256")


def _bound(lookup: bytes) -> bytes:
    return about(lookup, "answered", "box")
