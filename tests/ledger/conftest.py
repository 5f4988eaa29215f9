"""Databases that tests of the ledger run on: SQLite, and PostgreSQL where it is asked for.

Every test gets a schema of its own (`helpers/databases.py` says how the server is found).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databases import POSTGRES, schema


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
    with schema() as url:
        yield url
