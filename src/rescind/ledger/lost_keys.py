"""Keys that are not where they were: a ledger is not opened without them unless that is meant.

A start with new keys drops every loan and ends every account, for good, and the right keys cannot
bring them back afterwards. So a disk that is not mounted, or a mirror that was not named, must not
look like keys that are lost. Where the mirror is, a note in the folder says (`keys-mirror.txt`).
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, delete, insert, inspect, select

from rescind.core.files import write_atomically
from rescind.ledger.errors import CannotStart, OlderLedger
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import Head, head_of, identity_in, ids_in
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.store import last_batch_if_any
from rescind.ledger.tables import named_slots, setting

NOTE = "keys-mirror.txt"
OWNER = "keys"
"""The setting that says which keys are a ledger's own."""


def check_owner(state: Path, mirror: Path | None, connection: Connection) -> None:
    """Refuse keys of another service than the ledger's. Nothing may be written before it.

    Keys that no ledger has used yet are another matter (`check_keys`): nobody misses them.
    """
    _, newest = _files(state, mirror)
    if not (head_of(newest).size or ids_in(newest)):
        return
    with connection.begin():
        owner = owner_of(connection) if inspect(connection).has_table(setting.name) else None
    if owner in (None, identity_in(newest)):
        return
    raise OlderLedger(
        f"the keys in {newest} are those of another service than this ledger, and a start would "
        f"destroy them, so nothing was done. If the keys are the wrong ones, move them away, then "
        f"put back the right ones. {put_back(state, mirror)} If the ledger is the wrong one, give "
        f"--database if its own is in PostgreSQL, or put its own back (rescind restore)."
    )


def check_keys(state: Path, mirror: Path | None, connection: Connection, accepted: bool) -> None:
    """Refuse a ledger with boxes that no file of keys opens: none is there, or only an old copy.

    Keys that have seen the whole ledger and do not open a box are another matter: they were
    destroyed, and `rescind restore` has asked. accepted: the operator says that keys are lost
    """
    files, newest = _files(state, mirror)
    with connection.begin():
        there = ids_in(newest)
        if accepted or head_of(newest).batch >= last_batch_if_any(connection):
            return
        named = named_slots(connection)
    missing = named - there
    if not missing:
        return  # killed before the head was written
    found = _missing(files)
    if head_of(newest) != Head():
        found = f"{newest} is an old copy of the keys: the ledger went on without it"
    raise CannotStart(
        f"{found}, and this ledger has {len(missing):,} boxes that only its keys open. "
        f"Nothing was done. {put_back(state, mirror)} Only if the keys are lost for good: "
        f"rescind serve --accept-lost-keys drops every loan and ends every account that they "
        f"open."
    )


def _files(state: Path, mirror: Path | None) -> tuple[list[Path], Path]:
    """Return the files of keys, and the one that was used last."""
    files = [path for path in (state / KEYS, mirror) if path is not None]
    return files, max(files, key=lambda path: head_of(path).batch)


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
    if noted is not None and noted != mirror:
        return f"Mount their disk or that of their mirror, {noted}, or put the file back."
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
