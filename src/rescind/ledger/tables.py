"""Every table of the ledger and every file of its folder, each with the rule that ends it.

This is the data map. A column cannot be made without a rule (`_column`), and a test compares the
map with the live schema of both databases and with the files after a whole story.

Columns made by `_slot` hold ids of key slots. What they name is the set of keys that still have a
box: a start destroys all others (`start.sweep`). So a new kind of box needs no change there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    case,
    insert,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from rescind.errors import ConfigError

metadata = MetaData()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Instant(TypeDecorator):
    """A time in UTC, kept as whole microseconds: the same order and value in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        return self.number(value)

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:
        return None if value is None else _EPOCH + timedelta(microseconds=value)

    @staticmethod
    def number(value: datetime | None) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND


LOANS = "sealed under loans_key: a new key at every change, the old one is destroyed"
KEPT = "sealed under kept_key: a new key at every change, the old one is destroyed"
ACCOUNT = "sealed under account_key, which leaving destroys; the row is deleted on leaving"
EMPTIED = "emptied on leaving"
STAYS = "stays: a random number that nothing else names after leaving"
NO_CONTENT = "kept: says nothing about a record"
NULLED = "becomes null on leaving"
SESSION = "deleted at sign-out, at expiry (7 days idle, 30 days) and on leaving"
HOURS_72 = "deleted after 72 hours, and its key destroyed"
YEARS_3 = "deleted after 3 years; holds no record"
RECEIPT_KEY = "sealed under a slot of its own, destroyed when the receipt is issued"
COMMITMENT = "kept: commitments under keys that nobody here has"
RELEASE = "kept: public facts of a release"
LINE = "public: hides its items from whoever has no seed; deleted when the line is revoked"
SEED = "sealed under loans_key or kept_key, which every change destroys; deleted with its line"
RELEASE_KEY = "destroyed with the next release"
YEAR = "deleted after 1 year; ids and numbers only"
OPERATOR = "deleted by the operator; about no lender"


def _column(name: str, kind: TypeEngine | type, rule: str, **more: Any) -> Column:
    return Column(name, kind, info={"rule": rule}, **more)


def _slot(name: str, rule: str, **more: Any) -> Column:
    return Column(name, BigInteger, info={"rule": rule, "slot": True}, **more)


def _number(name: str, rule: str) -> Column:
    """Make a primary key whose numbers we choose ourselves."""
    return _column(name, BigInteger, rule, primary_key=True, autoincrement=False)


