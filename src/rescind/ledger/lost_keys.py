"""Keys that are not where they were: a ledger is not opened without them unless that is meant.

A start with new keys drops every loan and ends every account, for good, and the right keys cannot
bring them back afterwards. So a disk that is not mounted, or a mirror that was not named, must not
look like keys that are lost. Where the mirror is, a note in the folder says (`keys-mirror.txt`).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from sqlalchemy import Connection

from rescind.core.files import write_atomically
from rescind.ledger.errors import CannotStart
from rescind.ledger.keyslots import FILE as KEYS
from rescind.ledger.keyslots import Head, head_of, ids_in
from rescind.ledger.tables import named_slots

NOTE = "keys-mirror.txt"


def check_keys(state: Path, mirror: Path | None, connection: Connection, accepted: bool) -> None:
    """Refuse a ledger with boxes if no file of keys has ever been used with it.

    Keys that were used once and open nothing are another matter: `rescind restore` has asked.
    accepted: the operator says that the keys are lost
    """
    files = [path for path in (state / KEYS, mirror) if path is not None]
    if accepted or any(head_of(path) != Head() for path in files):
        return
    with connection.begin():
        named = named_slots(connection)
    if named and not any(named & ids_in(path) for path in files):
        raise CannotStart(
            f"{_missing(files)}, and this ledger has {len(named):,} boxes that only its keys open. "
            f"Nothing was done. {put_back(state, mirror)} Only if the keys are lost for good: "
            f"rescind serve --accept-lost-keys drops every loan and ends every account."
        )


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
        given = shlex.quote(str(noted))
        return f"The mirror of these keys is {given}: give --keys-mirror {given}."
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


def mirror_left_out(state: Path, mirror: Path | None) -> str | None:
    """Return what to tell if a start does not write the mirror of before."""
    noted = noted_mirror(state)
    if mirror is not None or noted is None:
        return None
    return (
        f"note: the mirror {noted} is not written by this start, so keys that are destroyed now "
        f"stay there. Give --keys-mirror {shlex.quote(str(noted))}; if you gave the mirror up, "
        f"delete it and {state / NOTE}."
    )
