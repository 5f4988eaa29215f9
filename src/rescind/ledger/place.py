"""Where the ledger of a state folder is: in the folder, or in PostgreSQL.

A ledger in PostgreSQL leaves a note in the folder, `database.txt`. Without it a command that is not
told of PostgreSQL would make an empty ledger beside the keys, and say that nothing is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from rescind.core.files import write_atomically
from rescind.errors import ConfigError
from rescind.ledger.keyfile import FILE as KEYS

FILE = "ledger.db"
NOTE = "database.txt"
_SECRET = ("password", "sslpassword")
"""Parts of a URL's query that libpq takes for secrets."""


def url_of(state: Path, database: str | None) -> URL:
    if database is None:
        return URL.create("sqlite", database=str(state / FILE))
    how = "Give --database postgresql://user@host/name, or leave it out for SQLite."
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):  # it is not repeated: it may have a password in it
        raise ConfigError(f"--database is no address that can be read. {how}") from None
    if url.drivername == "postgres":  # libpq knows both names
        url = url.set(drivername="postgresql")
    if url.get_backend_name() != "postgresql":
        raise ConfigError(f"'{url.drivername}' is not a database for a ledger. {how}")
    return url.set(drivername="postgresql+psycopg")


def shown(database: str) -> str:
    """Return the URL of a database as it may be printed and kept: passwords are hidden."""
    url = url_of(Path(), database).set(drivername="postgresql")
    hidden = {name: "hidden" for name in _SECRET if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def remember(state: Path, database: str | None) -> None:
    """Note in the folder that its ledger is in PostgreSQL, never with a password."""
    if database is None:
        return
    text = shown(database) + "\n"
    note = state / NOTE
    if not note.exists() or note.read_text() != text:
        write_atomically(note, text.encode(), private=True)


def check_not_elsewhere(state: Path, database: str | None) -> None:
    """Refuse to look for the ledger in the folder if it is in PostgreSQL."""
    note = state / NOTE
    if database is None and note.exists():
        raise ConfigError(
            f"the ledger of {state} is in PostgreSQL, not in the folder. Give "
            f"--database '{note.read_text().strip()}'. To move it: docs/ledger.md."
        )


@contextmanager
def compared_with_note(state: Path, database: str | None) -> Iterator[None]:
    """Tell first, of a ledger that does not fit, that the folder's note names another database.

    A difference alone is no error: a database moves, and the note follows it.
    """
    try:
        yield
    except ConfigError as error:
        note = state / NOTE
        noted = note.read_text().strip() if note.exists() else None
        if noted is None and (state / FILE).is_file():
            noted = f"the folder ({FILE}; docs/ledger.md says how it moves)"
        if database is None or noted in (None, shown(database)):
            raise
        raise type(error)(
            f"the ledger of {state} is in {noted}, and you gave {shown(database)}, which does not "
            f"fit: {error}"
        ) from None


def check_there(state: Path, database: str | None) -> None:
    """Refuse a folder that holds no ledger, or whose ledger is in PostgreSQL."""
    check_not_elsewhere(state, database)
    if database is None and not (state / FILE).is_file():
        raise ConfigError(
            f"{state} holds no ledger ({FILE}). Name the folder of a service, or give --database."
        )


def check_may_begin(state: Path, database: str | None) -> None:
    """Refuse an empty ledger beside keys: they belong to one that is somewhere else, or lost.

    Also refuse one above another service, or in a run: the folder was mistyped.
    """
    check_not_elsewhere(state, database)
    if not (state / KEYS).exists() and not (state / FILE).exists():
        _check_nobody_elses(state)
    elif database is None and not (state / FILE).exists():
        raise ConfigError(
            f"{state} has {KEYS} and no {FILE}. Give --database, go back to a backup (rescind "
            f"restore), or begin anew in a new folder."
        )


def _check_nobody_elses(state: Path) -> None:
    """Refuse to begin in a folder that is of something else."""
    holding = {path.parent for name in (FILE, NOTE) for path in state.glob(f"*/{name}")}
    # Keys alone may be this service's own: a copy on a disk that is mounted in its folder.
    if inside := sorted(path for path in holding if (path / KEYS).is_file()):
        raise ConfigError(f"{state} holds no service, but {inside[0]} does. Give that, or another.")
    if (state / "run.json").exists():
        raise ConfigError(f"{state} is the folder of a run. Name another folder with --state.")
