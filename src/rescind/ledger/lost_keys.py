"""Keys that are not where they were: a ledger is not opened without them unless that is meant.

A start with new keys drops every loan and ends every account, for good, and the right keys cannot
bring them back afterwards. So a disk that is not mounted, a mirror that was not named or a file
that was cut must not look like keys that are lost. Where the mirror is, a note in the folder says
(`keys-mirror.txt`).

A key is durable before the ledger names it, and destroyed when the ledger names it no more. So
however the service was killed, every key that the ledger names is there. Only `rescind restore` may
put a ledger in place that names destroyed keys: it asks, and notes which.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, delete, insert, inspect, select

from rescind.core.files import write_atomically
from rescind.core.words import count_of
from rescind.ledger.errors import CannotStart, OlderLedger
from rescind.ledger.keycopies import Joined, joined
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import (
    LOG_KEY,
    RESERVED,
    SIGNER,
    SLOT,
    Head,
    contents,
    identity,
    keys_in,
    secret_of,
    torn_in,
)
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.store import last_batch_if_any
from rescind.ledger.tables import named_slots, setting

NOTE = "keys-mirror.txt"
OWNER = "keys"
"""The setting that says which keys are a ledger's own."""
GONE = "keys gone"
"""The setting that holds, from a restore to the next start, the ids of keys that were destroyed."""


def check_owner(state: Path, mirror: Path | None, connection: Connection) -> None:
    """Refuse keys of another service than the ledger's. Nothing may be written before it.

    Keys that no ledger has used yet are another matter (`check_keys`): nobody misses them.
    """
    files, found = _joined(state, mirror)
    newest = files[found.newest]
    if not (found.head.size or _boxes(found)):
        return
    with connection.begin():
        owner = owner_of(connection) if inspect(connection).has_table(setting.name) else None
    if owner in (None, identity(secret_of(found.data))):
        return
    raise OlderLedger(
        f"the keys in {newest} are those of another service than this ledger, and a start would "
        f"destroy them, so nothing was done. If the keys are the wrong ones, move them away, then "
        f"put back the right ones. {put_back(state, mirror)} If the ledger is the wrong one, give "
        f"--database if its own is in PostgreSQL, or put its own back (rescind restore)."
    )


def check_keys(
    state: Path, mirror: Path | None, connection: Connection, accepted: bool
) -> set[int]:
    """Refuse a ledger that names keys which no copy has; return the ids of those that it names.

    Nothing is written. accepted: the operator says that keys are lost
    """
    with connection.begin():
        named, gone = named_slots(connection), gone_of(connection)
        batch, owner = last_batch_if_any(connection), owner_of(connection)
    files, found = _joined(state, mirror, named)
    there = keys_in(found.data).keys()
    secret = secret_of(found.data)
    own = {SIGNER, LOG_KEY} if secret is not None else set()
    missing = (named | own) - there - gone
    if accepted or not missing:
        return named
    its_own = found.head != Head() or (secret is not None and identity(secret) == owner)
    what = _what_is_wrong(files, found, batch) if its_own else _missing(files)
    raise CannotStart(
        f"{what}, so {count_of(len(missing), 'key')} of this ledger cannot be found. "
        f"Nothing was done. {put_back(state, mirror)} Only if the keys are lost for good: "
        f"rescind serve --accept-lost-keys drops every loan and ends every account that they "
        f"open."
    )


def _what_is_wrong(files: list[Path], found: Joined, batch: int) -> str:
    """Say of keys that lack some whether they are damaged or only old, and where we looked."""
    newest = files[found.newest]
    data = contents(newest)
    if len(data) % SLOT:
        text = f"{newest} is damaged: it was cut or added to ({len(data):,} bytes)"
    elif torn := torn_in(data):
        text = f"{newest} is damaged: {count_of(torn, 'slot')} of it hold no key that is whole"
    elif found.head.batch >= batch:
        text = f"{newest} is damaged: it saw the last change, and keys are gone from it"
    else:
        text = f"{newest} is an old copy of the keys, or parts of it were overwritten with zeros"
    others = [str(path) for path in files if path != newest and path.exists()]
    return f"{text}; {others[0]} does not have them either" if others else text


