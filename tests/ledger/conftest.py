"""Databases that tests of the ledger run on: SQLite, and PostgreSQL where it is asked for.

`RESCIND_TEST_POSTGRES=1` uses a server on this machine; `RESCIND_TEST_POSTGRES_URL` says which
(default `postgresql://postgres@127.0.0.1/postgres`). Every test gets a schema of its own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, make_url, text

POSTGRES = os.environ.get("RESCIND_TEST_POSTGRES") == "1"
SERVER = os.environ.get("RESCIND_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1/postgres")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """None for SQLite, or the URL of an empty schema in PostgreSQL."""
    if request.param == "sqlite":
        yield None
    else:
        yield from empty_schema()


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of an empty schema in PostgreSQL."""
    yield from empty_schema()


def empty_schema() -> Iterator[str]:
    """Make a schema, yield its URL, and drop it."""
    if not POSTGRES:
        pytest.skip("PostgreSQL is tried with RESCIND_TEST_POSTGRES=1")
    name = f"test_{uuid.uuid4().hex}"
    url = make_url(SERVER).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    yield url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()
