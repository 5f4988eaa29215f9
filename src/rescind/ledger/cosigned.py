"""Who cosigns the log of a ledger, and what they signed: asked, checked, kept, handed out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, delete, insert, select, update

from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Keep
from rescind.ledger.errors import NotThere
from rescind.proof import rebuilt
from rescind.proof.notes import WITNESS, Checkpoint, Key, opened
from rescind.proof.roster import Stated
from rescind.proof.witness import bare

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

REMEMBERED = 100
"""Cosigned checkpoints in memory, the newest ones: a proof takes one that covers its leaf."""
PAUSE = 1.0
"""Seconds between two rounds of questions to all witnesses, however many proofs wait for one."""


NOBODY = (
    "no witness that this log knows signed it. The operator admits a witness by its key: "
    "POST /v1/operator/witnesses."
)
REBUILT = "rebuilt"
"""The setting that keeps notes about the last release that was rebuilt, by name of the witness."""


@dataclass(frozen=True)
class AddWitness:
    """Let a witness cosign, or change its address. 201, or 200 if it was known."""

    key: Key
    url: str | None

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.witness
        row = {"key": str(self.key), "url": self.url, "at": batch.now}
        here = table.c.name == self.key.name
        known = batch.tx.execute(update(table).where(here).values(row)).rowcount
        if not known:
            batch.tx.execute(insert(table).values(name=self.key.name, **row))
        body = {"id": self.key.id.hex(), "name": self.key.name}
        return Answer(200 if known else 201, body)


@dataclass(frozen=True)
class RemoveWitness:
    """Ask a witness no more. What it signed is kept."""

    key_id: str

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.witness
        for row in batch.tx.execute(select(table)).all():
            if Key.parse(row.key, WITNESS).id.hex() == self.key_id:
                batch.tx.execute(delete(table).where(table.c.name == row.name))
                return Answer(200, {"removed": row.name})
        raise NotThere("there is no such witness.")


@dataclass(frozen=True)
class KeepCosigned:
    """Keep a checkpoint with its cosignatures, beside those that it has already."""

    point: Checkpoint
    note: str
    lines: tuple[str, ...]

    def carry_out(self, batch: Batch) -> Answer:
        table, here = tables.checkpoint, tables.checkpoint.c.size == self.point.size
        row = batch.tx.execute(select(table).where(here)).one_or_none()
        if row is None:
            fresh = {"size": self.point.size, "root": self.point.root, "note": self.note}
            text = "".join(self.lines)
            batch.tx.execute(insert(table).values(**fresh, at=batch.now, cosignatures=text))
            return Answer(201)
        by_name = {_name(line): line for line in (*row.cosignatures.splitlines(True), *self.lines)}
        text = "".join(by_name.values())
        batch.tx.execute(update(table).where(here).values(cosignatures=text))
        return Answer(200)


@dataclass(frozen=True)
class Covering:
    """A checkpoint that covers a leaf, and how many of the witnesses signed it."""

    note: str
    size: int
    signed: tuple[str, ...] = ()
    of: int = 0

    @property
    def complete(self) -> bool:
        return len(self.signed) == self.of


class Witnesses:
    """Asks the witnesses of a log, and remembers which of them signed which checkpoint."""

    def __init__(self, ledger: Ledger, log: Any) -> None:
        """log: of the ledger (`public_log`), which is cosigned"""
        self._ledger, self._log = ledger, log
        self._asking, self._asked = Lock(), -PAUSE
        self.problems: dict[str, str] = {}
        """What went wrong with each witness when it was asked last, by name."""
        self._keys: dict[str, Key] = {}
        self._urls: dict[str, str] = {}
        self._by_name: set[str] = set()
        """Addresses that whoever started the service named; others are public."""
        self._rebuilt: dict[str, str] = {}
        self._kept: dict[int, dict[str, str]] = {}
        self.read_again()

    def read_again(self) -> None:
        """Read who the witnesses are, and the newest checkpoints that they signed."""
        point = tables.checkpoint
        newest = select(point).where(point.c.cosignatures != "").order_by(point.c.size.desc())
        with self._ledger.store.reading() as tx:
            rows = tx.execute(select(tables.witness)).all()
            points = tx.execute(newest.limit(REMEMBERED)).all()
        self._keys = {row.name: Key.parse(row.key, WITNESS) for row in rows}
        self._urls = {row.name: row.url for row in rows if row.url}
        self._rebuilt = self._ledger.reading.noted(REBUILT) or {}
        self._kept = {
            row.size: {_name(line): line for line in row.cosignatures.splitlines(True)}
            for row in points
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._keys)

    def public_keys(self) -> list[str]:
        return [str(self._keys[name]) for name in self.names]

    def admit(self, key: Key, url: str | None, once: Any = None, by_name: bool = False) -> Answer:
        """by_name: whoever starts the service named it, so its address need not be public"""
        if url is not None and not url.startswith(("http://", "https://")):
            raise ConfigError(f"'{url}' is not the address of a witness: http:// or https://.")
        if url is not None and by_name:
            self._by_name.add(url)
        elif url is not None and url not in self._by_name:
            self._check_public(url)
        answer = self._ledger.submit(AddWitness(key, url), once).result()
        self.read_again()
        return answer

    @staticmethod
    def _check_public(url: str) -> None:
        from rescind.proof.reaching import address_of

        try:
            address_of(url)
        except DataError as error:
            text = f"{error} Give a public one, or name it at the start: --witness URL=KEY."
            raise ConfigError(text) from None

    def dismiss(self, key_id: str, once: Any = None) -> Answer:
        answer = self._ledger.submit(RemoveWitness(key_id), once).result()
        self.read_again()
        return answer

    def ask(self) -> None:
        """Ask every witness that has an address, unless all signed the log as it is."""
        from rescind.proof.witness_http import Cosigning

        now = time.monotonic()
        if not self._urls or now - self._asked < PAUSE or not self._asking.acquire(blocking=False):
            return
        try:
            if set(self._urls) <= set(self._kept.get(len(self._ledger.tree), ())):
                return
            addresses = {self._urls[name]: self._keys[name] for name in self._urls}
            asking = Cosigning(
                addresses, self._log.own_checkpoint, self._ledger.tree, self._by_name
            )
            wrong = asking.ask_all()
            self.problems = {addresses[url].name: why for url, why in wrong.items()}
            if (note := asking.note_with(-1)) is not None:
                self.keep(note)
            self._asked = time.monotonic()
        finally:
            self._asking.release()

    def keep(self, note: str) -> list[str]:
        """Check the cosignatures of a checkpoint and keep them; return who signed."""
        point, found = opened(note, [self._log.key, *self._keys.values()])
        tree = self._ledger.tree
        if self._log.key not in found or point.origin != self._log.name:
            raise DataError("this checkpoint is not signed by this log. Read /log/checkpoint.")
        if point.size > len(tree) or tree.root(point.size) != point.root:
            raise DataError("this checkpoint is not one of this log. Read /log/checkpoint.")
        names = [key.name for key in found if key.kind == WITNESS]
        if not names:
            raise DataError(NOBODY)
        below = note.rpartition("\n\n")[2].splitlines(True)
        lines = {_name(line): line for line in below if _name(line) in names}
        self._ledger.submit(KeepCosigned(point, bare(note), tuple(lines.values()))).result()
        kept = {**self._kept, point.size: {**self._kept.get(point.size, {}), **lines}}
        self._kept = {size: kept[size] for size in sorted(kept)[-REMEMBERED:]}
        return names

    def keep_rebuilt(self, note: str) -> str:
        """Check and keep a note of a witness who rebuilt the release of the last roster."""
        about, found = rebuilt.read(note, list(self._keys.values()))
        stated = self._ledger.roster.stated
        if len(found) != 1:
            raise DataError(NOBODY)
        if stated is None or not about.is_of(self._log.name, Stated.parse(stated)):
            raise DataError("this note is not about the roster that is published now.")
        (name,) = (key.name for key in found)
        self._rebuilt = {**self.rebuilt(about.weights), name: note}
        self._ledger.submit(Keep({REBUILT: self._rebuilt})).result()
        return name

    def rebuilt(self, weights: str | None = None) -> dict[str, str]:
        """Return who rebuilt the release with this digest, with what they signed; None: the last"""
        return {
            name: note
            for name, note in self._rebuilt.items()
            if weights in (None, rebuilt.read(note, ())[0].weights)
        }

    def lines_of(self, size: int) -> str:
        return "".join(self._kept.get(size, {}).values())

    def covering(self, leaf: int) -> Covering:
        """Return the checkpoint over a leaf that most witnesses signed, the newest of those."""
        own, size = self._log.signed_now()
        best = Covering(own, size, self._who(size), len(self._keys))
        for one in (size for size in self._kept if size > leaf):
            who = self._who(one)
            if (len(who), one) > (len(best.signed), best.size):
                best = Covering(self._log.signed_at(one), one, who, len(self._keys))
        return Covering(best.note + self.lines_of(best.size), best.size, best.signed, best.of)

    def signed_by(self, name: str) -> int | None:
        return max((size for size, lines in self._kept.items() if name in lines), default=None)

    def _who(self, size: int) -> tuple[str, ...]:
        return tuple(sorted(set(self._kept.get(size, ())) & set(self._keys)))


def facts_of(row: Row, witnesses: Witnesses) -> dict[str, Any]:
    return {
        "id": Key.parse(row.key, WITNESS).id.hex(),
        "name": row.name,
        "key": row.key,
        "url": row.url,
        "signed": witnesses.signed_by(row.name),
        "problem": witnesses.problems.get(row.name),
    }


def _name(line: str) -> str:
    return line.split(" ")[1]
