"""A service, Chromium, and a browser of its own for each person."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browsing import Town, Visitor, chromium, town
from rescind.service import recovery

POSTGRES = os.environ.get("RESCIND_TEST_POSTGRES") == "1"
SERVER = os.environ.get("RESCIND_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1/postgres")


@pytest.fixture(scope="session")
def chrome() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    path = chromium()
    if path is None:
        pytest.skip("there is no chromium here: install it, or name it in RESCIND_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def place(request: Any, tmp_path_factory: Any) -> Iterator[Town]:
    """The service, on each database."""
    patch = pytest.MonkeyPatch()
    patch.setattr(recovery, "MEMORY_KIB", 64)
    with patch.context():
        state: Path = tmp_path_factory.mktemp("town") / "state"
        if request.param == "sqlite":
            with town(state) as one:
                yield one
            return
        if not POSTGRES:
            pytest.skip("PostgreSQL is tried with RESCIND_TEST_POSTGRES=1")
        with schema() as address, town(state, database=address) as one:
            yield one


@contextmanager
def schema() -> Iterator[str]:
    """Make an empty schema in PostgreSQL, and drop it after."""
    from sqlalchemy import create_engine, make_url, text

    name = f"test_{secrets.token_hex(8)}"
    address = make_url(SERVER).set(drivername="postgresql+psycopg")
    engine = create_engine(address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    try:
        mine = address.update_query_dict({"options": f"-csearch_path={name}"})
        yield mine.render_as_string(False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
        engine.dispose()


@pytest.fixture
def visit(chrome: Any, place: Town) -> Iterator[Callable[..., Visitor]]:
    """Return a maker of visitors; afterwards nothing may have gone wrong in any of them."""
    visitors: list[Visitor] = []

    def make(**given: Any) -> Visitor:
        context = chrome.new_context(**{"locale": "en-GB", **given})
        context.set_default_timeout(30_000)
        visitors.append(Visitor(place, context))
        return visitors[-1]

    yield make
    for one in visitors:
        one.context.close()
    assert [what for one in visitors for what in one.wrong] == []
