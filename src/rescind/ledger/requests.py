"""Open requests of a state folder, for the command line: read beside a running service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.exc import DBAPIError

from rescind.core.files import in_use
from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.agency import Extend
from rescind.ledger.book import Ledger
from rescind.ledger.parts import now
from rescind.ledger.place import check_there
from rescind.ledger.reading import OPEN
from rescind.ledger.store import reading

BY_URL = "Give --url ADDRESS, where it is served, with a token in RESCIND_TOKEN"


@contextmanager
def opened_alone(state: Path, database: str | None, instead: str = BY_URL) -> Iterator[Ledger]:
    """Open a ledger to change it beside no service; where one uses it, say what to do instead."""
    check_there(state, database)
    if in_use(state):
        raise ConfigError(
            f"{state} is served now, and only the service may change it. {instead}, use "
            f"the operator's page, or stop the service first."
        )
    ledger = Ledger.open(state, database=database)
    try:
        yield ledger
    finally:
        ledger.close()


def open_requests(state: Path, database: str | None) -> tuple[list[Row], datetime]:
    """Return the requests that are not ended, by deadline, and the time."""
    table = tables.request
    query = select(table).where(table.c.status.in_(OPEN)).order_by(table.c.expected_by)
    return _read(state, database, query), now()


def tokens(state: Path, database: str | None) -> list[Row]:
    """Return the tokens and invitations that have not ended, the oldest first."""
    table = tables.token
    query = select(table).where(table.c.expires > now()).order_by(table.c.at)
    return _read(state, database, query)


def _read(state: Path, database: str | None, query: Any) -> list[Row]:
    try:
        with reading(state, database) as connection:
            return list(connection.execute(query).all())
    except DBAPIError as error:
        raise ConfigError(f"cannot read the ledger: {error.orig}. Check the address.") from None


def extend(
    state: Path, database: str | None, request: str, days: int, reason: str
) -> Mapping[str, Any]:
    """Extend a deadline in a folder that no service uses; return what a service answers."""
    with opened_alone(state, database) as ledger:
        told: Mapping[str, Any] = ledger.submit(Extend(request, days, reason)).result().body
        return told
