"""What a start must finish before anything is served, in this order.

lock, compare keys and mirror, compare ledger and keys, migrate, open keys, destroy keys without a
box, open boxes, add up the sum, compare digests, check the log. Releases and requests come after it
(`ledger.releasing`, `ledger.fulfilment`).

A release is never made because of a start: whoever can crash the service could otherwise look at
models of few changes. One that an operator asked for before is made (`release_steps`).
"""

from __future__ import annotations

import ctypes
import json
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, inspect, select, update

from rescind.core.files import locked, make_folder, sync_folder
from rescind.core.words import count_of, people_of
from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.batch import Items
from rescind.ledger.catalogue import FILE as CATALOGUE
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.errors import CannotStart, OlderLedger
from rescind.ledger.kept_part import LOANS, drop_kept_parts, open_kept_parts
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import Head, check_files, head_of
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lending import LEFT, forget_person
from rescind.ledger.migrate import migrate
from rescind.ledger.options import Options
from rescind.ledger.ownership import (
    check_keys,
    check_owner,
    forget_gone,
    mirror_of,
    note_owner,
    remember_mirror,
)
from rescind.ledger.parts import Parts
from rescind.ledger.place import compared_with_note, remember
from rescind.ledger.store import Store, last_batch, last_batch_if_any
from rescind.proof.tlog import Tree

ITEMS = "catalogue"
_NOT_DUMPABLE = 4  # PR_SET_DUMPABLE of prctl


@dataclass(frozen=True)
class Report:
    """What a start found and did."""

    people: int
    loans: int
    keys_destroyed: int
    """Keys without a box: this completes erasures that a crash interrupted."""
    torn: int
    people_dropped: int
    loans_dropped: int
    accounts_dropped: int
    """Accounts whose key is gone: they left after this ledger was copied, or the keys are lost."""
    keys_were_missing: bool
    keys_copied: bool = False
    kept_parts_dropped: int = 0
    """People whose browser helps with what it keeps, and whose part has no key any more."""
    keys_mended: Mapping[Path, int] = field(default_factory=dict)
    """Copies of the keys that were damaged or old, and how many keys the other one gave them."""

    def __str__(self) -> str:
        return f"{count_of(self.loans, 'loan')} of {people_of(self.people)} opened.{self.notes}"

    @property
    def notes(self) -> str:
        """What else there is to tell; each sentence after a space."""
        text = ""
        if self.keys_copied or self.keys_were_missing:
            how = "it was copied from the mirror" if self.keys_copied else "new keys were made"
            text += f" keys.bin was not there: {how}."
        for path, count in self.keys_mended.items():
            text += f" {path} was damaged or old: it got {count_of(count, 'key')} from its copy."
        if self.people_dropped or self.accounts_dropped:
            text += (
                f" {count_of(self.loans_dropped, 'loan')} of {people_of(self.people_dropped)} "
                f"cannot be opened and were dropped; {count_of(self.accounts_dropped, 'account')} "
                f"ended. They can join and lend again."
            )
        if self.kept_parts_dropped:
            text += f" {self.kept_parts_dropped:,} kept parts cannot be opened and were dropped."
        if self.keys_destroyed or self.torn:
            text += f" {self.keys_destroyed + self.torn:,} keys without a box destroyed."
        return text


def prepared(
    state: Path,
    *,
    catalogue: Catalogue | None,
    database: str | None,
    options: Options,
    keys_mirror: Path | None,
    live: Callable[[int], Any],
    clock: Callable[[], datetime],
    entropy: Callable[[int], bytes],
) -> tuple[Parts, Report, int, int]:
    """Do all this; return the parts of a ledger, a report, and the last seq and batch."""
    forbid_dumps()
    with _folder_of(state), ExitStack() as undo:
        undo.enter_context(locked(state))
        keys_mirror = mirror_of(state, keys_mirror)
        check_files(state / KEYS, keys_mirror)
        store = Store(state, database)
        undo.callback(store.close)
        undo.enter_context(store.faults_told())
        connection = store.writer()
        with compared_with_note(state, database):  # before anything is written into it
            check_owner(state, keys_mirror, connection)
            tree = read_tree(connection)
            head = head_of(state / KEYS)
            if head == Head() and keys_mirror is not None:
                head = head_of(keys_mirror)
            check_fits(head, connection, tree)
        migrate(connection)
        needed = check_keys(state, keys_mirror, connection, options.accept_lost_keys)
        _sync_names(state, store)
        keys = KeySlots(state / KEYS, keys_mirror, needed=needed)
        undo.callback(keys.close)
        with compared_with_note(state, database):
            items, sums = _catalogue(state, catalogue, connection, live)
        remember(state, database)  # it is the ledger of these keys
        remember_mirror(state, keys_mirror)
        with connection.begin():
            note_owner(connection, keys)
        parts = Parts(state, items, options, keys, store, tree, sums, clock, entropy)
        report = _recover(parts)
        _check_log(connection, tree)
        with connection.begin():
            seq = connection.scalar(select(func.coalesce(func.max(tables.event.c.seq), 0)))
            batch = last_batch(connection)
        parts.resources = undo.pop_all()
    return parts, report, int(seq or 0), batch