person = Table(
    "person",
    metadata,
    _column("id", LargeBinary(16), STAYS, primary_key=True),
    _column("state", Text, STAYS, nullable=False),  # member, quarantined, left
    _slot("account_key", EMPTIED),
    _slot("loans_key", LOANS),
    _column("box", LargeBinary, LOANS),  # places in the catalogue, sorted, 4 bytes each
    _column("lent", Integer, EMPTIED, nullable=False, default=0),
    _column("version", Integer, EMPTIED, nullable=False, default=0),
    _column("created", Instant, EMPTIED),
    _slot("kept_key", KEPT),
    _column("kept_box", LargeBinary, KEPT),  # a browser's number, then places as in box
    _column("kept_count", Integer, EMPTIED),
)
credential = Table(
    "credential",
    metadata,
    _column("lookup", LargeBinary(32), ACCOUNT, primary_key=True),  # HMAC of the credential's id
    _column("person", LargeBinary(16), ACCOUNT, nullable=False, index=True),
    _column("kind", Text, ACCOUNT, nullable=False),  # passkey, recovery, oidc
    _column("box", LargeBinary, ACCOUNT, nullable=False),
)
session = Table(
    "session",
    metadata,
    _column("digest", LargeBinary(32), SESSION, primary_key=True),
    _column("person", LargeBinary(16), SESSION, index=True),
    _column("operator", LargeBinary(16), SESSION, index=True),
    _column("role", Text, SESSION, nullable=False),
    _column("created", Instant, SESSION, nullable=False),
    _column("seen", Instant, SESSION, nullable=False),
    _column("expires", Instant, SESSION, nullable=False),
    _column("confirmed_at", Instant, SESSION),
)
event = Table(
    "event",
    metadata,
    _number("seq", NO_CONTENT),
    _column("at", Instant, NO_CONTENT, nullable=False),
    _column("person", LargeBinary(16), NULLED, index=True),
    _column("kind", Text, NO_CONTENT, nullable=False),
    _column("n", Integer, NO_CONTENT, nullable=False),
    _column("leaf", BigInteger, NO_CONTENT),
    _column("against", Integer, NO_CONTENT),  # how its person stood (release_counts.py)
)
answered = Table(
    "answered",
    metadata,
    _column("lookup", LargeBinary(32), HOURS_72, primary_key=True),  # of key and person
    _column("body", LargeBinary(32), HOURS_72, nullable=False),  # digest under the caller's key
    _slot("slot", HOURS_72, nullable=False),
    _column("box", LargeBinary, HOURS_72, nullable=False),  # opens with slot AND the caller's key
    _column("at", Instant, HOURS_72, nullable=False, index=True),
)
request = Table(
    "request",
    metadata,
    _column("id", Text, YEARS_3, primary_key=True),  # 32 hexadecimal digits
    _column("person", LargeBinary(16), NULLED, index=True),
    _column("kind", Text, YEARS_3, nullable=False),  # unshare, erase, leave
    _column("n", Integer, YEARS_3, nullable=False),
    _column("seq", BigInteger, YEARS_3, index=True),
    _column("status", Text, YEARS_3, nullable=False, index=True),
    _column("reason", Text, YEARS_3),  # of status, or of an extension
    _column("level", Text, YEARS_3, nullable=False),
    _column("received_at", Instant, YEARS_3, nullable=False),
    _column("expected_by", Instant, YEARS_3, nullable=False),
    _column("hidden_at", Instant, YEARS_3),
    _column("erased_at", Instant, YEARS_3),
    _column("summed_at", Instant, YEARS_3),
    _column("served_at", Instant, YEARS_3),
    _column("issued_at", Instant, YEARS_3),
    _column("asked", Text, YEARS_3),  # digest under the receipt's key
    _slot("receipt_slot", RECEIPT_KEY),
    _column("receipt_key", LargeBinary, RECEIPT_KEY),
    _column("receipt", LargeBinary, YEARS_3),
    _column("leaf", BigInteger, YEARS_3),  # of the change
    _column("receipt_leaf", BigInteger, YEARS_3),
    _column("release", BigInteger, YEARS_3),
    _column("link", LargeBinary(32), YEARS_3, index=True),  # digest of the token in the link
    _column("link_until", Instant, YEARS_3),
    _column("agent", Text, YEARS_3, index=True),
    _column("agent_ref", Text, YEARS_3),
    _column("code", LargeBinary(32), YEARS_3),  # digest of what the person confirms
    _column("callback", Text, YEARS_3),
    _column("callback_due", Instant, YEARS_3),
    _column("callback_tries", Integer, YEARS_3),
)
leaf = Table(
    "leaf",
    metadata,
    _number("n", COMMITMENT),
    _column("entry", LargeBinary(33), COMMITMENT, nullable=False),
    _column("hash", LargeBinary(32), COMMITMENT, nullable=False),
)
checkpoint = Table(
    "checkpoint",
    metadata,
    _number("size", COMMITMENT),
    _column("at", Instant, COMMITMENT, nullable=False),
    _column("root", LargeBinary(32), COMMITMENT, nullable=False),
    _column("note", Text, COMMITMENT, nullable=False),
    _column("cosignatures", Text, COMMITMENT, nullable=False, default=""),
)
release = Table(
    "release",
    metadata,
    _number("number", RELEASE),
    _column("seq", BigInteger, RELEASE, nullable=False),
    _column("at", Instant, RELEASE, nullable=False),
    _column("people", Integer, RELEASE, nullable=False),
    _column("sum_digest", Text, RELEASE, nullable=False),
    _column("weights_digest", Text, RELEASE, nullable=False),
    _slot("key", RELEASE_KEY),
    _column("audit", Text, RELEASE),
    _column("leaf", BigInteger, RELEASE),
)
roster = Table(
    "roster",
    metadata,
    _column("digest", LargeBinary(32), LINE, primary_key=True),  # of the line, in roster-*.bin
    _column("part", Text, LINE, nullable=False),  # of the person's sum: lent or kept
    _column("person", LargeBinary(16), NULLED, index=True),
    _column("box", LargeBinary, SEED),  # the seed that hides the line
)
roster_stated = Table(
    "roster_stated",
    metadata,
    _number("number", RELEASE),
    _column("release", BigInteger, RELEASE, nullable=False),
    _column("stated", LargeBinary, RELEASE, nullable=False),
    _column("total", LargeBinary, RELEASE, nullable=False),  # what the lines add up to
    _column("leaf", BigInteger, RELEASE, nullable=False),
)
job = Table(
    "job",
    metadata,
    _column("id", Text, YEAR, primary_key=True),
    _column("kind", Text, YEAR, nullable=False),
    _column("recipe", Text, YEAR),
    _column("state", Text, YEAR, nullable=False),
    _column("seq", BigInteger, YEAR, nullable=False),
    _slot("key", "destroyed when the generation ends or is stale"),
    _column("stale", Boolean, YEAR, nullable=False, default=False),
    _column("at", Instant, YEAR, nullable=False),
    _column("ended_at", Instant, YEAR),
    _column("detail", Text, YEAR),
    _column("leaf", BigInteger, YEAR),  # of its pre-commitment
)
round_ = Table(
    "round",
    metadata,
    _column("job", Text, YEAR, primary_key=True),
    _number("number", YEAR),
    _column("at", Instant, YEAR, nullable=False),
    _column("asked", Integer, YEAR),
    _column("answered", Integer, YEAR),
    _column("refused", Integer, YEAR),
    _column("seconds", Float, YEAR),
    _column("value", Float, YEAR),
)
audit = Table(
    "audit",
    metadata,
    _number("n", YEAR),
    _column("at", Instant, YEAR, nullable=False),
    _column("release", BigInteger, YEAR),
    _column("job", Text, YEAR),
    _column("records", Integer, YEAR, nullable=False),
    _column("verdict", Text, YEAR, nullable=False),
    _column("detail", Text, YEAR),
)
agent = Table(
    "agent",
    metadata,
    _column("id", Text, OPERATOR, primary_key=True),
    _column("name", Text, OPERATOR, nullable=False),
    _column("public_key", Text, OPERATOR, nullable=False),
    _column("token", LargeBinary(32), OPERATOR),
    _column("at", Instant, OPERATOR, nullable=False),
)
operator = Table(
    "operator",
    metadata,
    _column("id", LargeBinary(16), OPERATOR, primary_key=True),
    _column("name", Text, OPERATOR, nullable=False),
    _column("role", Text, OPERATOR, nullable=False),  # operator, officer
    _column("lookup", LargeBinary(32), OPERATOR, index=True),
    _column("public_key", LargeBinary, OPERATOR),
    _column("counter", Integer, OPERATOR, nullable=False, default=0),
    _column("at", Instant, OPERATOR, nullable=False),
)
token = Table(
    "token",
    metadata,
    _column("digest", LargeBinary(32), OPERATOR, primary_key=True),
    _column("name", Text, OPERATOR, nullable=False),
    _column("role", Text, OPERATOR, nullable=False),
    _column("scope", Text, OPERATOR, nullable=False),
    _column("at", Instant, OPERATOR, nullable=False),
    _column("expires", Instant, OPERATOR, nullable=False),
)
witness = Table(
    "witness",
    metadata,
    _column("name", Text, OPERATOR, primary_key=True),
    _column("key", Text, OPERATOR, nullable=False),
    _column("url", Text, OPERATOR),
    _column("at", Instant, OPERATOR, nullable=False),
)
setting = Table(
    "setting",
    metadata,
    _column("name", Text, OPERATOR, primary_key=True),
    _column("value", Text, OPERATOR, nullable=False),
)

