"""Tables of a new ledger without its migrations: made once, then written down in each new file.

Hundreds of tests begin with an empty ledger, and Alembic takes most of that beginning. That the
migrations give these tables is what the first call of each process does, and `test_data_map` tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from sqlalchemy import Connection, create_engine

from rescind.ledger import start
from rescind.ledger.migrate import migrate

_WRITTEN = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"


@cache
def _statements() -> tuple[str, ...]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        migrate(connection)
        made = [text for (text,) in connection.exec_driver_sql(_WRITTEN)]
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    engine.dispose()
    return (*made, f"INSERT INTO alembic_version VALUES ('{version}')")


def _written_down(connection: Connection) -> None:
    """Do what `migrate` does to a database."""
    empty = connection.dialect.name == "sqlite"
    with connection.begin():
        empty = empty and connection.exec_driver_sql(_WRITTEN).first() is None
        for statement in _statements() if empty else ():
            connection.exec_driver_sql(statement)
    if not empty:
        migrate(connection)


@contextmanager
def written_down() -> Iterator[None]:
    """Let new ledgers begin fast while the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "migrate", _written_down)
        yield
