"""Copies of the ledger, and how to go back to one.

A backup is one SQLite file with every row, of either database: ciphertext and numbers. Keys are
never in it, so it opens only what has not changed since. Going back drops the rest, by number.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, delete, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from rescind.core.files import locked, sync_folder
from rescind.core.words import count_of, people_of
from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.belonging import in_place, refuse_foreign
from rescind.ledger.errors import CannotStart
from rescind.ledger.going_back import check_copies_agree, named_in_place, place_of_replaced
from rescind.ledger.keycopies import check_files
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import Head
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lending import LEFT
from rescind.ledger.lost_keys import (
    check_not_missing,
    mirror_missing,
    mirror_of,
    note_gone,
    note_owner,
    remember_mirror,
)
from rescind.ledger.migrate import migrate, newest
from rescind.ledger.noising import end_schedule
from rescind.ledger.place import FILE, check_not_elsewhere, check_there, remember
from rescind.ledger.reading import OPEN
from rescind.ledger.start import open_boxes, read_tree
from rescind.ledger.store import Store, last_batch, last_batch_if_any, reading, reading_any
from rescind.ledger.undone import Undone
from rescind.proof.tlog import Tree

CHUNK = 1000
"""Rows copied at a time."""


def _entries(number: int) -> str:
    return count_of(number, "entry", "entries")


@dataclass(frozen=True)
class Plan:
    """What going back to a ledger would keep and drop."""

    entries: int
    entries_lost: int
    """Entries of the log that the keys have seen and this ledger does not have."""
    people: int
    loans: int
    people_dropped: int
    loans_dropped: int
    accounts_ended: int
    keys_destroyed: int
    """Keys of what was lent or changed since: nothing in this ledger needs them."""
    receipts_impossible: int = 0
    """Open requests whose receipt cannot be issued: its key was destroyed with an earlier one."""
    undone: Undone | None = None
    """What the ledger in place has answered since; None: it is the one to accept, or unreadable."""
    keys_lost: int | None = 0
    """Keys that the ledger in place needs and no copy has: the keys are damaged, or an old copy.

    None: no ledger in place tells.
    """
    batches_unseen: int = 0
    """Batches of changes that the keys have seen, and neither this ledger nor the one in place."""
    moves_from: Path | None = None
    """The ledger that the service moves from, if this one is older."""

    def __str__(self) -> str:
        text = (
            f"This ledger has {_entries(self.entries)}. {count_of(self.loans, 'loan')} of "
            f"{people_of(self.people)} open.\n"
            f"Dropped: {count_of(self.loans_dropped, 'loan')} of {people_of(self.people_dropped)}, "
            f"which changed or left since. Accounts that ended since: {self.accounts_ended:,}."
            f"{self._doubt()}\n"
            f"The next start destroys {count_of(self.keys_destroyed, 'key')} of what was lent or "
            f"changed since. Until then another backup can be put in place instead."
        )
        if self.keys_lost:
            text += (
                f"\n{count_of(self.keys_lost, 'key')} of the ledger in place cannot be found: the "
                f"keys are damaged, or an old copy. What they open is dropped, too: put a whole "
                f"copy back first."
            )
        if self.undone is not None:
            text += f"\n{self.undone}"
        if self.batches_unseen:
            text += (
                f"\n{count_of(self.batches_unseen, 'batch', 'batches')} of changes came after "
                f"this ledger, and no ledger in place has them: requests of that time are not "
                f"known any more, and nothing tells how many. If the ledger that has them is still "
                f"somewhere, such as in a database: back it up again while the service is stopped, "
                f"and restore that."
            )
        if self.receipts_impossible:
            text += f"\n{self._about_receipts()}"
        text += "\nEverybody signs in again: sessions end."
        if self.entries_lost:
            text += (
                f"\nThe log goes back by {_entries(self.entries_lost)}: proofs of them lead "
                f"nowhere. Witnesses that saw them will refuse the log for good, and they are "
                f"right: publish what happened. A log that they cosign needs a new state folder."
            )
        if self.moves_from is not None:
            text += (
                f"\nThis ledger is older than {self.moves_from}, which the service moves from. To "
                f"lose nothing, answer no: the service is stopped now, so back up again (rescind "
                f"backup {self.moves_from.parent} NEW-FILE), and restore that."
            )
        return text

    def _doubt(self) -> str:
        """Say that what is dropped may be due to damaged keys, if nothing tells."""
        if self.keys_lost is not None or not (self.loans_dropped or self.accounts_ended):
            return ""
        return (
            " (If the keys are whole: no ledger in place tells. Damaged keys look the same; put a "
            "whole copy back first.)"
        )

    def _about_receipts(self) -> str:
        """Say which receipts cannot be issued, and what is left to do for their people."""
        number = self.receipts_impossible
        keys = "its key is" if number == 1 else "their keys are"
        text = (
            f"No receipt can be issued for {count_of(number, 'open request')}: {keys} gone. A key "
            f"is destroyed when its receipt is issued. Send the issued ones again from where they "
            f"are kept: whoever did not save theirs gets no other."
        )
        if self.undone is not None:
            text += (
                " The ledger in place holds those that it issued: before you go on, keep it with "
                "rescind backup."
            )
        return text


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
        with reading(state, database) as source, _new_file(part) as copy:
            counts = _copy_rows(source, copy)
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


def plan(state: Path, backup: Path | None, keys_mirror: Path | None, database: str | None) -> Plan:
    """Find out what going back would drop. Nothing is changed; the service must not run."""
    _check_place(state, backup, database)
    with ExitStack() as stack:
        mirror = stack.enter_context(_held(state, keys_mirror))
        replaced = place_of_replaced(state, mirror, database)
        needed = named_in_place(state, mirror, replaced)
        keys = stack.enter_context(_keys(state, mirror, needed, reading=True))
        source = stack.enter_context(_source(state, backup, database))
        refuse_foreign(keys, source, state, backup, database)
        named = tables.named_slots(source)
        if needed is None:
            check_copies_agree(state, mirror, named)
        loans, lost = open_boxes(keys, source)
        without_key = _without_key(keys, source)
        tree = _tree(source)
        with in_place(state, replaced) as here:
            batch = last_batch_if_any(source)
            batch_here = 0 if here is None else last_batch_if_any(here)
            undone = None
            if here is not None and (backup is not None or replaced != database):
                undone = Undone.between(here, source, without_key)
        return Plan(
            entries=len(tree),
            entries_lost=max(0, keys.head.size - len(tree)),
            people=len(loans),
            loans=sum(map(len, loans.values())),
            people_dropped=sum(row.box is not None for row in lost),
            loans_dropped=sum(row.lent for row in lost),
            accounts_ended=sum(row.account_key not in keys.ids for row in lost),
            keys_destroyed=len(keys.without_box(named)),
            receipts_impossible=len(without_key),
            undone=undone,
            keys_lost=None if needed is None else len(needed - keys.ids),
            batches_unseen=max(0, keys.head.batch - max(batch, batch_here)),
            moves_from=state / FILE if replaced != database and batch < batch_here else None,
        )


def _without_key(keys: KeySlots, source: Connection) -> set[str]:
    """Return the open requests of a ledger that wait for a receipt whose key is gone."""
    table = tables.request
    waiting = select(table.c.id, table.c.receipt_slot).where(
        table.c.status.in_(OPEN), table.c.receipt_key.is_not(None)
    )
    known = keys.ids  # None is not among them: an earlier start has seen that the key is gone
    return {row.id for row in source.execute(waiting) if row.receipt_slot not in known}


def restore(
    state: Path,
    backup: Path | None,
    keys_mirror: Path | None = None,
    database: str | None = None,
) -> None:
    """Put a backup in place (None: accept the ledger in place). The next start drops the rest.

    Killed before its end, the next start refuses the ledger: repeat the command.
    """
    _check_place(state, backup, database)
    with _held(state, keys_mirror) as mirror:
        needed = named_in_place(state, mirror, place_of_replaced(state, mirror, database))
        with (  # before anything is written
            _keys(state, mirror, needed, reading=True) as found,
            _source(state, backup, database) as source,
        ):
            refuse_foreign(found, source, state, backup, database)
            if needed is None:
                check_copies_agree(state, mirror, tables.named_slots(source))
        with _keys(state, mirror, needed) as keys:
            _go_back(keys, state, backup, mirror, database)


def _go_back(
    keys: KeySlots, state: Path, backup: Path | None, mirror: Path | None, database: str | None
) -> None:
    if backup is not None:
        _put_in_place(keys, state, backup, database)
    store = Store(state, database)
    try:
        connection = store.writer()
        migrate(connection)
        remember(state, database)
        remember_mirror(state, mirror)
        with connection.begin():
            note_owner(connection, keys)
            note_gone(connection, keys)  # the operator was asked
            connection.execute(delete(tables.session))  # everybody signs in again
            end_schedule(connection)
        tree = read_tree(connection)
        with connection.begin():
            batch = last_batch(connection)
        keys.restart_head(Head(len(tree), batch, tree.root()))
    finally:
        store.close()


def _check_place(state: Path, backup: Path | None, database: str | None) -> None:
    """Say before anything is made that there is no ledger to accept, or that it is elsewhere."""
    if backup is None:
        check_there(state, database)
    else:
        check_not_elsewhere(state, database)


def _put_in_place(keys: KeySlots, state: Path, backup: Path, database: str | None) -> None:
    """Replace the ledger. It says whose it is from the beginning: a repeat must know it."""
    if database is None:
        part = state / f".{FILE}.part"
        for left in state.glob(part.name + "*"):
            left.unlink()
        with _one_file(backup) as source, _new_file(part) as copy:
            _copy_rows(source, copy)
            note_owner(copy, keys)
        for old in ("-wal", "-shm"):  # of the ledger that is replaced
            (state / (FILE + old)).unlink(missing_ok=True)
        os.replace(part, state / FILE)
        sync_folder(state)
        return
    store = Store(state, database)
    try:
        connection = store.writer()
        migrate(connection)
        with _one_file(backup) as source, connection.begin():
            for table in reversed(tables.metadata.sorted_tables):
                connection.execute(delete(table))
            _copy_rows(source, connection)
            note_owner(connection, keys)
    finally:
        store.close()


def _copy_rows(source: Connection, copy: Connection) -> dict[str, int]:
    counts = {}
    for table in tables.metadata.sorted_tables:
        counts[table.name] = 0
        for rows in source.execute(select(table)).mappings().partitions(CHUNK):
            copy.execute(insert(table), [dict(row) for row in rows])
            counts[table.name] += len(rows)
    return counts


@contextmanager
def _held(state: Path, mirror: Path | None) -> Iterator[Path | None]:
    """Hold the state, so that no service runs on it meanwhile; give the mirror of its keys."""
    if not state.is_dir():
        raise DataError(
            f"{state} is not a folder. Name the state folder of a service; if its disk was lost, "
            f"make a new one first: mkdir {state}"
        )
    with locked(state):
        mirror = mirror_of(state, mirror)
        if missing := mirror_missing(state, mirror):  # it would be newer than the keys afterwards
            raise CannotStart(f"{missing} Nothing was done.")
        check_not_missing(state, mirror)
        check_files(state / KEYS, mirror)  # before their modes: it may be any file
        yield mirror


@contextmanager
def _keys(
    state: Path, mirror: Path | None, needed: set[int] | None, reading: bool = False
) -> Iterator[KeySlots]:
    with closing(KeySlots(state / KEYS, mirror, reading=reading, needed=needed or ())) as keys:
        yield keys


@contextmanager
def _source(state: Path, backup: Path | None, database: str | None) -> Iterator[Connection]:
    with _one_file(backup) if backup else reading_any(state, database) as connection:
        yield connection


@contextmanager
def _one_file(backup: Path) -> Iterator[Connection]:
    """Read a backup; raise `DataError` if it is none."""
    if not backup.is_file():
        raise DataError(f"there is no file {backup}. Name a file that rescind backup wrote.")
    engine = create_engine(
        URL.create("sqlite", database=f"file:{backup}", query={"mode": "ro", "uri": "true"})
    )
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(engine.connect())
            try:
                version = connection.scalar(text("SELECT version_num FROM alembic_version"))
            except DBAPIError as error:
                raise DataError(
                    f"{backup} is not a backup of a ledger: {error.orig}. "
                    f"Name a file that rescind backup wrote."
                ) from None
            yield connection if version == newest() else stack.enter_context(_brought_up(backup))
    finally:
        engine.dispose()


@contextmanager
def _brought_up(backup: Path) -> Iterator[Connection]:
    """Read a backup of an earlier version into memory and migrate it: the file stays as it is."""
    engine = create_engine("sqlite://")

    def fill(memory: sqlite3.Connection, _: object) -> None:
        memory.isolation_level = None
        with closing(sqlite3.connect(f"file:{backup}?mode=ro", uri=True)) as file:
            file.backup(memory)

    event.listen(engine, "connect", fill)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    try:
        with engine.connect() as connection:
            migrate(connection)
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _new_file(path: Path) -> Iterator[Connection]:
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


def _tree(connection: Connection) -> Tree:
    rows = connection.execute(select(tables.leaf.c.hash).order_by(tables.leaf.c.n))
    return Tree(b"".join(bytes(row.hash) for row in rows))