@contextmanager
def _folder_of(state: Path) -> Iterator[None]:
    """Make the state folder; take it away again if the start is refused and left nothing in it."""
    new = [path for path in (state, *state.parents) if not path.is_dir()]
    make_folder(state)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something is in it
            for path in new:
                path.rmdir()
        raise


def _sync_names(state: Path, store: Store) -> None:
    """Make the name of the write-ahead log durable: SQLite ignores it if that fails."""
    if not store.sqlite:
        return
    with store.writer().begin():
        store.writer().exec_driver_sql("PRAGMA user_version=1")  # any write makes the file
    sync_folder(state)


def forbid_dumps() -> None:
    """Let no core dump write the memory of this process, which holds everybody's loans."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_NOT_DUMPABLE, 0, 0, 0, 0)


def swap_in_use() -> bool:
    """Return whether this machine may write memory to a disk: the operator is warned then."""
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    except OSError:
        return False


def sweep(keys: KeySlots, connection: Connection) -> int:
    """Destroy keys without a box, which completes erasures that were interrupted."""
    left = keys.without_box(tables.named_slots(connection))
    for slot_id in left:
        keys.destroy(slot_id)
    keys.sync()
    return len(left)


def read_tree(connection: Connection) -> Tree:
    """Read the log, empty where there are no tables; raise `CannotStart` if a leaf is missing."""
    with connection.begin():
        if not inspect(connection).has_table(tables.leaf.name):
            return Tree()
        rows = connection.execute(select(tables.leaf.c.n, tables.leaf.c.hash).order_by("n")).all()
    if rows and rows[-1].n != len(rows) - 1:
        raise CannotStart(
            f"the log has {len(rows)} leaves, and the last is number {rows[-1].n}: some are gone. "
            f"Restore a whole ledger: rescind restore."
        )
    return Tree(b"".join(bytes(row.hash) for row in rows))


def check_fits(head: Head, connection: Connection, tree: Tree) -> None:
    """Refuse a ledger that is older than its keys, or another one: a sweep would destroy keys."""
    with connection.begin():
        batch = last_batch_if_any(connection)
    same = len(tree) >= head.size and (not head.size or tree.root(head.size) == head.root)
    if batch >= head.batch and same:
        return
    raise OlderLedger(
        f"this ledger is older than its keys, or another one: it has {len(tree)} entries and "
        f"{batch} batches, the keys {head.size} and {head.batch}. A start would destroy keys, so "
        f"nothing was done. Give --database, put the right one back, or see rescind restore."
    )


def open_boxes(keys: KeySlots, connection: Connection) -> tuple[dict[bytes, Items], list[Any]]:
    """Return the loans of everybody, and the rows of people whose box or account has no key."""
    loans: dict[bytes, Items] = {}
    lost = []
    table = tables.person
    for row in connection.execute(select(table).where(table.c.state != LEFT).order_by("id")):
        person = bytes(row.id)
        try:
            if row.account_key is not None:
                keys.get(row.account_key)
            if row.box is not None:
                loans[person] = LOANS.items(LOANS.opened(keys, row))
        except DataError:
            loans.pop(person, None)
            lost.append(row)
    return loans, lost


def drop(keys: KeySlots, connection: Connection, lost: list[Any]) -> int:
    """Drop loans that have no key, and accounts that have none; return how many accounts ended."""
    ended, table = 0, tables.person
    for row in lost:
        gone = row.account_key not in keys.ids
        ended += gone
        if gone:
            forget_person(connection, bytes(row.id))
        else:
            connection.execute(
                update(table)
                .where(table.c.id == row.id)
                .values(loans_key=None, box=None, lent=0, version=row.version + 1)
            )
    return ended


def note_dropped(connection: Connection, people: int, now: datetime) -> None:
    """Write down that parts of so many people left the sum, because they have no key."""
    seq = connection.scalar(select(func.coalesce(func.max(tables.event.c.seq), 0))) or 0
    row = {"seq": seq + 1, "at": now, "person": None, "kind": "dropped", "n": people, "leaf": None}
    connection.execute(insert(tables.event).values(row))
    bump(connection)


def bump(connection: Connection) -> None:
    tables.keep_setting(connection, "batch", str(last_batch(connection) + 1))


def _recover(parts: Parts) -> Report:
    keys, connection = parts.keys, parts.store.writer()
    with connection.begin():
        batch = last_batch(connection)
        loans, lost = open_boxes(keys, connection)
        lent_lost = sum(row.lent for row in lost)
        lenders_lost = sum(row.box is not None for row in lost)
        ended = drop(keys, connection, lost)
        kept, unopened = open_kept_parts(keys, connection)
        drop_kept_parts(connection, unopened)
        if lost or unopened:
            people = {*unopened, *(bytes(row.id) for row in lost)}
            note_dropped(connection, len(people), parts.clock())
        _forget_lost_keys(keys, connection)
        forget_gone(connection)
    destroyed = 0
    with connection.begin():
        if parts.options.sweep:
            destroyed = sweep(keys, connection)
            _date_erased(connection, parts.clock())
    parts.live.load({**loans, **kept})
    if not lost and not unopened:
        _compare_digest(parts, batch)
    return Report(
        people=len(loans),
        loans=sum(map(len, loans.values())),
        keys_destroyed=destroyed,
        torn=keys.torn,
        people_dropped=lenders_lost,
        loans_dropped=lent_lost,
        accounts_dropped=ended,
        keys_were_missing=keys.fresh and bool(batch),
        keys_copied=keys.copied,
        kept_parts_dropped=len(unopened),
        keys_mended=keys.lacked,
    )


def _forget_lost_keys(keys: KeySlots, connection: Connection) -> None:
    """Delete recorded answers, keys of receipts and the like whose key is gone for good."""
    known = keys.ids
    for column in tables.slot_columns():
        if column.table is tables.person:
            continue
        found = set(connection.scalars(select(column).where(column.is_not(None)).distinct()))
        gone = sorted(found - known)
        if not gone:
            continue
        if column.nullable:
            connection.execute(
                update(column.table).where(column.in_(gone)).values({column.name: None})
            )
        else:
            connection.execute(delete(column.table).where(column.in_(gone)))


def _date_erased(connection: Connection, now: datetime) -> None:
    """Date erasures that a crash interrupted: they are complete now, with the sweep."""
    table = tables.request
    connection.execute(
        update(table)
        .where(table.c.hidden_at.is_not(None), table.c.erased_at.is_(None))
        .values(erased_at=now, summed_at=now, level=tables.at_least_erased())
    )


def _compare_digest(parts: Parts, batch: int) -> None:
    """Refuse to go on if the sum differs from the one of the last clean stop."""
    with parts.store.writer().begin():
        clean = json.loads(tables.setting_of(parts.store.writer(), "clean") or "{}")
    if clean.get("batch") != batch:
        return
    found = parts.live.digest(clean.get("items"))  # more may have been added by this start
    if clean["digest"] != found:
        raise CannotStart(
            f"the sum over the ledger is {found}, but was {clean['digest']} at the last stop. "
            f"Something changed the ledger. Restore one: rescind restore."
        )


def _check_log(connection: Connection, tree: Tree) -> None:
    """Refuse a log that does not begin as its last checkpoint says."""
    table = tables.checkpoint
    with connection.begin():
        last = connection.execute(select(table).order_by(table.c.size.desc()).limit(1)).first()
    if last is None:
        return
    if last.size > len(tree) or tree.root(last.size) != bytes(last.root):
        raise CannotStart(
            f"the log does not fit its own checkpoint of {last.size} entries: it was changed. "
            f"Restore a whole ledger: rescind restore."
        )


def _catalogue(
    state: Path, given: Catalogue | None, connection: Connection, live: Callable[[int], Any]
) -> tuple[Catalogue, Any]:
    """Return the catalogue of this state, kept at the first start, and an empty sum over it.

    Later ones may only be longer.

    The ledger has it, too, and so every backup: a folder that was lost gets it from there. If one
    of the two is behind (an older backup, a kill between two writes), the longer one counts.
    """
    with connection.begin():
        kept = tables.setting_of(connection, ITEMS)
        here = Catalogue.load(state) if (state / CATALOGUE).exists() else None
        before = Catalogue.of_text(kept) if kept else None
        found = given or max(filter(None, (here, before)), key=len, default=None)
        if found is None:
            raise ConfigError(
                f"{state} has no catalogue. Give the items that people may lend (--items FILE), or "
                f"repeat the import that was interrupted (--import NAME --codes FILE)."
            )
        sums = live(len(found))  # before anything is kept: there may be too many items
        if before is None:
            for name, value in (("batch", "0"), ("clean", "{}")):
                tables.keep_setting(connection, name, value)
        elif not found.begins_with(before):
            raise ConfigError(
                f"these {len(found)} items do not begin with the ones this state has, in their "
                f"order. Add new items at the end."
            )
        if kept != found.text:
            tables.keep_setting(connection, ITEMS, found.text)
    if here is None or here.text != found.text:
        found.save(state)
    return found, sums
