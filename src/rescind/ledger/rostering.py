"""The roster of a service: a hidden line for each part of the sum, made after each release.

A person has a part for what they lend, and one for what their browser sent (`kept_part`).

    1  lines        for people who changed something since the last roster; others keep theirs
    2  roster-N.bin all lines, in the order of their digests: nothing tells whose is whose
    3  leaves, rows new lines, revoked lines and a statement: one transaction
    4  the old file is removed

Lending and taking back do nothing for it. The seed that hides a line is sealed under the key of its
part, which every change destroys: from then on nobody can open the line, and the next roster
revokes it. What the lines prove, and to whom: docs/proof.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, delete, insert, select

from rescind.core.files import write_atomically
from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Items, Operation
from rescind.ledger.failpoints import reach
from rescind.ledger.kept_part import KEPT, LOANS, PARTS, PERSON_BYTES, Sealed, is_kept
from rescind.ledger.keyslots import about
from rescind.ledger.open_sum import OpenSum
from rescind.ledger.parts import Parts
from rescind.ledger.release_steps import Unlisted
from rescind.ledger.roster_worker import LENT, Asked, Worker
from rescind.methods.additive._live_sum import weight_of
from rescind.proof.log_folder import LINE, REVOKED, ROSTER, entry_of
from rescind.proof.roster import PER_ITEM, Stated, digest, split, to_bytes
from rescind.proof.sum_hash import Hash, blinding, hidden

if TYPE_CHECKING:
    from rescind.ledger.releasing import Releasing

PATTERN = "roster-*.bin"


SEED_BYTES = 32
REBUILD = "rebuild"
"""The scope of a token that opens the sum of a roster."""
AT_ONCE = 500


@dataclass(frozen=True)
class Line:
    """A line of the roster, with what hides it."""

    part: bytes
    items: Items
    seed: bytes = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def of(self) -> Sealed:
        return KEPT if is_kept(self.part) else LOANS

    @property
    def digest(self) -> bytes:
        """What the log and the table name it by."""
        return bytes.fromhex(digest(self.data))


@dataclass(frozen=True)
class RosterMade:
    """Write a roster: rows, and leaves for new lines, revoked ones and the statement."""

    of: Unlisted
    items: int
    fresh: tuple[Line, ...]
    kept: frozenset[bytes]
    total: bytes

    def carry_out(self, batch: Batch) -> Answer:
        table, stated = tables.roster, tables.roster_stated
        gone = sorted(set(map(bytes, batch.tx.scalars(select(table.c.digest)))) - self.kept)
        for at in range(0, len(gone), AT_ONCE):
            here = table.c.digest.in_(gone[at : at + AT_ONCE])
            batch.tx.execute(delete(table).where(here))
        for line in sorted(self.fresh, key=lambda one: one.digest):
            batch.append(bytes([LINE]) + line.digest)
            batch.insert(table, {"digest": line.digest, "part": line.of.name, **_seed(batch, line)})
        for name in gone:
            batch.append(bytes([REVOKED]) + name)
        number = next_number(batch.tx)
        said = Stated(
            number=number,
            lines=len(self.fresh) + len(self.kept),
            items=self.items,
            sum=digest(self.total),
            weights=self.of.facts["weights"],
            time=batch.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            facts=dict(self.of.facts),
        ).to_bytes()
        leaf = batch.append(entry_of(ROSTER, said))
        batch.tx.execute(delete(stated))
        row = {"number": number, "release": self.of.facts["number"], "leaf": leaf}
        batch.tx.execute(insert(stated).values(stated=said, total=self.total, **row))
        return Answer(201, {"number": number, "revoked": len(gone)})


def _seed(batch: Batch, line: Line) -> dict[str, Any]:
    """Seal the seed under the key of its part; not if that changed since: it is lost then."""
    table, of, whose = tables.person, line.of, line.part[:PERSON_BYTES]
    row = batch.tx.execute(select(table).where(table.c.id == whose)).one_or_none()
    if row is None or getattr(row, of.box) is None:
        return {"person": None, "box": None}
    if not np.array_equal(of.items(of.opened(batch.keys, row)), line.items):
        return {"person": whose, "box": None}
    key = batch.slot(getattr(row, of.key))
    return {"person": whose, "box": batch.seal(key, line.seed, _bound(whose))}


def _bound(person: bytes) -> bytes:
    return about(person, "roster", "box")


def next_number(tx: Any) -> int:
    return int(tx.scalar(select(tables.roster_stated.c.number)) or 0) + 1


class Rostering:
    """Makes the roster of each release, and hands out what is public about the last one."""

    def __init__(
        self,
        parts: Parts,
        submit: Callable[[Operation], Future[Answer]],
        releases: Releasing,
    ) -> None:
        self._parts, self._submit, self._releases = parts, submit, releases
        self._making, self._worker = threading.Lock(), Worker()
        self._row: Row | None = None
        self.open_sum: OpenSum | None = None
        """Of the last roster, in memory until the next one, while a token may read it."""

    def begin(self) -> None:
        """Read the last roster, and remove files that a crash left. Makes no roster."""
        self._row = self._last()
        for path in self._parts.state.glob(PATTERN):
            if self._row is None or path != self._path(self._row.number):
                path.unlink()

    def _last(self) -> Row | None:
        with self._parts.store.reading() as tx:
            return tx.execute(select(tables.roster_stated)).one_or_none()

    def _path(self, number: int) -> Path:
        return self._parts.state / f"roster-{number}.bin"

    # -- making ------------------------------------------------------------------------------------

    def publish(self) -> int | None:
        """Make the roster of the last release; return its number, None if there is nothing to do.

        Not from the writer's thread. A release that comes meanwhile gets the next one.
        """
        with self._making:
            of = self._releases.unlisted
            if of is None:
                return None
            kept = self._kept(of.loans)
            fresh, made, small = self._made(of, kept)
            total = to_bytes(made + hidden(small))
            lines = sorted([*(one.data for one in kept), *(one.data for one in fresh)], key=digest)
            with self._parts.store.reading() as tx:
                number = next_number(tx)
            write_atomically(self._path(number), b"".join(lines), private=True)
            reach("roster being made")
            items, names = len(self._parts.catalogue), frozenset(one.digest for one in kept)
            self._submit(RosterMade(of, items, fresh, names, total)).result()
            old, self._row = self._row, self._last()
            self._releases.listed(of)
            form, may = self._releases.form, self._may_be_opened()
            self.open_sum = OpenSum(number, form, of.sums, small) if may else None
            if old is not None:
                self._path(old.number).unlink(missing_ok=True)
            return number

    def _kept(self, parts: Mapping[bytes, Items]) -> list[Line]:
        """Return the lines of parts that did not change: their seeds can be opened."""
        table, person = tables.roster, tables.person
        with self._parts.store.reading() as tx:
            rows = tx.execute(
                select(table, person.c.loans_key, person.c.kept_key)
                .join(person, person.c.id == table.c.person)
                .where(table.c.box.is_not(None))
            ).all()
        known = {bytes.fromhex(digest(line)): line for line in self._lines()}
        found = []
        for row in rows:
            of, data = PARTS[row.part], known.get(bytes(row.digest))
            name, key = of.called(bytes(row.person)), getattr(row, of.key)
            if name in parts and data is not None and key is not None:
                with suppress(DataError):  # another key: the part changed
                    bound = _bound(bytes(row.person))
                    seed = self._parts.keys.unseal(key, bytes(row.box), bound)
                    found.append(Line(name, parts[name], seed, data))
        return found

    def _lines(self) -> list[bytes]:
        try:
            return [] if self._row is None else split(self._path(self._row.number).read_bytes())
        except (OSError, DataError):  # a restored ledger: all lines are made anew
            return []

    def _may_be_opened(self) -> bool:
        """Return whether a token lets a second party rebuild what is released."""
        alive = tables.token.c.expires > self._parts.clock()
        with self._parts.store.reading() as tx:
            scopes = tx.scalars(select(tables.token.c.scope).where(alive)).all()
        return any(REBUILD in scope.split() for scope in scopes)

    def _made(
        self, of: Unlisted, kept: list[Line]
    ) -> tuple[tuple[Line, ...], Hash, NDArray[np.int64]]:
        """Return lines for everybody else, the hash of the sum, and what hides it."""
        have = {one.part for one in kept}
        names = [name for name in sorted(of.loans) if name not in have]
        seeds = tuple(self._parts.entropy(SEED_BYTES) for _ in names)
        parts = tuple(of.loans[name] for name in names)
        made = self._worker.hashed(Asked(of.sums, parts, seeds, of.counted))
        fresh = tuple(
            Line(name, items, seed, to_bytes(line))
            for name, items, seed, line in zip(names, parts, seeds, made.lines, strict=True)
        )
        small = np.zeros((3, 1024), np.int64)
        for one in (*kept, *fresh):
            small += blinding(one.seed)
        return fresh, made.sum, small

    def stop(self) -> None:
        """End what is being made; the roster before it stays."""
        self._worker.stop()

    def unfinished(self) -> int | None:
        """Return the release that has no roster yet, once nothing is being made."""
        with self._making:
            of = self._releases.unlisted
            return None if of is None else int(of.facts["number"])

    # -- handing out -------------------------------------------------------------------------------

    @property
    def stated(self) -> bytes | None:
        """What is stated about the last roster; None before the first one."""
        return None if self._row is None else bytes(self._row.stated)

    @property
    def total(self) -> bytes | None:
        return None if self._row is None else bytes(self._row.total)

    @property
    def lines(self) -> Path | None:
        """The file with its lines; None before the first roster, or if it was not restored."""
        path = None if self._row is None else self._path(self._row.number)
        return path if path is not None and path.exists() else None

    def seeds(self, loans: Mapping[bytes, Items]) -> list[bytes]:
        """Return what hides the lines of these loans, where they did not change: secret."""
        return [one.seed for one in self._kept(loans)]

    def mine(self, person: bytes) -> list[dict[str, Any]]:
        """Return what a person needs to find their lines, now and after they left.

        Without that of a part that changed, until the roster of the next release.
        """
        found = []
        for row in self._rows_of(person):
            of = PARTS[row.part]
            key, box = getattr(row, of.key), getattr(row, f"{of.name}_items")
            if key is None or box is None:
                continue
            with suppress(DataError):  # another key: the part changed
                seed = self._parts.keys.unseal(key, bytes(row.box), _bound(person))
                plain = self._parts.keys.unseal(key, bytes(box), about(person, "person", of.box))
                found.append(self._told(bytes(row.digest), seed, of.items(plain)))
        return found

    def _told(self, name: bytes, seed: bytes, items: Items) -> dict[str, Any]:
        counted = self._parts.options.min_count > 0
        about_it = {"block": LENT, "weight": weight_of(len(items)), PER_ITEM: counted}
        return {"line": name.hex(), "seed": seed.hex(), **about_it, "items": items.tolist()}

    def _rows_of(self, whose: bytes) -> Sequence[Row]:
        """Return a person's lines, with the boxes of their seeds and of their parts."""
        table, person = tables.roster, tables.person
        boxes = [person.c[of.box].label(f"{of.name}_items") for of in PARTS.values()]
        with self._parts.store.reading() as tx:
            return tx.execute(
                select(table, person.c.loans_key, person.c.kept_key, *boxes)
                .join(person, person.c.id == table.c.person)
                .where(table.c.person == whose, table.c.box.is_not(None))
                .order_by(table.c.part.desc())
            ).all()
