"""Values and operations of releases: what is served, and the steps that make it durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import and_, func, insert, select, update

from rescind.audits.finding import overall
from rescind.core.files import write_atomically
from rescind.ledger import tables
from rescind.ledger.asked_release import MADE, end_asked
from rescind.ledger.audited import write_audit
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
    """Of the unpacked file."""
    weights: Weights = field(repr=False)
    file: bytes = field(repr=False)
    """Compressed: what people download."""
    audit: str = ""


@dataclass(frozen=True)
class AtOnce:
    """What is served in the instant form: the weights of this moment, made when asked for."""

    number: int
    """Number of entries of the log: it changes with every change."""
    at: datetime
    make: Callable[[], Weights] = field(repr=False)
    ids: tuple[str, ...] = field(repr=False)
    people: int = 1
    audit: str = "UNAUDITED"

    @cached_property
    def plain(self) -> bytes:
        """The unpacked file."""
        return self.make().to_bytes(self.ids)

    @cached_property
    def file(self) -> bytes:
        """The compressed file."""
        return live_release.packed(self.plain)

    @cached_property
    def digest(self) -> str:
        """Of the unpacked file."""
        return live_release.file_digest(self.plain)


@dataclass(frozen=True)
class Unlisted:
    """A release that has no roster yet: what it was made from."""

    facts: Mapping[str, Any]
    sums: Totals
    loans: Mapping[bytes, Items]
    counted: bool
    """Whether the sum also has the number of people per item."""


@dataclass(frozen=True)
class TakeCopy:
    """Copy the sum after this batch: everything up to the batch's last `seq` is in it."""

    taken: Callable[[int], None]
    person: bytes | None = None

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
    """The note that it answers (`asked_release`)."""
    person: bytes | None = None

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
        write_audit(batch, self.made.findings, release=number)
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
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.release
        old = and_(table.c.number < self.number, table.c.key.is_not(None))
        for slot_id in batch.tx.scalars(select(table.c.key).where(old)).all():
            batch.destroy(slot_id)
        batch.tx.execute(update(table).where(old).values(key=None))
        return Answer(200)


def facts_of(number: int, people: int, made: Made) -> dict[str, Any]:
    """Return the public facts of a release, whose digest stands in the log."""
    return {
        "audit": overall(made.findings),
        "number": number,
        "people": people,
        "sum": made.sum_digest,
        "weights": live_release.file_digest(made.file),
    }


def path_of(state: Path, number: int) -> Path:
    """Return where the sealed file of a release is."""
    return state / f"release-{number}.sealed"


def bound(number: int) -> bytes:
    """Return what the box of a release is bound to."""
    return about(str(number), "release", "file")
