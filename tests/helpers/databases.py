"""Schemas in PostgreSQL that tests run on.

`RESCIND_TEST_POSTGRES=1` uses a server on this machine; `RESCIND_TEST_POSTGRES_URL` says which
(default `postgresql://postgres@127.0.0.1/postgres`). `RESCIND_TEST_POSTGRES_RESTART` is a command
that restarts it, for the test of a restart.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

POSTGRES = os.environ.get("RESCIND_TEST_POSTGRES") == "1"
SERVER = os.environ.get("RESCIND_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1/postgres")
RESTART = os.environ.get("RESCIND_TEST_POSTGRES_RESTART", "")
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
"""Cuts every connection but our own, as a restart does."""


def engine() -> Engine:
    """Return connections of our own to the server, closed after use: it has a hundred for all."""
    url = make_url(SERVER).set(drivername="postgresql+psycopg")
    return create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)


@contextmanager
def schema() -> Iterator[str]:
    """Make a schema, give its URL, and drop it."""
    name, own = f"test_{uuid.uuid4().hex}", engine()
    with own.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    url = make_url(SERVER).set(drivername="postgresql+psycopg")
    try:
        yield url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(False)
    finally:
        with own.connect() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
