"""When a ledger is gone back to: which one it replaces, and which keys an older copy may give.

An older copy has keys that were destroyed since. Only a ledger in place that is as new as the keys
tells them from keys that the newest copy has lost.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from shlex import quote

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from rescind.core.words import count_of
from rescind.ledger import tables
from rescind.ledger.belonging import in_place
from rescind.ledger.errors import CannotStart
from rescind.ledger.keycopies import Joined, joined
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import Head, contents, keys_in
from rescind.ledger.lost_keys import gone_of
from rescind.ledger.place import NOTE
from rescind.ledger.store import last_batch_if_any
from rescind.proof.tlog import Tree


def place_of_replaced(state: Path, mirror: Path | None, database: str | None) -> str | None:
    """Return where the ledger is that another one replaces, as `database` says it.

    That is the place it goes to. But if a service moves into a database, it is still in the folder:
    no note says that it is elsewhere, and it is the one that these keys were last used with.
    """
    if database is None or (state / NOTE).exists():
        return database
    head = _copies(state, mirror)[1].head
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


def named_in_place(state: Path, mirror: Path | None, database: str | None) -> set[int] | None:
    """Return the ids of the keys that the ledger in place needs. database: `place_of_replaced`

    None if it cannot tell: nobody can read it, or it is older than the keys.
    """
    newest = _copies(state, mirror)[1].head.batch
    with in_place(state, database) as here:
        if here is None or last_batch_if_any(here) < newest:
            return None
        with suppress(DBAPIError):  # of an earlier version: it has other columns
            return tables.named_slots(here) - gone_of(here)
    return None


def check_copies_agree(state: Path, mirror: Path | None, named: Collection[int]) -> None:
    """Refuse an older copy with keys that the newest has not, if no ledger in place tells why.

    To write over it would be final. named: ids that the ledger names which is gone back to
    """
    found, all_of = _copies(state, mirror)
    paths, there = [*found], keys_in(all_of.data).keys()
    newest = paths[all_of.newest]
    for path, data in found.items():
        if more := len((keys_in(data).keys() & {*named}) - there):
            raise CannotStart(
                f"{path} is an older copy of the keys, and has {count_of(more, 'key')} of this "
                f"ledger that {newest} has not. Either they were destroyed since, because people "
                f"took back what they open, or {newest} is damaged: no ledger in place tells. "
                f"Nothing was done. If {newest} is whole: {_away(path)}, then repeat the command "
                f"with --keys-mirror {quote(str(path))}. If it is damaged: {_away(newest)} && cp "
                f"{quote(str(path))} {quote(str(newest))}, then repeat; what was taken back since "
                f"the copy was made opens again, and has to be taken back again."
            )


def _copies(state: Path, mirror: Path | None) -> tuple[dict[Path, bytes], Joined]:
    """Return what each file of keys holds, and what they hold together."""
    found = {path: contents(path) for path in (state / KEYS, mirror) if path is not None}
    return found, joined([*found], [*found.values()])


def _away(path: Path) -> str:
    return f"mv {quote(str(path))} {quote(str(path) + '.old')}"
