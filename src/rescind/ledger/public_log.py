"""The ledger's log as strangers read it: checkpoints, tiles, bundles of entries, proofs."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.cosigned import Covering, Witnesses
from rescind.proof.notes import Checkpoint, Key, Proof, signed
from rescind.proof.tlog import TILE, bundle

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

NAME = "log name"
"""The setting that keeps what the log is called: its name can never change."""


@dataclass(frozen=True)
class KeepName:
    """Keep the log's name, once."""

    name: str
    person: bytes | None = None

    def carry_out(self, batch: Batch) -> Answer:
        """Write it if there is none."""
        known = batch.tx.scalar(select(tables.setting.c.value).where(tables.setting.c.name == NAME))
        if known is None:
            batch.tx.execute(insert(tables.setting).values(name=NAME, value=self.name))
        return Answer(200, {"name": known or self.name})


class PublicLog:
    """Signs and hands out what is public about the log.

    A checkpoint needs no write of its own: its size and root are durable in the head of keys.bin
    before anything in it is answered.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        """name: what the log is called, if it has no name yet"""
        self._ledger, self._lock = ledger, Lock()
        self.name: str = ledger.reading.setting(NAME) or name
        if ledger.reading.setting(NAME) is None:
            self.name = ledger.submit(KeepName(name)).result().body["name"]
        self._private = ledger.log_key
        self._note, self._size = "", -1
        self.witnesses = Witnesses(ledger, self)

    @property
    def key(self) -> Key:
        """The public key that everybody should know."""
        return Key(self.name, self._private.public_key().public_bytes_raw())

    def read_checkpoint(self) -> str:
        """Return a signed checkpoint of the log as it is, with the cosignatures it has."""
        note, size = self.signed_now()
        return note + self.witnesses.lines_of(size)

    def own_checkpoint(self) -> str:
        """Return a checkpoint of the log as it is, signed by the log alone."""
        return self.signed_now()[0]

    def signed_at(self, size: int) -> str:
        """Return the log's own signature over an earlier size: the same bytes every time."""
        return signed(Checkpoint(self.name, size, self._ledger.tree.root(size)), self._private)

    def signed_now(self) -> tuple[str, int]:
        """Return the log's own signature over what it holds, and how many entries that are."""
        with self._lock:
            size = len(self._ledger.tree)
            if size != self._size:
                self._note, self._size = self.signed_at(size), size
            return self._note, self._size

    def tile(self, level: int, index: int, width: int) -> bytes:
        """Return a tile of hashes."""
        return self._ledger.tree.tile(level, index, width)

    def entry_bundle(self, index: int, width: int) -> bytes:
        """Return the entries under a tile of level 0."""
        self._ledger.tree.tile(0, index, width)  # says what is wrong if they are not there
        return bundle(self._ledger.reading.entries(TILE * index, width))

    def proof(self, leaf: int, under: Covering | None = None) -> str:
        """Return the proof that a leaf is in the log, under a checkpoint that covers it."""
        found = under or self.witnesses.covering(leaf)
        path = self._ledger.tree.inclusion(leaf, found.size)
        return str(Proof(leaf, tuple(path), found.note))
