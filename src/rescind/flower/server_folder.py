"""The folder of `rescind flower up`, with Flower's database: nobody's request is kept there.

The configuration of a run says where its settings are, not what they are (`handed_over.py`).
Messages name who is looked up, and bring what silos send. They wait in the database, each sealed
under a key that only the SuperLink's process has, and never on a disk. What a process before this
one left is removed before the SuperLink starts.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from sqlalchemy import LargeBinary
from sqlalchemy.types import TypeDecorator

from rescind.core.files import locked
from rescind.errors import ConfigError, DataError

DATABASE = "state.db"
OWN = {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "flwr", "superexec.key"}
"""All that `up` and Flower keep in the folder."""
EMPTIED = {
    "run": "UPDATE run SET override_config = '{}'",
    "task": "UPDATE task SET details = ''",
    **{
        table: f"DELETE FROM {table}"
        for table in (
            "series_context", "object_children", "run_objects", "objects", "message_res",
            "message_ins", "task_message", "task_event", "task_logs",
        )
    },
}  # fmt: skip
"""Tables with what runs brought. Silos, and which runs there were, stay."""
_NONCE = 12


@contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """Make the folder private, remove what earlier runs left, and return the database's path.

    Raises `DataError` if another process has the folder.
    """
    database = folder / DATABASE
    _make_private(folder)
    with locked(folder):
        if database.is_file():
            empty(database)
        yield database


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if {path.name for path in folder.iterdir()} <= OWN:  # others' files may have other readers
            folder.chmod(0o700)
        for path in folder.glob(f"{DATABASE}*"):
            path.chmod(0o600)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made private ({error.strerror or error}). Start the server from "
            f"the account that owns it, or choose another folder: --state."
        ) from None


def empty(database: Path) -> None:
    """Remove the settings, messages and logs of all runs from a database that nobody uses.

    It is written anew (VACUUM): deleted rows would stay in its free pages.
    """
    try:
        with closing(sqlite3.connect(database, timeout=300.0, isolation_level=None)) as open_:
            found = open_.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for table in EMPTIED.keys() & {name for (name,) in found}:
                open_.execute(EMPTIED[table])
            open_.execute("VACUUM")
            open_.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise DataError(
            f"{database} cannot be emptied ({error}), and may have requests of earlier runs. "
            f"Remove it, or choose another folder: --state. A run is resumed from its own folder."
        ) from None


def private_files() -> None:
    """Let files that this process makes be read by their owner only."""
    os.umask(0o077)


class Sealed(TypeDecorator[bytes]):
    """A column whose content is sealed on the disk, under a key of this process.

    Nothing stays nothing: by that Flower knows that an object is not there yet. What another
    process sealed cannot be read, and is as if it were not there.
    """

    impl = LargeBinary
    cache_ok = True
    _box = ChaCha20Poly1305(ChaCha20Poly1305.generate_key())

    def process_bind_param(self, value: bytes | None, dialect: Any) -> bytes | None:
        """Return what is written."""
        if not value:
            return value
        nonce = os.urandom(_NONCE)
        return nonce + self._box.encrypt(nonce, value, None)

    def process_result_value(self, value: bytes | None, dialect: Any) -> bytes | None:
        """Return what was given to be written."""
        if not value:
            return value
        try:
            return self._box.decrypt(value[:_NONCE], value[_NONCE:], None)
        except InvalidTag:
            return None
