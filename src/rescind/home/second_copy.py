"""A copy of the ledger beside the keys, as of the last answer: a lost one would lose all lists."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from rescind.core.files import sync_folder, write_atomically
from rescind.errors import DataError

log = logging.getLogger(__name__)


def of(ledger: Path) -> Path:
    """Return where the copy of a ledger is."""
    return ledger.parent / "keys" / "ledger-copy.db"


def put_back(ledger: Path) -> None:
    """Put the copy in the place of a ledger that was lost: who left must stay away."""
    if of(ledger).is_file() and not ledger.is_file():
        log.warning("%s was lost; its copy beside the keys is used", ledger)
        write_atomically(ledger, of(ledger).read_bytes(), private=True)


def check_older(ledger: Path, database: sqlite3.Connection) -> None:
    """Raise if the copy knows of later answers: without them, people would be learnt again."""
    copy, newest = of(ledger), "SELECT coalesce(max(answered), '') FROM request"
    if not copy.is_file():
        return
    with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as other:
        if other.execute(newest).fetchone() > database.execute(newest).fetchone():
            raise DataError(
                f"{ledger} is older than its last answer. Its copy is complete: cp {copy} {ledger}"
            )


def keep(ledger: Path, database: sqlite3.Connection) -> None:
    """Copy the ledger as it stands."""
    place = of(ledger)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    write_atomically(fresh, b"", private=True)
    database.execute("VACUUM INTO ?", (str(fresh),))
    os.replace(fresh, place)
    sync_folder(place.parent)
