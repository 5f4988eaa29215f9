"""Operations of people: join, lend, take back. Each change is a leaf in the log.

The entry of a change is `0x01` and an HMAC over a statement of it (kind, items, time, seq) under 32
bytes, the *opening*, which only the person gets: in the answer, never on our disk in the open. So
the log may be public for ever and still tells nothing once the person throws the opening away.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from sqlalchemy import bindparam, delete, insert, select, update

from rescind.core.words import some_of
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Items
from rescind.ledger.errors import NotThere, VersionConflict
from rescind.ledger.kept_part import LOANS, kept_part_of, less_kept, replace_part
from rescind.ledger.keyslots import Slot, about
from rescind.ledger.statements import Prepared
from rescind.privacy.keys import SECRET_BYTES
from rescind.privacy.sealing import sealed
from rescind.proof.changes import entry_under, statement

KINDS = ("unshare", "erase", "leave")
MEMBER, QUARANTINED, LEFT = "member", "quarantined", "left"
LINK = timedelta(days=60)
NOTHING: Items = np.empty(0, np.int32)
_PERSON = Prepared(select(tables.person).where(tables.person.c.id == bindparam("person")))


@dataclass(frozen=True)
class Join:
    """Make an account without loans. 201 with the person's id."""

    def carry_out(self, batch: Batch) -> Answer:
        person, _ = join(batch)
        return Answer(201, {"person": person.hex()})


@dataclass(frozen=True)
class Lend:
    """Lend items, in addition to those lent. 201; 200 if all of them were lent already."""

    person: bytes
    items: tuple[int, ...]
    if_match: int | None = None
    """The version of the loans that the caller saw; None: any."""

    def carry_out(self, batch: Batch) -> Answer:
        row = member(batch, self.person)
        _check_version(row, self.if_match)
        wanted = checked(batch, self.items)
        old = loans_of(batch, row)
        added = _without(wanted, old)
        new = np.concatenate((old, added))
        new.sort()
        body: dict[str, Any] = {"lent": len(new), "changed": len(added)}
        if not len(added):
            return Answer(200, {**body, "version": row.version})
        replace_part(batch, row, LOANS, old, new)
        less_kept(batch, row, added)
        body |= {"version": row.version + 1}
        body["acknowledgement"], _ = logged(batch, "lend", self.person, added)
        return Answer(201, body)


@dataclass(frozen=True)
class TakeBack:
    """Take items back: unreadable here and out of the sum with the answer; a request for the rest.

    What is lent can be taken back, and what a browser keeps and has sent to the sum.
    `unshare` keeps them on the person's device, `erase` means everywhere, `leave` also ends the
    account. 202 with the status of the request.
    """

    person: bytes
    kind: str
    items: tuple[int, ...] | None = None
    """Places in the catalogue; None: everything."""
    receipt_key: bytes | None = None
    """The person's key of the receipt. Without one it is made here and given in the answer."""
    if_match: int | None = None
    request: str | None = None
    """A request that waited for this person's word, as an agent's does; None: a new one."""

    def carry_out(self, batch: Batch) -> Answer:
        if self.kind not in KINDS:
            raise ConfigError(f"'{self.kind}' is no way to take back: {', '.join(KINDS)}.")
        if self.kind == "leave" and self.items is not None:
            raise ConfigError("leaving takes everything back: give items as 'everything'.")
        if self.receipt_key is not None and len(self.receipt_key) != SECRET_BYTES:
            raise ConfigError(f"receipt_key must have {SECRET_BYTES} bytes.")
        row = member(batch, self.person, held_too=True)
        _check_version(row, self.if_match)
        lent = loans_of(batch, row)
        there = _all_of(batch, row, lent)
        gone = there if self.items is None else checked(batch, self.items)
        _check_there(there, gone)
        if not len(gone) and self.kind != "leave":
            raise ConsentError("nothing is lent, so there is nothing to take back.")
        left = _without(lent, gone)
        if len(left) < len(lent):
            replace_part(batch, row, LOANS, lent, left)
        less_kept(batch, row, gone)
        return _requested(batch, self, gone)


def join(batch: Batch) -> tuple[bytes, Slot]:
    """Make a person with a key for what belongs to the account; return id and key."""
    person, slot = batch.entropy(16), batch.new_key()
    batch.tx.execute(
        insert(tables.person).values(
            id=person, state=MEMBER, account_key=slot.id, lent=0, version=0, created=batch.now
        )
    )
    batch.event("join", 0, person, None, batch.next_seq())
    return person, slot


def member(batch: Batch, person: bytes, held_too: bool = False) -> Any:
    """Return the row of a person who may change something, or raise `NotThere`.

    held_too: also of somebody whom the operator holds; taking back and leaving are never refused
    """
    row = batch.driver.one(_PERSON, {"person": person})
    if row is None or row.state == LEFT:
        raise NotThere("there is no such account. Sign in again, or make a new one.")
    if row.state == QUARANTINED and not held_too:
        raise ConsentError("this account is held by the operator: ask them what to do.")
    return row


def loans_of(batch: Batch, row: Any) -> Items:
    return LOANS.items(LOANS.opened(batch.keys, row))


