"""What an operation may do: the one way by which anything is written into the ledger.

Handlers of HTTP make an operation, a frozen value, and wait for its answer. The writer carries out
many operations in one transaction (`ledger.writer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, func, insert, select

from rescind.audits.finding import Finding, overall
from rescind.ledger import tables
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.keyslots import KeySlots, Slot
from rescind.ledger.options import Options
from rescind.ledger.statements import Driver
from rescind.proof.tlog import leaf_hash

Items = NDArray[np.int32]
ENTRY_BYTES = 33
"""Type and commitment."""
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Operation(Protocol):
    """A change of the ledger. `carry_out` runs inside one transaction of the writer's thread.

    One of a person has their 16 bytes as `person`: it is answered once for them, not for others.
    """

    def carry_out(self, batch: Batch) -> Answer:
        """Do it. Raise `RescindError` to refuse: then nothing of it is written."""


@dataclass(frozen=True)
class Answer:
    """What the caller is told: an HTTP status and JSON, which names no items.

    If `body` has "steps", the writer adds when the records were erased and left the sum.
    """

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    replayed: bool = False
    """Whether this was recorded before: `Idempotent-Replay: true`."""
    items: tuple[int, ...] | None = None
    """Places in the catalogue that a take-back was about. They are told once and never recorded:
    what was taken back is on no disk."""

    @cached_property
    def text(self) -> str:
        """The body as JSON: recorded and sent, so it is made once."""
        return _compact(dict(self.body))


Tell = Callable[[Answer | BaseException], None]


def settle(future: Future[Answer], outcome: Answer | BaseException) -> None:
    """Put an answer or a refusal into a future, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


@dataclass(frozen=True)
class Once:
    """Makes an operation have one effect, however often it is sent. The writer keeps digests."""

    key: str
    body: bytes
    """The bytes of the request: the same key with other bytes is refused."""


