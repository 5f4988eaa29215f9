"""Open requests of a state folder, for the command line: read beside a running service."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sqlalchemy import Row, select
from sqlalchemy.exc import DBAPIError

from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.agency import Extend
from rescind.ledger.book import Ledger
from rescind.ledger.parts import now
from rescind.ledger.reading import OPEN
from rescind.ledger.store import FILE, reading_engine


def open_requests(state: Path, database: str | None) -> tuple[list[Row], datetime]:
    """Return the requests that are not ended, by deadline, and the time."""
    if database is None and not (state / FILE).exists():
        raise ConfigError(f"{state} holds no ledger. Name its folder with --state.")
    table = tables.request
    query = select(table).where(table.c.status.in_(OPEN)).order_by(table.c.expected_by)
    engine = reading_engine(state, database)
    try:
        with engine.connect() as connection:
            return list(connection.execute(query).all()), now()
    except DBAPIError as error:
        raise ConfigError(f"cannot read the ledger: {error.orig}. Check the address.") from None
    finally:
        engine.dispose()


def extend(state: Path, database: str | None, request: str, days: int, reason: str) -> str:
    """Extend a deadline in a folder that no service uses; return the new day."""
    if database is None and not (state / FILE).exists():
        raise ConfigError(f"{state} holds no ledger. Name its folder with --state.")
    ledger = Ledger.open(state, database=database)
    try:
        due: str = ledger.submit(Extend(request, days, reason)).result().body["expected_by"]
        return due
    finally:
        ledger.close()
