"""SQLite and PostgreSQL behind one face: what durability needs is asserted, not assumed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

from rescind.errors import ConfigError, how_to_install
from rescind.ledger.errors import Busy, CannotStart, DiskFull, LogRemoved, OlderLedger
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import head_of
from rescind.ledger.place import check_may_begin, check_there, compared_with_note, shown, url_of
from rescind.ledger.tables import setting_of

LOCK = 0x72657363696E64
"""The advisory lock in PostgreSQL: "rescind" in ASCII."""
WAL_PAGES = 4000
"""Pages (16 MB) in the write-ahead log after which it is moved into the database."""
_FULL = "the disk of the ledger is full: nothing was written. Send it again when there is space."
_REMOVED = (
    "ledger.db-wal was removed: nothing was written. The operator must stop the service as usual "
    "(never by kill -9) and start it."
)
_AWAY = "the database is away or locked by another program: nothing was acknowledged. Send again."
TIMEOUT = 5
"""Seconds to wait for another process: one that reads the file, or one that was just killed."""
RETRY = 0.1
"""Seconds between two tries to reach PostgreSQL again."""


class Store:
    """The database of a ledger: one connection that writes, some that read."""

    def __init__(self, state: Path, database: str | None = None) -> None:
        """database: URL of PostgreSQL; None: `ledger.db` in the state folder"""
        check_may_begin(state, database)
        self.url = url_of(state, database)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        if self.sqlite:
            _private(Path(str(self.url.database)))
        self.writing = _engine(self.url, writing=True)
        self._reading = _engine(self.url, writing=False)
        self._connection: Connection | None = None
        self._held = False
        self._log: int | None = None
        """The inode of the write-ahead log of SQLite that the connection writes to."""
        try:
            self.writer()
        except BaseException:
            self.close()
            raise

    def writer(self) -> Connection:
        """Return the connection that writes, made again if the database was away."""
        if self._connection is not None and not self._connection.invalidated:
            return self._connection
        with suppress(SQLAlchemyError):
            self._forget_connection()
        try:
            connection = self.writing.connect()
            self._assert_durable(connection)
            if not self.sqlite:
                self._lock(connection)
        except DBAPIError as error:
            raise self._not_opened(error) from None
        self._connection, self._log = connection, self._named_log()
        return connection

    def check_log(self) -> None:
        """Refuse to write to a write-ahead log that has lost its name: a start would not find it.

        It costs one look at the folder for each batch.
        """
        if self._named_log() != self._log:
            raise LogRemoved(_REMOVED)

    def _named_log(self) -> int | None:
        """Return the inode of the file that has the name of the log."""
        try:
            return os.stat(f"{self.url.database}-wal").st_ino if self.sqlite else None
        except FileNotFoundError:
            return None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that reads one state of the database."""
        try:
            with self._reading.connect() as connection:
                yield connection
        except DBAPIError as error:
            if isinstance(known := self.known(error), Busy | DiskFull):
                raise known from None
            raise

    def answers(self) -> bool:
        """Return whether the database answers a question now."""
        try:
            with self.reading() as connection:
                connection.execute(text("SELECT 1"))
        except (Busy, DiskFull, DBAPIError):
            return False
        return True

    @contextmanager
    def faults_told(self) -> Iterator[None]:
        """Turn errors of the database into a sentence, where nothing is served yet."""
        try:
            yield
        except DBAPIError as error:
            raise self._not_opened(error) from None

    def known(self, error: DBAPIError) -> Busy | DiskFull | None:
        """Return what a database error means for callers; None: it is fatal."""
        cause = error.orig
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # without what SQLite adds to it
            if code == sqlite3.SQLITE_BUSY:
                return Busy(_AWAY)
            return DiskFull(_FULL) if code == sqlite3.SQLITE_FULL else None
        state = getattr(cause, "sqlstate", None)
        if state == "53100":
            return DiskFull(_FULL)
        lost = state is None and type(cause).__name__ == "OperationalError"
        away = error.connection_invalidated or lost or str(state)[:2] in ("08", "57")
        return Busy(_AWAY) if away else None

    def forget_broken(self) -> None:
        """Use the connection that writes no more: one that broke among many rows may not say so."""
        with suppress(SQLAlchemyError):
            self._forget_connection()

    def batch_after(self, meanwhile: Callable[[Busy], None]) -> int:
        """Wait until the database is back; return the number of the last batch it holds.

        Whether a commit took effect is not known when the connection broke in it.
        meanwhile: is called at every try that failed; what it raises ends the waiting
        """
        self.forget_broken()
        while True:
            try:
                with self.writer().begin():
                    return last_batch(self.writer())
            except (Busy, DBAPIError) as again:
                away = self.known(again) if isinstance(again, DBAPIError) else again
                if not isinstance(away, Busy):
                    raise
            self.forget_broken()
            meanwhile(away)
            time.sleep(RETRY)

    def checkpoint(self, least: int = WAL_PAGES) -> None:
        """Move the write-ahead log of SQLite into the database once it has `least` pages.

        SQLite's own checkpoint ignores a failed sync; here it is an error, and so fatal.
        """
        if not self.sqlite:
            return
        wal = Path(str(self.url.database) + "-wal")
        if least and (not wal.exists() or wal.stat().st_size < least * 4096):
            return
        driver = self.writer().connection.driver_connection  # outside any transaction
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("PRAGMA busy_timeout=0")  # no reader is waited for: the next pause does it
        try:
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise DBAPIError("PRAGMA wal_checkpoint", (), error) from error
        finally:
            driver.execute(f"PRAGMA busy_timeout={1000 * TIMEOUT}")

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._forget_connection()
        self.writing.dispose()
        self._reading.dispose()

    def _forget_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self.writing.dispose()

    def _assert_durable(self, connection: Connection) -> None:
        """Refuse a database that acknowledges before it has synced."""
        if self.sqlite:
            wanted = {"PRAGMA journal_mode": "wal", "PRAGMA synchronous": "2"}
        else:
            wanted = {"SHOW synchronous_commit": "on", "SHOW fsync": "on"}
        for question, right in wanted.items():
            found = str(connection.execute(text(question)).scalar_one())
            if found != right:
                raise CannotStart(
                    f"the database says {found} to '{question}', but durable answers need {right}. "
                    f"Change it there."
                )
        connection.rollback()

    def _lock(self, connection: Connection) -> None:
        """Take the lock of this schema. A killed process holds it until the server notices."""
        schema = connection.execute(text("SELECT hashtext(current_schema())")).scalar_one()
        question = text("SELECT pg_try_advisory_lock(:key)")
        end = time.monotonic() + TIMEOUT
        while not connection.execute(question, {"key": LOCK ^ (schema & 0xFFFFFFFF)}).scalar_one():
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            connection.close()
            if self._held:  # our own last connection, cut off
                raise Busy(_AWAY)
            raise CannotStart(
                "this database is in use by another service. End that one first, or name another."
            )
        connection.commit()  # the lock is of the session and stays
        self._held = True

    def _not_opened(self, error: DBAPIError) -> Exception:
        known = self.known(error)
        if self._held and getattr(error.orig, "sqlstate", None) is None:
            known = known or Busy(_AWAY)
        if known is not None and (self.sqlite or self._held):
            return known
        if self.sqlite:
            return CannotStart(
                f"cannot open {self.url.database}: {error.orig}. Check the disk; if the file is "
                f"damaged, go back to a backup: rescind restore."
            )
        why, url = " ".join(str(error.orig).split()), shown(self.url.render_as_string(False))
        return CannotStart(f"cannot use the database {url}: {why}. Check --database.")


