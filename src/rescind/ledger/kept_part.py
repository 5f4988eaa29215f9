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
_REPLACE = Prepared(
    update(tables.person)
    .where(tables.person.c.id == bindparam("person"))
    .values(kept_key=bindparam("key"), kept_box=bindparam("sealed"), kept_count=bindparam("count"))
)


@dataclass(frozen=True)
class KeptPart:
    """Which browser sent it, and the items: sorted places in the catalogue."""

    device: bytes
    items: Items

    def to_bytes(self) -> bytes:
        """Return what is sealed."""
        return self.device + self.items.astype("<i4").tobytes()

    @classmethod
    def of(cls, plain: bytes) -> KeptPart:
        """Read what was sealed."""
        items = np.frombuffer(plain, "<i4", offset=DEVICE_BYTES).astype(np.int32)
        return cls(plain[:DEVICE_BYTES], items)


NO_PART = KeptPart(b"", np.empty(0, np.int32))


def name_of(person: bytes) -> bytes:
    """Return what the live sum calls the kept part of a person."""
    return person + _MARK


def is_kept(name: bytes) -> bool:
    """Whether a part of the live sum is a kept one."""
    return len(name) > PERSON_BYTES


def lent_alone(parts: Mapping[bytes, Items]) -> dict[bytes, Items]:
    """Return what people lend, of all parts of the live sum."""
    return {name: items for name, items in parts.items() if not is_kept(name)}


def kept_part_of(batch: Batch, row: Any) -> KeptPart:
    """Open the kept part of a person, in this transaction."""
    if row.kept_box is None:
        return NO_PART
    bound = about(bytes(row.id), "person", "kept_box")
    return KeptPart.of(batch.unseal(row.kept_key, bytes(row.kept_box), bound))


def replace_kept_part(batch: Batch, row: Any, old: KeptPart, new: Items, device: bytes) -> None:
    """Seal the part under a new key; the old key is destroyed, and with it the old box."""
    person, slot_id, box = bytes(row.id), None, None
    if len(new):
        slot = batch.new_key()
        plain = KeptPart(device, new).to_bytes()
        slot_id, box = slot.id, batch.seal(slot, plain, about(person, "person", "kept_box"))
    values = {"person": person, "key": slot_id, "sealed": box, "count": len(new) or None}
    batch.driver.run(_REPLACE, values)
    if row.kept_key is not None:
        batch.destroy(row.kept_key)
    batch.change(name_of(person), old.items, new)


def less_kept(batch: Batch, row: Any, items: Items) -> Items:
    """Take items out of the kept part; return those that were in it."""
    if row.kept_box is None:
        return NO_PART.items
    part = kept_part_of(batch, row)
    gone = np.intersect1d(part.items, items, assume_unique=True)
    if len(gone):
        left = np.setdiff1d(part.items, gone, assume_unique=True)
        replace_kept_part(batch, row, part, left, part.device)
    return gone


def open_kept_parts(
    keys: KeySlots, connection: Connection
) -> tuple[dict[bytes, Items], list[bytes]]:
    """Return the kept parts of everybody, and the people whose part has no key any more."""
    parts: dict[bytes, Items] = {}
    lost = []
    table = tables.person
    chosen = select(table.c.id, table.c.kept_key, table.c.kept_box)
    for row in connection.execute(chosen.where(table.c.kept_box.is_not(None)).order_by("id")):
        person = bytes(row.id)
        try:
            bound = about(person, "person", "kept_box")
            box = keys.unseal(row.kept_key, bytes(row.kept_box), bound)
        except DataError:
            lost.append(person)
        else:
            parts[name_of(person)] = KeptPart.of(box).items
    return parts, lost


def drop_kept_parts(connection: Connection, people: Iterable[bytes]) -> None:
    """Forget kept parts that nobody can open."""
    table = tables.person
    empty = dict.fromkeys(("kept_key", "kept_box", "kept_count"))
    for person in people:
        connection.execute(update(table).where(table.c.id == person).values(empty))