def logged(batch: Batch, kind: str, person: bytes, items: Items) -> tuple[dict[str, Any], bytes]:
    """Write the event and its leaf; return the acknowledgement, and the statement in the entry.

    Of somebody who leaves the event names nobody.
    """
    seq, opening = batch.next_seq(), batch.entropy(32)
    said = statement(kind, batch.catalogue.names_of(items.tolist()), batch.time, seq)
    entry = entry_under(opening, said)
    leaf = batch.append(entry)
    against = batch.tally.standing(person, batch, kind)
    batch.event(kind, len(items), None if kind == "leave" else person, leaf, seq, against)
    acknowledgement = {
        "kind": kind,
        "seq": seq,
        "time": batch.time,
        "entry": entry.hex(),
        "leaf": leaf,
        "opening": opening.hex(),
    }
    return acknowledgement, said


def _requested(batch: Batch, take: TakeBack, gone: Items) -> Answer:
    leaving = take.kind == "leave"
    whose = None if leaving else take.person
    acknowledgement, said = logged(batch, take.kind, take.person, gone)
    key = take.receipt_key or batch.entropy(SECRET_BYTES)
    token = batch.entropy(32)
    slot, name = batch.new_key(), take.request or batch.entropy(16).hex()
    row = {
        "person": whose,
        "kind": take.kind,
        "n": len(gone),
        "seq": acknowledgement["seq"],
        "status": "in_progress",
        "reason": None,
        "level": "L0",
        "hidden_at": batch.now,
        "asked": sealed(said.decode(), key),
        "receipt_slot": slot.id,
        "receipt_key": batch.seal(slot, key, about(name, "request", "receipt_key")),
        "leaf": acknowledgement["leaf"],
        "link": hashlib.sha256(token).digest(),
        "link_until": batch.now + LINK,
    }
    due = _write_request(batch, name, row, new=take.request is None)
    batch.steps(name)
    if leaving:
        _leave(batch, take.person)
    body = {
        "request_id": name,
        "status": "in_progress",
        "kind": take.kind,
        "n": len(gone),
        **due,
        "level": "L0",
        "steps": {"hidden": batch.time},
        "acknowledgement": acknowledgement,
        "link": "/r/" + urlsafe_b64encode(token).decode().rstrip("="),
    }
    made_here = {} if take.receipt_key else {"receipt_key": key.hex()}
    return Answer(202, {**body, **made_here}, items=tuple(gone.tolist()))


def _write_request(batch: Batch, name: str, row: dict[str, Any], new: bool) -> dict[str, str]:
    """Write a request, or what became of one that waited; return when it came and is due."""
    table, tx = tables.request, batch.tx
    received, due = batch.now, batch.now + timedelta(days=batch.options.deadline_days)
    if new:
        batch.insert(table, {"id": name, "received_at": received, "expected_by": due, **row})
    else:
        waiting = tx.execute(select(table).where(table.c.id == name)).one_or_none()
        if waiting is None or waiting.seq is not None:
            raise NotThere("there is no such request that waits for you.")
        received, due = waiting.received_at, waiting.expected_by
        tx.execute(update(table).where(table.c.id == name).values(**row))
    return {"received_at": received.isoformat(), "expected_by": due.isoformat()}


def _leave(batch: Batch, person: bytes) -> None:
    """End the account: destroy its keys, empty its row, and let nothing name it any more."""
    row = member(batch, person, held_too=True)
    for slot_id in (row.account_key, row.loans_key, row.kept_key):
        if slot_id is not None:
            batch.destroy(slot_id)
    batch.flush()  # events of this batch name the person, too
    forget_person(batch.tx, person)


def forget_person(tx: Any, person: bytes) -> None:
    """Empty a person's row but id and state, delete what belongs to it, null what names it."""
    table = tables.person
    empty = {one.name: None for one in table.c if one.nullable}
    here = table.c.id == person
    tx.execute(update(table).where(here).values(state=LEFT, lent=0, version=0, **empty))
    for owned in (tables.credential, tables.session):
        tx.execute(delete(owned).where(owned.c.person == person))
    for naming in (tables.event, tables.request, tables.roster):
        tx.execute(update(naming).where(naming.c.person == person).values(person=None))


def _all_of(batch: Batch, row: Any, lent: Items) -> Items:
    """Return everything of a person that is in the sum: lent, or kept and sent."""
    if row.kept_box is None:
        return lent
    return np.sort(np.concatenate((lent, kept_part_of(batch, row).items)))


def checked(batch: Batch, items: tuple[int, ...]) -> Items:
    """Return places in the catalogue, sorted, each once; refuse others."""
    if not items:
        raise DataError("no items were given. Name at least one.")
    given = sorted(set(items))
    if given[0] < 0 or given[-1] >= len(batch.catalogue):
        raise DataError(
            f"items are places from 0 to {len(batch.catalogue) - 1} in the catalogue; "
            f"got {given[0] if given[0] < 0 else given[-1]}."
        )
    return np.array(given, np.int32)


def _without(items: Items, others: Items) -> Items:
    """Return those items that are not among others; both are sorted, each item once."""
    if not len(others):
        return items
    place = np.minimum(others.searchsorted(items), len(others) - 1)
    return items[others[place] != items]


def _check_version(row: Any, wanted: int | None) -> None:
    if wanted is not None and wanted != row.version:
        raise VersionConflict(
            f"your loans changed: they have version {row.version}, you saw {wanted}. Read them."
        )


def _check_there(old: Items, gone: Items) -> None:
    missing = _without(gone, old)
    if len(missing):
        # No id in the text: refusals are logged, and a log names no item. The doors add it.
        text = f"{some_of(len(missing), len(gone))} not lent. Read your loans again, then repeat."
        raise ConsentError(text, item=int(missing[0]))
