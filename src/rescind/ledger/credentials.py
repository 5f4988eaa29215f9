"""Where passkeys, codes, sessions, tokens and agents are found.

A credential is a box under the person's account key, in a row named by a keyed digest: the table
alone names nobody, and leaving makes it unreadable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from rescind.ledger import tables
from rescind.ledger.batch import Batch
from rescind.ledger.errors import NotThere
from rescind.ledger.keyslots import KeySlots, about

PASSKEY, RECOVERY, AGENT_CODE = "passkey", "recovery", "agent"
CREDENTIALS = b"credential"
IDLE = timedelta(days=7)
"""A session ends after this time without a request."""


def sealed_about(person: bytes) -> bytes:
    return about(person, "credential", "box")


@dataclass(frozen=True)
class Found:
    """A credential and what its box holds."""

    person: bytes
    plain: Mapping[str, Any]


def find_credential(tx: Connection, keys: KeySlots, name: bytes, kind: str) -> Found | None:
    """Return the credential with this id or lookup text, opened; None if there is none."""
    return find_by_lookup(tx, keys, keys.keyed(CREDENTIALS, name), kind)


def find_by_lookup(tx: Connection, keys: KeySlots, lookup: bytes, kind: str) -> Found | None:
    rows, people = tables.credential, tables.person
    query = (
        select(rows.c.person, rows.c.box, people.c.account_key)
        .join(people, people.c.id == rows.c.person)
        .where(rows.c.lookup == lookup, rows.c.kind == kind)
    )
    row = tx.execute(query).first()
    if row is None or row.account_key is None:
        return None
    person = bytes(row.person)
    plain = keys.unseal(row.account_key, bytes(row.box), sealed_about(person))
    return Found(person, json.loads(plain))


def find_operator(tx: Connection, keys: KeySlots, credential: bytes) -> Row | None:
    lookup = keys.keyed(CREDENTIALS, credential)
    return tx.execute(select(tables.operator).where(tables.operator.c.lookup == lookup)).first()


def find_session(tx: Connection, digest: bytes, now: datetime) -> Row | None:
    rows = tables.session
    alive = (rows.c.expires > now) & (rows.c.seen > now - IDLE)
    return tx.execute(select(rows).where(rows.c.digest == digest, alive)).first()


def find_token(tx: Connection, digest: bytes, now: datetime) -> Row | None:
    rows = tables.token
    return tx.execute(select(rows).where(rows.c.digest == digest, rows.c.expires > now)).first()


def find_agent(tx: Connection, agent: str) -> Row | None:
    return tx.execute(select(tables.agent).where(tables.agent.c.id == agent)).first()


def find_agent_by_token(tx: Connection, digest: bytes) -> Row | None:
    return tx.execute(select(tables.agent).where(tables.agent.c.token == digest)).first()


def write(batch: Batch, person: bytes, kind: str, name: bytes, plain: Mapping[str, Any]) -> None:
    people = tables.person
    slot_id = batch.tx.execute(select(people.c.account_key).where(people.c.id == person)).scalar()
    if slot_id is None:
        raise NotThere("this account is closed.")
    box = batch.seal(batch.slot(slot_id), json.dumps(plain).encode(), sealed_about(person))
    row = {
        "lookup": batch.keyed(CREDENTIALS, name),
        "person": person,
        "kind": kind,
        "box": box,
    }
    batch.tx.execute(insert(tables.credential).values(row))


def remove(batch: Batch, name: bytes) -> int:
    here = tables.credential.c.lookup == batch.keyed(CREDENTIALS, name)
    return int(batch.tx.execute(delete(tables.credential).where(here)).rowcount)