class Batch:
    """One transaction of the writer, as its operations see it."""

    def __init__(self, tx: Connection, parts: Any, seq: int) -> None:
        """parts: of the ledger (`ledger.parts`)    seq: the last number given"""
        self.tx, self.tally = tx, parts.tally
        self.now: datetime = parts.clock()
        self.keys: KeySlots = parts.keys
        self.time = self.now.isoformat()
        self.driver = Driver(tx)
        """The same transaction, for the statements of hot paths."""
        self.catalogue: Catalogue = parts.catalogue
        self.options: Options = parts.options
        self.entropy: Callable[[int], bytes] = parts.entropy
        self.seq, self._leaves = seq, len(parts.tree)
        self.entries: list[bytes] = []
        self.made: list[int] = []
        self.doomed: list[int] = []
        self.changes: dict[bytes, tuple[Items, Items]] = {}
        self.calls: list[Callable[[], None]] = []
        self.erased: list[str] = []
        self._rows: list[tuple[Table, dict[str, Any]]] = []
        self._undo: list[tuple[bytes, tuple[Items, Items] | None]] = []
        self._leaves_written = self._rows_written = 0
        self._lists: tuple[list[Any], ...] = (
            *(self.made, self._undo, self.entries, self.doomed, self.calls, self.erased),
            self._rows,
        )
        """What an operation adds to, and a refusal shortens again."""

    def next_seq(self) -> int:
        """Return the next number of the one order of all events."""
        self.seq += 1
        return self.seq

    def new_key(self) -> Slot:
        """Make a key in a slot of its own. It is durable before the commit."""
        slot = self.keys.new()
        self.made.append(slot.id)
        return slot

    def slot(self, slot_id: int) -> Slot:
        return self.keys.get(slot_id)

    def seal(self, slot: Slot, plain: bytes, about: bytes) -> bytes:
        return self.keys.seal(slot, plain, about)

    def unseal(self, slot_id: int, box: bytes, about: bytes) -> bytes:
        """Open a box, or raise `DataError` if its key is gone or it was changed."""
        return self.keys.unseal(slot_id, box, about)

    def destroy(self, slot_id: int) -> None:
        """Destroy a key after the commit and before the answer: what it sealed is noise then."""
        self.doomed.append(slot_id)

    def keyed(self, purpose: bytes, data: bytes) -> bytes:
        return self.keys.keyed(purpose, data)

    def append(self, entry: bytes) -> int:
        """Append an entry to the log, in this transaction; return the number of its leaf."""
        assert len(entry) == ENTRY_BYTES, len(entry)
        self.entries.append(entry)
        return self._leaves + len(self.entries) - 1

    def event(
        self,
        kind: str,
        n: int,
        person: bytes | None,
        leaf: int | None,
        seq: int,
        against: int | None = None,
    ) -> None:
        """Write a line of history. It has no content. against: what `Tally.standing` says"""
        row = {"seq": seq, "at": self.now, "person": person, "kind": kind, "n": n, "leaf": leaf}
        self.insert(tables.event, {**row, "against": against})

    def insert(self, table: Table, row: dict[str, Any]) -> None:
        """Insert a row with all others of this batch; a query sees it after `flush`."""
        self._rows.append((table, row))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [row for table, row in self._rows if table is tables.event]

    def keep(self, name: str, value: str) -> None:
        tables.keep_setting(self.tx, name, value)

    def audit(self, findings: Sequence[Finding], **of: Any) -> str:
        """Write what an audit found; return its verdict. of: `release=` or `job=`"""
        table, verdict = tables.audit, overall(findings)
        row = {
            "n": (self.tx.scalar(select(func.max(table.c.n))) or 0) + 1,
            "at": self.now,
            "records": max((one.n for one in findings), default=0),
            "verdict": verdict,
            "detail": json.dumps([one.facts() for one in findings]),
        }
        self.tx.execute(insert(table).values(**row, **of))
        return verdict

    def change(self, person: bytes, old: Items, new: Items) -> None:
        """Change the live sum after the commit. Several changes of one person become one."""
        before = self.changes.get(person)
        self._undo.append((person, before))
        self.changes[person] = (old if before is None else before[0], new)

    def steps(self, request: str) -> None:
        """Date the steps `erased` and `summed` of this request when they have happened."""
        self.erased.append(request)

    def after(self, call: Callable[[], None]) -> None:
        """Call this when everything is durable, before the answer. It must not fail."""
        self.calls.append(call)

    def flush(self) -> None:
        """Write what is buffered, so that a query in this transaction sees it."""
        waiting: dict[Table, list[dict[str, Any]]] = {}
        for table, row in self._rows[self._rows_written :]:
            waiting.setdefault(table, []).append(row)
        for table, rows in waiting.items():
            self.driver.insert(table, rows)
        if fresh := self.entries[self._leaves_written :]:
            first = self._leaves + self._leaves_written
            leaves = [
                {"n": first + place, "entry": entry, "hash": leaf_hash(entry)}
                for place, entry in enumerate(fresh)
            ]
            self.driver.insert(tables.leaf, leaves)
        self._rows_written, self._leaves_written = len(self._rows), len(self.entries)

    def mark(self) -> Mark:
        """Remember how far this batch is, to go back if an operation refuses."""
        lengths = tuple(map(len, self._lists))
        return Mark(self.seq, self._rows_written, self._leaves_written, lengths)

    def go_back(self, mark: Mark) -> None:
        """Undo what an operation did outside the database; its new keys are destroyed."""
        self.seq = mark.seq
        self._rows_written, self._leaves_written = mark.rows_written, mark.leaves_written
        made, undo = self.made[mark.lengths[0] :], self._undo[mark.lengths[1] :]
        for kept, length in zip(self._lists, mark.lengths, strict=True):
            del kept[length:]
        for slot_id in made:
            self.keys.destroy(slot_id)
        for person, before in reversed(undo):
            if before is None:
                del self.changes[person]
            else:
                self.changes[person] = before


@dataclass(frozen=True)
class Keep:
    """Keep settings as JSON, each in the place of what it was."""

    settings: Mapping[str, Any]
    body: Mapping[str, Any] = field(default_factory=dict)

    def carry_out(self, batch: Batch) -> Answer:
        for name, value in self.settings.items():
            batch.keep(name, json.dumps(value))
        return Answer(200, self.body)


class Mark(NamedTuple):
    """Where a batch stood before an operation."""

    seq: int
    rows_written: int
    leaves_written: int
    lengths: tuple[int, ...]
