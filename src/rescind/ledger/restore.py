"""Going back to a backup, or to an older ledger in place: what would be dropped, and doing it.

A backup opens only what has not changed since; the rest is dropped, by number. An older copy of the
keys has some that were destroyed since: only a ledger in place that is as new as the keys tells
them from keys that the newest copy has lost.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DBAPIError

from rescind.core.files import locked, sync_folder
from rescind.core.words import count_of, people_of
from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.backup import copy_rows, new_file, one_file
from rescind.ledger.errors import CannotStart
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import Head, check_files, keys_in
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.migrate import migrate
from rescind.ledger.noising import end_schedule
from rescind.ledger.ownership import (
    check_not_missing,
    gone_of,
    joined_copies,
    mirror_missing,
    mirror_of,
    note_gone,
    note_owner,
    refuse_foreign,
    remember_mirror,
)
from rescind.ledger.place import FILE, NOTE, check_not_elsewhere, check_there, remember
from rescind.ledger.reading import OPEN
from rescind.ledger.start import open_boxes, read_tree
from rescind.ledger.store import Store, last_batch, last_batch_if_any, reading_any
from rescind.proof.tlog import Tree


@dataclass(frozen=True)
class RestoreDiff:
    """What the ledger in place has done, and the one that replaces it does not know."""

    answers: int
    """Requests that are answered here and open there."""
    answers_without_key: int
    """Those of them that cannot get another receipt: its key was destroyed with the first one."""
    requests: int
    """Requests that are not there at all. What they took back stays gone: its keys are."""
    tokens_lost: int
    tokens_back: int
    """Tokens that were revoked or spent since, and open doors again."""

    def __str__(self) -> str:
        if self == RestoreDiff(0, 0, 0, 0, 0):
            return "Undone: nothing. Every request and token of the ledger in place is known."
        return (
            f"Undone: {count_of(self.answers, 'answered request')} open again, of which "
            f"{self.answers_without_key:,} can get no other receipt; "
            f"{count_of(self.requests, 'request')} not known any more (what they took back stays "
            f"gone).\n"
            f"Tokens: {self.tokens_lost:,} made since end; {self.tokens_back:,} that ended since "
            f"open doors again: rescind tokens list, then revoke."
        )

    @classmethod
    def between(cls, here: Connection, there: Connection, without_key: set[str]) -> RestoreDiff:
        """Compare the ledger in place with the one that replaces it.

        without_key: open requests of the other one whose receipts cannot be issued
        """
        table = tables.request
        question = select(table.c.id, table.c.status)
        now, then = ({row.id: row.status for row in one.execute(question)} for one in (here, there))
        made, kept = (
            {bytes(digest) for digest in one.scalars(select(tables.token.c.digest))}
            for one in (here, there)
        )
        known = now.keys() & then.keys()
        answered = {name for name in known if then[name] in OPEN and now[name] not in OPEN}
        return cls(
            len(answered),
            len(answered & without_key),
            len(now.keys() - known),
            len(made - kept),
            len(kept - made),
        )


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
    undone: RestoreDiff | None = None
    """None: the ledger in place is the one to accept, or unreadable."""
    keys_lost: int | None = 0
    """Keys that the ledger in place needs and no copy has: the keys are damaged, or an old copy.

    None: no ledger in place tells.
    """
    batches_unseen: int = 0
    """Batches of changes that the keys have seen, and neither this ledger nor the one in place."""
    moves_from: Path | None = None
    """The ledger that the service moves from, if this one is older."""

    def __str__(self) -> str:
        entries = count_of(self.entries, "entry", "entries")
        dropped = count_of(self.loans_dropped, "loan")
        lines = [
            f"This ledger has {entries}. {count_of(self.loans, 'loan')} of "
            f"{people_of(self.people)} open.",
            f"Dropped: {dropped} of {people_of(self.people_dropped)}, which changed or left since. "
            f"Accounts that ended since: {self.accounts_ended:,}.",
            f"The next start destroys {count_of(self.keys_destroyed, 'key')} of what was lent or "
            f"changed since. Until then another backup can be put in place instead.",
        ]
        if self.keys_lost:
            lines.append(
                f"{count_of(self.keys_lost, 'key')} of the ledger in place cannot be found: the "
                f"keys are damaged, or an old copy. Put a whole copy back first."
            )
        if self.keys_lost is None and (self.loans_dropped or self.accounts_ended):
            lines.append("No ledger in place tells whether the keys are whole: damaged ones drop.")
        if self.undone is not None:
            lines.append(str(self.undone))
        if self.batches_unseen:
            lines.append(
                f"{count_of(self.batches_unseen, 'batch', 'batches')} of changes came after this "
                f"ledger, and none in place has them. If another ledger has, back that one up."
            )
        if self.receipts_impossible:
            lines.append(
                f"No receipt can be issued for {count_of(self.receipts_impossible, 'open request')}"
                f": the key is gone. First keep the issued ones: rescind backup."
            )
        lines.append("Everybody signs in again: sessions end.")
        if self.entries_lost:
            lines.append(
                f"The log goes back by {count_of(self.entries_lost, 'entry', 'entries')}: "
                f"witnesses that saw them refuse it for good. Publish what happened."
            )
        if self.moves_from is not None:
            lines.append(
                f"This ledger is older than {self.moves_from}, which the service moves from. To "
                f"lose nothing, answer no, back up again (rescind backup), and restore that."
            )
        return "\n".join(lines)


def plan(state: Path, backup: Path | None, keys_mirror: Path | None, database: str | None) -> Plan:
    """Find out what going back would drop. Nothing is changed; the service must not run."""
    with ExitStack() as stack:
        mirror, needed, replaced = stack.enter_context(_held(state, backup, keys_mirror, database))
        keys = stack.enter_context(_keys(state, mirror, needed, reading=True))
        source = stack.enter_context(_source(state, backup, database))
        _check_source(keys, source, state, backup, mirror, needed)
        named = tables.named_slots(source)
        loans, lost = open_boxes(keys, source)
        without_key = _without_key(keys, source)
        entries = len(source.execute(select(tables.leaf.c.n)).all())
        with in_place(state, replaced) as here:
            batch = last_batch_if_any(source)
            batch_here = 0 if here is None else last_batch_if_any(here)
            undone = None
            if here is not None and (backup is not None or replaced != database):
                undone = RestoreDiff.between(here, source, without_key)
        return Plan(
            entries=entries,
            entries_lost=max(0, keys.head.size - entries),
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


def restore(
    state: Path,
    backup: Path | None,
    keys_mirror: Path | None = None,
    database: str | None = None,
) -> None:
    """Put a backup in place (None: accept the ledger in place). The next start drops the rest.

    Killed before its end, the next start refuses the ledger: repeat the command.
    """
    with _held(state, backup, keys_mirror, database) as (mirror, needed, _):
        with (  # before anything is written
            _keys(state, mirror, needed, reading=True) as found,
            _source(state, backup, database) as source,
        ):
            _check_source(found, source, state, backup, mirror, needed)
        with _keys(state, mirror, needed) as keys:
            if backup is not None:
                _put_in_place(keys, state, backup, database)
            _go_back(keys, state, mirror, database)


def _check_source(
    keys: KeySlots,
    source: Connection,
    state: Path,
    backup: Path | None,
    mirror: Path | None,
    needed: set[int] | None,
) -> None:
    """Refuse a ledger of other keys, and copies of keys that nothing tells apart."""
    refuse_foreign(keys, source, str(backup or "what is in place"))
    if needed is None:
        _check_copies_agree(state, mirror, tables.named_slots(source))


def _without_key(keys: KeySlots, source: Connection) -> set[str]:
    """Return the open requests of a ledger that wait for a receipt whose key is gone."""
    table = tables.request
    waiting = select(table.c.id, table.c.receipt_slot).where(
        table.c.status.in_(OPEN), table.c.receipt_key.is_not(None)
    )
    known = keys.ids  # None is not among them: an earlier start has seen that the key is gone
    return {row.id for row in source.execute(waiting) if row.receipt_slot not in known}


def _go_back(keys: KeySlots, state: Path, mirror: Path | None, database: str | None) -> None:
    with closing(Store(state, database)) as store:
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


def _put_in_place(keys: KeySlots, state: Path, backup: Path, database: str | None) -> None:
    """Replace the ledger. It says whose it is from the beginning: a repeat must know it."""
    if database is None:
        part = state / f".{FILE}.part"
        for left in state.glob(part.name + "*"):
            left.unlink()
        with one_file(backup) as source, new_file(part) as copy:
            copy_rows(source, copy)
            note_owner(copy, keys)
        for old in ("-wal", "-shm"):  # of the ledger that is replaced
            (state / (FILE + old)).unlink(missing_ok=True)
        os.replace(part, state / FILE)
        sync_folder(state)
        return
    with closing(Store(state, database)) as store:
        connection = store.writer()
        migrate(connection)
        with one_file(backup) as source, connection.begin():
            for table in reversed(tables.metadata.sorted_tables):
                connection.execute(delete(table))
            copy_rows(source, connection)
            note_owner(connection, keys)


@contextmanager
def _held(
    state: Path, backup: Path | None, mirror: Path | None, database: str | None
) -> Iterator[tuple[Path | None, set[int] | None, str | None]]:
    """Hold the state, so that no service runs on it meanwhile.

    Gives the mirror of its keys, the ids of keys that the ledger in place needs (None: it cannot
    tell), and where that ledger is.
    """
    (check_there if backup is None else check_not_elsewhere)(state, database)
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
        replaced = _place_of_replaced(state, mirror, database)
        yield mirror, _named_in_place(state, mirror, replaced), replaced


@contextmanager
def _keys(
    state: Path, mirror: Path | None, needed: set[int] | None, reading: bool = False
) -> Iterator[KeySlots]:
    with closing(KeySlots(state / KEYS, mirror, reading=reading, needed=needed or ())) as keys:
        yield keys


@contextmanager
def _source(state: Path, backup: Path | None, database: str | None) -> Iterator[Connection]:
    with one_file(backup) if backup else reading_any(state, database) as connection:
        yield connection


@contextmanager
def in_place(state: Path, database: str | None) -> Iterator[Connection | None]:
    """Read the ledger in place; None if there is none that can be read."""
    with ExitStack() as stack:
        here = None
        if database is not None or (state / FILE).is_file():
            with suppress(DBAPIError):
                found = stack.enter_context(reading_any(state, database))
                found.execute(select(tables.leaf.c.n).limit(1)).all()
                here = found
        yield here


def _place_of_replaced(state: Path, mirror: Path | None, database: str | None) -> str | None:
    """Return where the ledger is that another one replaces, as `database` says it.

    That is the place it goes to. But if a service moves into a database, it is still in the folder:
    no note says that it is elsewhere, and it is the one that these keys were last used with.
    """
    if database is None or (state / NOTE).exists():
        return database
    head = joined_copies(state, mirror)[1].head
    for place in (database, None):
        with in_place(state, place) as here:
            if here is not None and _fits(here, head):
                return place
    return database


def _fits(connection: Connection, head: Head) -> bool:
    """Whether a ledger is as new as its keys, and theirs."""
    if last_batch_if_any(connection) < head.batch:
        return False
    if not head.size:
        return True
    rows = connection.scalars(select(tables.leaf.c.hash).order_by(tables.leaf.c.n).limit(head.size))
    return Tree(b"".join(map(bytes, rows))).root() == head.root


def _named_in_place(state: Path, mirror: Path | None, database: str | None) -> set[int] | None:
    """Return the ids of the keys that the ledger in place needs; None if it cannot tell.

    Nobody can read it then, or it is older than the keys.
    """
    newest = joined_copies(state, mirror)[1].head.batch
    with in_place(state, database) as here:
        if here is None or last_batch_if_any(here) < newest:
            return None
        return tables.named_slots(here) - gone_of(here)


def _check_copies_agree(state: Path, mirror: Path | None, named: Collection[int]) -> None:
    """Refuse an older copy with keys that the newest has not, if no ledger in place tells why.

    To write over it would be final. named: ids that the ledger names which is gone back to
    """
    found, all_of = joined_copies(state, mirror)
    there, newest = keys_in(all_of.data).keys(), [*found][all_of.newest]
    for path, data in found.items():
        if more := len((keys_in(data).keys() & {*named}) - there):
            raise CannotStart(
                f"{path} is an older copy of the keys, and has {count_of(more, 'key')} that "
                f"{newest} has not: destroyed since, or lost. Nothing was done. If {newest} is "
                f"whole: mv {quote(str(path))} {quote(f'{path}.old')}, and repeat with "
                f"--keys-mirror. If it is damaged, put the older one in its place: what was taken "
                f"back since opens again."
            )