def _joined(
    state: Path, mirror: Path | None, needed: Collection[int] = ()
) -> tuple[list[Path], Joined]:
    """Return the files of keys, and what they hold together."""
    files = [path for path in (state / KEYS, mirror) if path is not None]
    return files, joined(files, [contents(path) for path in files], needed)


def _boxes(found: Joined) -> bool:
    return any(slot_id >= RESERVED for slot_id in keys_in(found.data))


def note_gone(connection: Connection, keys: KeySlots) -> None:
    """Note which keys of a ledger that was put in place are destroyed: a start drops their boxes.

    Others that are missing then were lost since.
    """
    forget_gone(connection)
    gone = sorted(named_slots(connection) - keys.ids)
    connection.execute(insert(setting).values(name=GONE, value=json.dumps(gone)))


def forget_gone(connection: Connection) -> None:
    """Forget which keys were destroyed: nothing names them any more."""
    connection.execute(delete(setting).where(setting.c.name == GONE))


def gone_of(connection: Connection) -> set[int]:
    """Return the ids of destroyed keys that a ledger names since a restore."""
    text = connection.scalar(select(setting.c.value).where(setting.c.name == GONE))
    return set(json.loads(text or "[]"))


def owner_of(connection: Connection) -> str | None:
    """Return whose keys a ledger says are its own (`keyfile.identity`); None: it does not say."""
    return connection.scalar(select(setting.c.value).where(setting.c.name == OWNER))


def note_owner(connection: Connection, keys: KeySlots) -> None:
    """Write into a ledger that these keys are its own."""
    if owner_of(connection) != keys.identity:
        connection.execute(delete(setting).where(setting.c.name == OWNER))
        connection.execute(insert(setting).values(name=OWNER, value=keys.identity))


def check_not_missing(state: Path, mirror: Path | None) -> None:
    """Refuse to go back to a backup without keys: it would open nothing, and make new ones."""
    files = [path for path in (state / KEYS, mirror) if path is not None]
    if not any(path.exists() for path in files):
        raise CannotStart(
            f"{_missing(files)}, and without its keys nothing of a ledger opens. Nothing was done. "
            f"{put_back(state, mirror)}"
        )


def put_back(state: Path, mirror: Path | None) -> str:
    """Return how to get the keys back."""
    noted = noted_mirror(state)
    if noted is not None and (mirror is None or noted != mirror.absolute()):
        return f"Mount their disk or that of their mirror, {noted}, or put the file back."
    if mirror is not None:
        return f"Mount their disk, or put a whole copy in the place of {state / KEYS} or {mirror}."
    return "Mount their disk or put the file back; with a mirror, give --keys-mirror FILE."


def _missing(files: list[Path]) -> str:
    names = " and ".join(str(path) for path in files)
    there = any(path.exists() for path in files)
    return f"the keys in {names} are not those of this ledger" if there else f"there is no {names}"


def remember_mirror(state: Path, mirror: Path | None) -> None:
    """Note in the folder where the second copy of its keys is."""
    if mirror is not None and noted_mirror(state) != mirror.absolute():
        write_atomically(state / NOTE, f"{mirror.absolute()}\n".encode(), private=True)


def noted_mirror(state: Path) -> Path | None:
    """Return where the second copy of the keys is, if the folder says so."""
    note = state / NOTE
    return Path(note.read_text().strip()) if note.exists() else None


def mirror_of(state: Path, given: Path | None) -> Path | None:
    """Return the second copy of the keys: the one that is named, or that of before if it is there.

    Whoever forgets to name it must not get a mirror that falls behind.
    """
    noted = noted_mirror(state)
    return noted if given is None and noted is not None and noted.exists() else given


def mirror_missing(state: Path, mirror: Path | None) -> str | None:
    """Return what to tell if the mirror of before is not there, and no other was named."""
    noted = noted_mirror(state)
    if mirror is not None or noted is None:
        return None
    return (
        f"the mirror {noted} is not there, so the keys have one copy only. Mount its disk and "
        f"start again; if you gave the mirror up, delete {state / NOTE}."
    )
