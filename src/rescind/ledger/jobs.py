"""Rows and files of generations: the operations that start, follow and end one. Loads no torch."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, and_, func, insert, select, update

from rescind.audits.finding import FAILED as REFUSED
from rescind.audits.finding import Finding
from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Items
from rescind.ledger.errors import NotThere
from rescind.ledger.keyslots import about
from rescind.ledger.release_counts import at_most

RECIPES = ("FedShare", "Softmax", "Blend")
LEARNING, READY, STALE, FAILED = "learning", "ready", "stale", "failed"
CHECKPOINT, LISTS = "checkpoint", "lists"
PATTERN = "generation-*"
LONGEST = 50
MOST_ROUNDS = 10_000
TAKE_BACKS = ("unshare", "erase", "leave", "dropped", "quarantine")
CHANGES = ("lend", *TAKE_BACKS)
ENTRY_TYPE = b"\x04"
CHOSEN = "generation"


def file_of(state: Path, job: str, kind: str) -> Path:
    return state / f"generation-{job}.{kind}"


def bound(job: str, kind: str) -> bytes:
    return about(job, "job", kind)


def changed_since(tx: Any, seq: int, kinds: tuple[str, ...] = TAKE_BACKS) -> bool:
    """Return whether somebody took something back after this `seq`.

    This is read from the events, so a generation is stale with the commit of the take-back.
    """
    column = tables.event.c
    found = and_(column.seq > seq, column.kind.in_(kinds), column.n > 0)
    return tx.execute(select(column.seq).where(found).limit(1)).first() is not None


def taken_back_since_the_one_before(tx: Any, job: str, seq: int) -> int | None:
    """Return how many records were taken back since an earlier generation began, at most.

    None: that was not counted, or its row has expired. job, seq: the present one, and its moment
    """
    table, events = tables.job.c, tables.event.c
    earlier = select(func.max(table.seq)).where(table.id != job, table.seq <= seq)
    begun: int | None = tx.scalar(earlier)
    if begun is not None:
        return at_most(tx, begun, seq)
    logged = and_(events.kind == "generation", events.seq <= seq)
    return None if tx.execute(select(events.seq).where(logged).limit(1)).first() else 0


def job_row(tx: Any, job: str) -> Row:
    row: Row | None = tx.execute(select(tables.job).where(tables.job.c.id == job)).one_or_none()
    if row is None:
        raise NotThere("there is no such generation.")
    return row


def precommitment(
    job: str, recipe: str, rounds: int, seed: int, loans: Mapping[bytes, Items], key: bytes
) -> bytes:
    """Return the entry that says, before the first round, what a generation will be made from.

    The loans stand in it as a digest under the key of the job. Whoever has the key can check it;
    when the generation is stale, the key is destroyed and the entry tells nothing any more.
    """
    digest = hmac.new(key, b"loans of a generation\0", "sha256")
    for person in sorted(loans):
        items = loans[person].astype("<i4").tobytes()
        digest.update(person + len(items).to_bytes(8, "little") + items)
    facts = {
        "job": job,
        "loans": digest.hexdigest(),
        "recipe": recipe,
        "rounds": rounds,
        "seed": seed,
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return ENTRY_TYPE + hashlib.sha256(text).digest()


@dataclass(frozen=True)
class StartJob:
    """Begin a generation on the loans of now. 202 with its id."""

    recipe: str
    rounds: int
    begun: Callable[[str, int], None]
    """Called with id and `seq` when it is durable, in the writer's thread."""

    def carry_out(self, batch: Batch) -> Answer:
        if self.recipe not in RECIPES:
            raise ConfigError(f"'{self.recipe}' is no recipe. There are {', '.join(RECIPES)}.")
        if not 0 < self.rounds <= MOST_ROUNDS:
            raise ConfigError(f"rounds must be 1 to {MOST_ROUNDS:,}; got {self.rounds}.")
        if batch.tx.scalar(select(tables.job.c.id).where(tables.job.c.state == LEARNING)):
            raise ConfigError("a generation is learning already. Wait for it, or end it first.")
        job, slot = batch.entropy(8).hex(), batch.new_key()
        batch.tx.execute(
            insert(tables.job).values(
                id=job,
                kind="generation",
                recipe=self.recipe,
                state=LEARNING,
                seq=batch.seq,
                key=slot.id,
                stale=False,
                at=batch.now,
                detail=str(self.rounds),
            )
        )
        batch.after(lambda: self.begun(job, batch.seq))
        return Answer(202, {"job": job, "recipe": self.recipe, "rounds": self.rounds})


