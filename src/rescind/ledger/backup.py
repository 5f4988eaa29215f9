"""Copies of the ledger: one SQLite file with every row, of either database.

It holds ciphertext and numbers. Keys are never in it, so it opens only what has not changed since.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from rescind.core.files import sync_folder
from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.lending import LEFT
from rescind.ledger.migrate import migrate, newest
from rescind.ledger.place import check_there
from rescind.ledger.store import reading

CHUNK = 1000


def back_up(state: Path, target: Path, database: str | None = None) -> dict[str, int]:
    """Copy the ledger into a new file while the service runs; return rows by table.

    Of people only those count who have not left.
    """
    if target.exists():
        raise ConfigError(f"{target} exists already. Name a new file for the backup.")
    check_there(state, database)
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with reading(state, database) as source, new_file(part) as copy:
            counts = copy_rows(source, copy)
            here = select(func.count()).where(tables.person.c.state != LEFT)
            counts["person"] = int(copy.scalar(here) or 0)
        os.replace(part, target)
        sync_folder(target.parent)
    except DBAPIError as error:
        raise DataError(f"cannot copy the ledger: {error.orig}. Nothing was written.") from None
    finally:
        for left in part.parent.glob(part.name + "*"):
            left.unlink()
    return counts


def copy_rows(source: Connection, copy: Connection) -> dict[str, int]:
    """Copy every row of a ledger into another one; return how many, by table."""
    counts = {}
    for table in tables.metadata.sorted_tables:
        counts[table.name] = 0
        for rows in source.execute(select(table)).mappings().partitions(CHUNK):
            copy.execute(insert(table), [dict(row) for row in rows])
            counts[table.name] += len(rows)
    return counts


@contextmanager
def one_file(backup: Path) -> Iterator[Connection]:
    """Read a backup; raise `DataError` if it is none of this version."""
    if not backup.is_file():
        raise DataError(f"there is no file {backup}. Name a file that rescind backup wrote.")
    engine = create_engine(
        URL.create("sqlite", database=f"file:{backup}", query={"mode": "ro", "uri": "true"})
    )
    try:
        with engine.connect() as connection:
            try:
                version = connection.scalar(text("SELECT version_num FROM alembic_version"))
            except DBAPIError as error:
                version = error.orig
            if version != newest():
                raise DataError(
                    f"{backup} is not a backup of a ledger that this version reads ({version}). "
                    f"Name a file that rescind backup wrote."
                )
            yield connection
    finally:
        engine.dispose()


@contextmanager
def new_file(path: Path) -> Iterator[Connection]:
    """Make a ledger in one new file of mode 600, synced at the end."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    engine = create_engine(URL.create("sqlite", database=str(path)))
    event.listen(engine, "connect", _plain)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    try:
        with engine.connect() as connection:
            migrate(connection)
            with connection.begin():
                yield connection
    finally:
        engine.dispose()
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def _plain(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
