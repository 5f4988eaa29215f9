"""Whether a backup, the ledger in place and the keys are of one service.

A start destroys every key that its ledger does not name. So keys meet no ledger but their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lost_keys import owner_of
from rescind.ledger.place import FILE
from rescind.ledger.store import last_batch_if_any, reading_any


@contextmanager
def in_place(state: Path, database: str | None) -> Iterator[Connection | None]:
    """Read the ledger in place; None if there is none that can be read."""
    with ExitStack() as stack:
        here = None
        if database is not None or (state / FILE).is_file():
            with suppress(DBAPIError):
                found = stack.enter_context(reading_any(state, database))
                found.execute(select(tables.leaf.c.n).limit(1)).all()  # of another version: none
                here = found
        yield here


def refuse_foreign(
    keys: KeySlots, source: Connection, state: Path, backup: Path | None, database: str | None
) -> None:
    """Take no ledger of another service: every key in use would be destroyed for it."""
    if backup is None:
        _refuse_empty(keys, source)
    elif _another_log(source, state, database):
        raise ConfigError(
            f"{backup} is not a backup of this service: its log is another one. Putting it in "
            f"place would destroy all that is here. Give a backup that rescind backup {state} "
            f"wrote. Nothing was changed."
        )
    if not _its_own(keys, source, state, database):
        raise ConfigError(
            f"the keys do not belong to {backup or 'this ledger'}, or are damaged: they open "
            f"nothing of it, and putting it in place would destroy them. Nothing was changed. Give "
            f"the right file (--keys-mirror FILE, or {state / KEYS}) or the right backup (--from). "
            f"If the keys are lost for good: put a copy of the backup into a new folder as "
            f"{FILE}, and rescind serve --accept-lost-keys drops every loan and ends every account."
        )


def _refuse_empty(keys: KeySlots, connection: Connection) -> None:
    """Accept no ledger that never held anything: all keys in use would be destroyed for it."""
    with connection.begin():
        batch = last_batch_if_any(connection)
    if not batch and keys.head.batch:
        raise ConfigError(
            f"this ledger is empty, and its keys were last used with {keys.head.batch} batches: it "
            f"is not theirs, and accepting it would destroy them all. If the ledger is in "
            f"PostgreSQL, give --database; if it is lost, give --from BACKUP."
        )


def _another_log(source: Connection, state: Path, database: str | None) -> bool:
    """Whether the log of the ledger in place began with another entry."""
    first = _first_entry(source)
    with in_place(state, database) as here:
        ours = None if here is None else _first_entry(here)
    return first is not None and ours is not None and first != ours


def _its_own(keys: KeySlots, source: Connection, state: Path, database: str | None) -> bool:
    """Whether a ledger is that of these keys.

    One of an earlier version does not say so. Then the one in place may, whose log is the same, and
    else a key that opens something.
    """
    if (owner := owner_of(source)) is not None:
        return owner == keys.identity
    first = _first_entry(source)
    with in_place(state, database) as here:
        ours = None if here is None or owner_of(here) != keys.identity else _first_entry(here)
    if keys.identity is not None and first is not None and first == ours:
        return True
    boxes = tables.named_slots(source)
    return not boxes or bool(boxes & keys.ids)


def _first_entry(connection: Connection) -> bytes | None:
    first = connection.scalar(select(tables.leaf.c.hash).where(tables.leaf.c.n == 0))
    return None if first is None else bytes(first)
