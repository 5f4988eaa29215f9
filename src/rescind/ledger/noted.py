"""What the last scan found, kept for the operator's page."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
