"""A release that an operator asked for: noted before the answer, so that a start makes it.

One note is enough: a release that has not begun yet answers everybody who asked for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch

SETTING = "release asked"
MAKING, MADE, FAILED = "making", "made", "failed"
TRIES = 3
"""How often one is begun: what ends the service each time must not do so at every start."""
ENDED_EACH_TIME = (
    f"it was begun {TRIES} times, and each time the service or its database ended meanwhile. Look "
    f"into the log of the service (memory, disk), then ask for a release again."
)


def asked_in(tx: Connection) -> dict[str, Any] | None:
    """Return the note of the last one that was asked for; None: none was."""
    table = tables.setting
    text = tx.scalar(select(table.c.value).where(table.c.name == SETTING))
    return None if text is None else dict(json.loads(text))


@dataclass(frozen=True)
class AskRelease:
    """Note that a release is asked for."""

    look: str
    """The route that tells what becomes of it."""
    check: Callable[[], None] = lambda: None
    """Raises where none can be made."""
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Answer 202: the note is durable with it."""
        self.check()
        number = (asked_in(batch.tx) or {"n": 0})["n"] + 1
        note = {"n": number, "state": MAKING, "asked_at": batch.time, "begun": 0}
        batch.keep(SETTING, json.dumps(note))
        return Answer(202, {"asked": "release", "at": batch.time, "look": self.look})


@dataclass(frozen=True)
class BeginAsked:
    """Count that it is begun; the answer is empty if there is nothing to make now."""

    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        note = asked_in(batch.tx)
        if note is None or note["state"] != MAKING:
            return Answer(200)
        if note["begun"] == TRIES:
            end_asked(batch, note["n"], {"state": FAILED, "why": ENDED_EACH_TIME})
            return Answer(200)
        note["begun"] += 1
        batch.keep(SETTING, json.dumps(note))
        return Answer(200, {"n": note["n"]})


@dataclass(frozen=True)
class EndAsked:
    """Write down what became of it, such as why it failed."""

    n: int
    outcome: Mapping[str, Any] = field(default_factory=dict)
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        end_asked(batch, self.n, self.outcome)
        return Answer(200)


def end_asked(batch: Batch, n: int, outcome: Mapping[str, Any]) -> None:
    """Note an outcome, unless it has one, or another was asked for since: that one is made next."""
    note = asked_in(batch.tx)
    if note is not None and note["n"] == n and note["state"] == MAKING:
        batch.keep(SETTING, json.dumps({**note, **outcome}))