@dataclass(frozen=True)
class Precommit:
    """Log what a generation will be made from, once; one that goes on must go on with the same."""

    job: str
    entry: bytes

    def carry_out(self, batch: Batch) -> Answer:
        row = job_row(batch.tx, self.job)
        if row.leaf is None:
            seq, leaf = batch.next_seq(), batch.append(self.entry)
            batch.event("generation", 0, None, leaf, seq)
            here = tables.job.c.id == self.job
            batch.tx.execute(update(tables.job).where(here).values(leaf=leaf))
            return Answer(200, {"leaf": leaf})
        known = batch.tx.scalar(select(tables.leaf.c.entry).where(tables.leaf.c.n == row.leaf))
        if bytes(known or b"") != self.entry:
            raise DataError("the loans are not those that this generation was to be made from.")
        return Answer(200, {"leaf": row.leaf})


@dataclass(frozen=True)
class RoundDone:
    """Write a row of progress."""

    job: str
    line: dict[str, Any]

    def carry_out(self, batch: Batch) -> Answer:
        table, number = tables.round_, int(self.line["round"])
        row = {
            "at": batch.now,
            "asked": self.line["asked"],
            "answered": self.line["asked"],
            "refused": 0,
            "seconds": self.line["seconds"],
            "value": self.line["value"],
        }
        same = and_(table.c.job == self.job, table.c.number == number)
        if not batch.tx.execute(update(table).where(same).values(row)).rowcount:
            batch.tx.execute(insert(table).values(job=self.job, number=number, **row))
        return Answer(200)


@dataclass(frozen=True)
class EndJob:
    """End a generation: ready to serve, failed, or stale. All but ready lose their key."""

    job: str
    state: str
    detail: str = ""
    finding: Finding | None = None
    """What its audit found. One without an audit is never served."""

    def carry_out(self, batch: Batch) -> Answer:
        row = job_row(batch.tx, self.job)
        state = self.state
        if state == READY and changed_since(batch.tx, row.seq):
            state = STALE
        ended: dict[str, Any] = {"state": state, "ended_at": batch.now, "stale": state == STALE}
        if self.detail:
            ended["detail"] = self.detail
        if state != READY:
            ended["key"] = None
            if row.key is not None:
                batch.destroy(row.key)
        batch.tx.execute(update(tables.job).where(tables.job.c.id == self.job).values(ended))
        if state == READY and self.finding is not None:
            batch.audit([self.finding], job=self.job)
        return Answer(200, {"job": self.job, "state": state})


@dataclass(frozen=True)
class Choose:
    """Serve a generation, or the release again (None)."""

    job: str | None

    def carry_out(self, batch: Batch) -> Answer:
        if self.job is not None and batch.options.noise:
            raise ConfigError("lists of a generation have no noise, so epsilon would not hold.")
        if self.job is not None:
            row = job_row(batch.tx, self.job)
            if row.state != READY or changed_since(batch.tx, row.seq):
                raise ConfigError(
                    f"generation {self.job} is {STALE if row.state == READY else row.state} and "
                    f"cannot be served. Start another one."
                )
            audits = select(tables.audit.c.verdict).where(tables.audit.c.job == self.job)
            verdict = batch.tx.scalar(audits.order_by(tables.audit.c.n.desc()).limit(1))
            if verdict is None or verdict in REFUSED:
                raise ConfigError(
                    f"the audit of generation {self.job} says {verdict or 'nothing'}, so it cannot "
                    f"be served. Start another one."
                )
        batch.keep(CHOSEN, self.job or "")
        return Answer(200, {"generation": self.job})
