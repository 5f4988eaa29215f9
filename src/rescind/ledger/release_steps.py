"""Values and operations of releases: what is served, and the steps that make it durable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, func, insert, select, update

from rescind.audits.finding import overall
from rescind.core.files import write_atomically
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Items
from rescind.ledger.failpoints import reach
from rescind.ledger.keyslots import about
from rescind.ledger.noising import count_release
from rescind.ledger.release_worker import Made
from rescind.methods.additive import _live_release as live_release
from rescind.methods.additive._live_release import Weights
from rescind.methods.additive._live_sum import Totals
from rescind.proof.roster import release_entry

PATTERN = "release-*.sealed"
ASKED = "release asked"
"""The setting that notes what an operator asked for before the answer, so that a start makes it.

One note is enough: a release that has not begun yet answers everybody who asked for one.
"""
MAKING, MADE, FAILED = "making", "made", "failed"
TRIES = 3
"""How often one is begun: what ends the service each time must not do so at every start."""
ENDED_EACH_TIME = (
    f"it was begun {TRIES} times, and each time the service or its database ended meanwhile. Look "
    f"into the log of the service (memory, disk), then ask for a release again."
)


@dataclass(frozen=True)
class Due:
    """When the next release comes: after so many more people, and at the latest at a time."""

    people_left: int
    at: datetime | None
    """At the latest; None: nothing has changed since the last one."""
    earliest: datetime | None = None
    """However many people changed; None: there was no release."""


@dataclass(frozen=True)
class Release:
    """What is served."""

    number: int
    seq: int
    at: datetime
    people: int
    """How many people of the one before have other loans in it; in the first, who lend."""
    sum_digest: str
    digest: str
    weights: Weights = field(repr=False)
    file: bytes = field(repr=False)
    """Compressed: what people download."""
    audit: str = ""


@dataclass(frozen=True)
class Unlisted:
    """A release that has no roster yet: what it was made from."""

    facts: Mapping[str, Any]
    sums: Totals
    loans: Mapping[bytes, Items]
    counted: bool


@dataclass(frozen=True)
class TakeCopy:
    """Copy the sum after this batch: everything up to the batch's last `seq` is in it."""

    taken: Callable[[int], None]

    def carry_out(self, batch: Batch) -> Answer:
        batch.after(lambda: self.taken(batch.seq))
        return Answer(200)


@dataclass(frozen=True)
class ReleaseMade:
    """Write a release: sealed file, row and leaf."""

    state: Path
    seq: int
    people: int
    made: Made = field(repr=False)
    file: bytes = field(repr=False)
    asked: int | None = None
    """The note that it answers (`asked_in`)."""

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.release
        number = (batch.tx.scalar(select(func.max(table.c.number))) or 0) + 1
        slot = batch.new_key()
        box = batch.seal(slot, self.file, bound(number))
        write_atomically(path_of(self.state, number), box, private=True)
        reach("release being made")
        verdict = overall(self.made.findings)
        facts = facts_of(number, self.people, self.made)
        leaf = batch.append(release_entry(facts))
        batch.tx.execute(
            insert(table).values(
                number=number,
                seq=self.seq,
                at=batch.now,
                people=self.people,
                sum_digest=facts["sum"],
                weights_digest=facts["weights"],
                key=slot.id,
                audit=verdict,
                leaf=leaf,
            )
        )
        batch.audit(self.made.findings, release=number)
        if batch.options.noise:
            count_release(batch)
        if self.asked is not None:
            end_asked(batch, self.asked, {"state": MADE, "number": number})
        batch.event("release", self.people, None, leaf, batch.next_seq())
        batch.after(batch.tally.released)
        return Answer(201, {"number": number, "at": batch.now.isoformat()})


@dataclass(frozen=True)
class EndOld:
    """Destroy the keys of releases that are not served any more."""

    number: int

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.release
        old = and_(table.c.number < self.number, table.c.key.is_not(None))
        for slot_id in batch.tx.scalars(select(table.c.key).where(old)).all():
            batch.destroy(slot_id)
        batch.tx.execute(update(table).where(old).values(key=None))
        return Answer(200)


def facts_of(number: int, people: int, made: Made) -> dict[str, Any]:
    return {
        "audit": overall(made.findings),
        "number": number,
        "people": people,
        "sum": made.sum_digest,
        "weights": live_release.file_digest(made.file),
    }


def path_of(state: Path, number: int) -> Path:
    return state / f"release-{number}.sealed"


def bound(number: int) -> bytes:
    return about(str(number), "release", "file")


def asked_in(tx: Connection) -> dict[str, Any] | None:
    """Return the note of the last one that was asked for; None: none was."""
    text = tables.setting_of(tx, ASKED)
    return None if text is None else dict(json.loads(text))


@dataclass(frozen=True)
class AskRelease:
    """Note that a release is asked for."""

    look: str
    """The route that tells what becomes of it."""
    check: Callable[[], None] = lambda: None

    def carry_out(self, batch: Batch) -> Answer:
        self.check()
        number = (asked_in(batch.tx) or {"n": 0})["n"] + 1
        note = {"n": number, "state": MAKING, "asked_at": batch.time, "begun": 0}
        batch.keep(ASKED, json.dumps(note))
        return Answer(202, {"asked": "release", "at": batch.time, "look": self.look})


@dataclass(frozen=True)
class BeginAsked:
    """Count that it is begun; the answer is empty if there is nothing to make now."""

    def carry_out(self, batch: Batch) -> Answer:
        note = asked_in(batch.tx)
        if note is None or note["state"] != MAKING:
            return Answer(200)
        if note["begun"] == TRIES:
            end_asked(batch, note["n"], {"state": FAILED, "why": ENDED_EACH_TIME})
            return Answer(200)
        note["begun"] += 1
        batch.keep(ASKED, json.dumps(note))
        return Answer(200, {"n": note["n"]})


@dataclass(frozen=True)
class EndAsked:
    """Write down what became of it, such as why it failed."""

    n: int
    outcome: Mapping[str, Any] = field(default_factory=dict)

    def carry_out(self, batch: Batch) -> Answer:
        end_asked(batch, self.n, self.outcome)
        return Answer(200)


def end_asked(batch: Batch, n: int, outcome: Mapping[str, Any]) -> None:
    """Note an outcome, unless it has one, or another was asked for since: that one is made next."""
    note = asked_in(batch.tx)
    if note is not None and note["n"] == n and note["state"] == MAKING:
        batch.keep(ASKED, json.dumps({**note, **outcome}))