PATHS = {
    "keys.bin": "slots are overwritten in place, then synced; never archived",
    "catalogue.json": "kept: items and titles, public",
    "database.txt": "kept: the address of PostgreSQL, no password",
    "keys-mirror.txt": "kept: the path of the keys' second copy",
    "ledger.db": "by the rules of the columns: ciphertext and numbers",
    "ledger.db-wal": "as ledger.db; emptied at every checkpoint",
    "ledger.db-shm": "as ledger.db; an index of the file beside it",
    "release-*.sealed": "its key is destroyed with the next release, then the file is removed",
    "roster-*.bin": "public: lines that hide their items; replaced with the next roster",
    "generation-*": "sealed under the key of its job, destroyed when it ends or is stale",
    "compiled/*": "kept: compiled code, where the service may write nowhere else",
    "logs/*.log": "deleted after 30 days; counts and seconds, never an id of a person or item",
}


CHANGES = ("lend", "contribute", "unshare", "erase", "leave", "dropped")
"""Kinds of events after which what is served is not what is lent any more."""


def at_least_erased() -> Any:
    """Return the level of a request whose erasure is dated: L1, or higher if it was before."""
    return case((request.c.level == "L0", "L1"), else_=request.c.level)


def setting_of(tx: Connection, name: str) -> str | None:
    return tx.scalar(select(setting.c.value).where(setting.c.name == name))


def keep_setting(tx: Connection, name: str, value: str) -> None:
    if not tx.execute(update(setting).where(setting.c.name == name).values(value=value)).rowcount:
        tx.execute(insert(setting).values(name=name, value=value))


def unkeepable(value: Any) -> ConfigError | None:
    """Return why an operation cannot be kept: PostgreSQL has no NUL in a text, SQLite cuts it.

    The error would come with the commit, when nobody knows any more whose text it was.
    """
    if isinstance(value, str):
        nul = ConfigError("a text has the character NUL (0). Leave it out.")
        return nul if "\0" in value else None
    if isinstance(value, Mapping):
        inside: Sequence[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        inside = value if value and not isinstance(value[0], int) else ()  # items are many
    else:
        inside = tuple(vars(value).values()) if is_dataclass(value) else ()
    return next((found for one in inside if (found := unkeepable(one)) is not None), None)


def slot_columns() -> Iterator[Column]:
    """Yield the columns that hold ids of key slots."""
    for table in metadata.tables.values():
        yield from (column for column in table.columns if column.info.get("slot"))


def named_slots(connection: Connection) -> set[int]:
    """Return the ids of all keys that a box in the ledger needs."""
    found: set[int] = set()
    for column in slot_columns():
        found.update(connection.scalars(select(column).where(column.is_not(None))))
    return found


def data_map() -> dict[str, dict[str, str]]:
    columns = {
        table.name: {column.name: column.info["rule"] for column in table.columns}
        for table in metadata.tables.values()
    }
    return {**columns, "files": dict(PATHS)}
