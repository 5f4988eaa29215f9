"""Whether keys and ledger are of one service, and whether the keys are all there.

A start destroys every key that its ledger does not name, and with new keys it drops every loan and
ends every account, for good. So keys meet no ledger but their own, and a disk that is not mounted,
a mirror that was not named or a file that was cut must not look like keys that are lost. Where the
mirror is, a note in the folder says (`keys-mirror.txt`).

A key is durable before the ledger names it, and destroyed when the ledger names it no more. So
however the service was killed, every key that the ledger names is there. Only `rescind restore` may
put a ledger in place that names destroyed keys: it asks, and notes which.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, delete, inspect

from rescind.core.files import write_atomically
from rescind.core.words import count_of
from rescind.errors import ConfigError
from rescind.ledger.errors import CannotStart, OlderLedger
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyfile import (
    LOG_KEY,
    RESERVED,
    SIGNER,
    Joined,
    contents,
    identity,
    joined,
    keys_in,
    secret_of,
)
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.tables import keep_setting, named_slots, setting, setting_of

NOTE = "keys-mirror.txt"
OWNER = "keys"
"""The setting that says which keys are a ledger's own."""
GONE = "keys gone"
"""The setting that holds, from a restore to the next start, the ids of keys that were destroyed."""


def check_owner(state: Path, mirror: Path | None, connection: Connection) -> None:
    """Refuse keys of another service than the ledger's. Nothing may be written before it.

    Keys that no ledger has used yet are another matter (`check_keys`): nobody misses them.
    """
    found = joined_copies(state, mirror)[1]
    if not (found.head.size or any(slot_id >= RESERVED for slot_id in keys_in(found.data))):
        return
    with connection.begin():
        owner = owner_of(connection)
    if owner not in (None, identity(secret_of(found.data))):
        raise OlderLedger(
            f"the keys in {state} are those of another service than this ledger, and a start would "
            f"destroy them, so nothing was done. {put_back(state, mirror)} If the ledger is the "
            f"wrong one, give --database, or put its own back (rescind restore)."
        )


def check_keys(
    state: Path, mirror: Path | None, connection: Connection, accepted: bool
) -> set[int]:
    """Refuse a ledger that names keys which no copy has; return the ids of those that it names.

    Nothing is written. accepted: the operator says that keys are lost
    """
    with connection.begin():
        named, gone = named_slots(connection), gone_of(connection)
    found = joined_copies(state, mirror, named)[1]
    own = {SIGNER, LOG_KEY} if secret_of(found.data) is not None else set()
    missing = (named | own) - keys_in(found.data).keys() - gone
    if missing and not accepted:
        raise CannotStart(
            f"{count_of(len(missing), 'key')} of this ledger cannot be found: the keys in {state} "
            f"are missing, damaged or an old copy. Nothing was done. {put_back(state, mirror)} "
            f"Only if they are lost for good: rescind serve --accept-lost-keys drops every loan "
            f"and ends every account that they open."
        )
    return named


def joined_copies(
    state: Path, mirror: Path | None, needed: Collection[int] = ()
) -> tuple[dict[Path, bytes], Joined]:
    found = {path: contents(path) for path in (state / KEYS, mirror) if path is not None}
    return found, joined([*found], [*found.values()], needed)


def note_gone(connection: Connection, keys: KeySlots) -> None:
    """Note which keys of a ledger that was put in place are destroyed: a start drops their boxes.

    Others that are missing then were lost since.
    """
    keep_setting(connection, GONE, json.dumps(sorted(named_slots(connection) - keys.ids)))


def forget_gone(connection: Connection) -> None:
    """Forget which keys were destroyed: nothing names them any more."""
    connection.execute(delete(setting).where(setting.c.name == GONE))


def gone_of(connection: Connection) -> set[int]:
    return set(json.loads(setting_of(connection, GONE) or "[]"))


def owner_of(connection: Connection) -> str | None:
    """Return whose keys are a ledger's own (`keyfile.identity`); None: no start has said so."""
    there = inspect(connection).has_table(setting.name)
    return setting_of(connection, OWNER) if there else None


def note_owner(connection: Connection, keys: KeySlots) -> None:
    assert keys.identity is not None
    keep_setting(connection, OWNER, keys.identity)


def refuse_foreign(keys: KeySlots, source: Connection, what: str) -> None:
    """Go back to no ledger of another service, or an empty one: all keys would be destroyed."""
    if keys.identity is None or owner_of(source) != keys.identity:
        raise ConfigError(
            f"{what} is not a ledger of these keys, or they are damaged, and putting it in place "
            f"would destroy them. Nothing was changed. Give the right backup (--from), --database "
            f"or --keys-mirror; docs/ledger.md says what to do if the keys are lost."
        )


def check_not_missing(state: Path, mirror: Path | None) -> None:
    """Refuse to go back to a backup without keys: it would open nothing, and make new ones."""
    if not any(path.exists() for path in (state / KEYS, mirror) if path is not None):
        raise CannotStart(
            f"there is no {state / KEYS}, and without its keys nothing of a ledger opens. Nothing "
            f"was done. {put_back(state, mirror)}"
        )


def put_back(state: Path, mirror: Path | None) -> str:
    second = mirror or noted_mirror(state)
    other = f"that of their mirror, {second}" if second else "name their mirror (--keys-mirror)"
    return f"Mount the disk of the keys or {other}, or put a whole copy in its place."


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
