"""The part of the sum that a person's browser sent: what they keep, counted if they say so.

As in `Gram`, a user has two parts. What is lent is counted by the service; what is kept is sent by
the device. There are no pairs across, and no item is in both: lending an item takes it out of the
kept part in the same transaction. So the sum is that of the ledger at every moment, whether a
browser is online or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, select, update

from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.batch import Batch, Items
from rescind.ledger.keyslots import KeySlots, about
from rescind.ledger.statements import Prepared

DEVICE_BYTES = 16
"""A random number of the browser that sent the part: two browsers must not undo each other."""
PERSON_BYTES = 16
_MARK = b"kept"


@dataclass(frozen=True)
class Sealed:
    """A part of a person's sum: its columns in the table of people."""

    name: str
    key: str
    box: str
    before: int

    def items(self, plain: bytes) -> Items:
        """Return the items of an open box."""
        return np.frombuffer(plain, "<i4", offset=self.before).astype(np.int32)

    def called(self, person: bytes) -> bytes:
        """Return what the live sum calls it."""
        return person + _MARK if self is KEPT else person

    def opened(self, keys: KeySlots, row: Any) -> bytes:
        """Open the box of a row, or raise `DataError`; b"" if there is none."""
        if (box := getattr(row, self.box)) is None:
            return b""
        return keys.unseal(
            getattr(row, self.key), bytes(box), about(bytes(row.id), "person", self.box)
        )


LOANS = Sealed("lent", "loans_key", "box", 0)
KEPT = Sealed("kept", "kept_key", "kept_box", DEVICE_BYTES)
PARTS = {part.name: part for part in (LOANS, KEPT)}
_HERE = tables.person.c.id == bindparam("person")
_REPLACE = {
    LOANS: Prepared(
        update(tables.person)
        .where(_HERE)
        .values(
            loans_key=bindparam("key"),
            box=bindparam("sealed"),
            lent=bindparam("count"),
            version=bindparam("next"),
        )
    ),
    KEPT: Prepared(
        update(tables.person)
        .where(_HERE)
        .values(
            kept_key=bindparam("key"), kept_box=bindparam("sealed"), kept_count=bindparam("count")
        )
    ),
}


def replace_part(
    batch: Batch, row: Any, part: Sealed, old: Items, new: Items, before: bytes = b""
) -> None:
    """Seal a part under a new key; the old key is destroyed, and with it the old box."""
    person, slot_id, box = bytes(row.id), None, None
    if len(new):
        slot, plain = batch.new_key(), before + new.astype("<i4").tobytes()
        slot_id, box = slot.id, batch.seal(slot, plain, about(person, "person", part.box))
    values = {"person": person, "key": slot_id, "sealed": box, "count": len(new)}
    if part is LOANS:
        values["next"] = row.version + 1
    else:
        values["count"] = len(new) or None
    batch.driver.run(_REPLACE[part], values)
    if (old_key := getattr(row, part.key)) is not None:
        batch.destroy(old_key)
    batch.change(part.called(person), old, new)


@dataclass(frozen=True)
class KeptPart:
    """Which browser sent it, and the items: sorted places in the catalogue."""

    device: bytes
    items: Items

    def to_bytes(self) -> bytes:
        return self.device + self.items.astype("<i4").tobytes()

    @classmethod
    def of(cls, plain: bytes) -> KeptPart:
        return cls(plain[:DEVICE_BYTES], KEPT.items(plain))


NO_PART = KeptPart(b"", np.empty(0, np.int32))


def name_of(person: bytes) -> bytes:
    return KEPT.called(person)


def is_kept(name: bytes) -> bool:
    """Whether a part of the live sum is a kept one."""
    return len(name) > PERSON_BYTES


def lent_alone(parts: Mapping[bytes, Items]) -> dict[bytes, Items]:
    return {name: items for name, items in parts.items() if not is_kept(name)}


def kept_part_of(batch: Batch, row: Any) -> KeptPart:
    plain = KEPT.opened(batch.keys, row)
    return KeptPart.of(plain) if plain else NO_PART


def less_kept(batch: Batch, row: Any, items: Items) -> Items:
    """Take items out of the kept part; return those that were in it."""
    if row.kept_box is None:
        return NO_PART.items
    part = kept_part_of(batch, row)
    gone = np.intersect1d(part.items, items, assume_unique=True)
    if len(gone):
        left = np.setdiff1d(part.items, gone, assume_unique=True)
        replace_part(batch, row, KEPT, part.items, left, part.device)
    return gone


def open_kept_parts(
    keys: KeySlots, connection: Connection
) -> tuple[dict[bytes, Items], list[bytes]]:
    """Return the kept parts of everybody, and the people whose part has no key any more."""
    parts, lost, table = dict[bytes, Items](), [], tables.person
    for row in connection.execute(
        select(table).where(table.c.kept_box.is_not(None)).order_by(table.c.id)
    ):
        try:
            parts[KEPT.called(bytes(row.id))] = KEPT.items(KEPT.opened(keys, row))
        except DataError:
            lost.append(bytes(row.id))
    return parts, lost


def drop_kept_parts(connection: Connection, people: Iterable[bytes]) -> None:
    """Forget kept parts that nobody can open."""
    table = tables.person
    empty = dict.fromkeys(("kept_key", "kept_box", "kept_count"))
    for person in people:
        connection.execute(update(table).where(table.c.id == person).values(empty))