def last_batch(connection: Connection) -> int:
    return int(setting_of(connection, "batch") or 0)


def last_batch_if_any(connection: Connection) -> int:
    """Return the number of the last batch; 0 where there are no tables, and makes none."""
    return last_batch(connection) if inspect(connection).has_table("setting") else 0


@contextmanager
def reading(state: Path, database: str | None) -> Iterator[Connection]:
    """Read one state of a ledger, for a command beside a running service.

    An older ledger than its keys, such as an empty one, is refused: what it does not know would
    pass for what is not there.
    """
    with reading_any(state, database) as connection:
        head = head_of(state / KEYS)  # before the ledger: that one is ahead of its keys
        with connection.begin():
            batch = last_batch_if_any(connection)
        with compared_with_note(state, database):
            if batch < head.batch:
                raise OlderLedger(
                    f"this ledger is older than its keys, or another one: it has {batch} batches, "
                    f"the keys of {state} {head.batch}. If it is in PostgreSQL, give --database."
                )
        yield connection


@contextmanager
def reading_any(state: Path, database: str | None) -> Iterator[Connection]:
    """Read one state of a ledger, also of one that does not fit the keys of its folder."""
    check_there(state, database)
    engine = _engine(url_of(state, database), writing=False)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _engine(url: URL, writing: bool) -> Engine:
    sqlite = url.get_backend_name() == "sqlite"
    try:
        engine = create_engine(url, **_arguments(url, writing))
    except (ModuleNotFoundError, NoSuchModuleError):
        raise ConfigError(
            f"no driver for {url.drivername} is installed. Run: {how_to_install('postgres')}"
        ) from None
    if sqlite:
        event.listen(engine, "connect", _sqlite_writer if writing else _sqlite_reader)
        start = "BEGIN IMMEDIATE" if writing else "BEGIN"
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(start))
    return engine


def _arguments(url: URL, writing: bool) -> dict[str, Any]:
    quiet = {"hide_parameters": True}  # a message of an error is logged, and a log names nobody
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"check_same_thread": False, "timeout": TIMEOUT}, **quiet}
    # A reader sees one state of the database from its first query to its last.
    reader = "-cdefault_transaction_read_only=on -cdefault_transaction_isolation=repeatable\\ read"
    how = "-csynchronous_commit=on" if writing else reader
    given = url.query.get("options", ())
    options = " ".join([*([given] if isinstance(given, str) else given), how])
    connecting = {"options": options, "connect_timeout": 5}
    return {"connect_args": connecting, "pool_pre_ping": True, **quiet}


def _private(path: Path) -> None:
    """Let only its owner read a database; SQLite gives the files beside it the same mode."""
    if not path.parent.is_dir():
        return  # the database says so
    if not path.exists():  # closing an existing one would end locks that this process has on it
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    for one in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if one.exists():
            one.chmod(0o600)


def _sqlite_writer(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by us, so that DDL is in them, too
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "secure_delete=ON",
        "wal_autocheckpoint=0",  # see Store.checkpoint
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_reader(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")
    connection.execute("PRAGMA temp_store=MEMORY")
