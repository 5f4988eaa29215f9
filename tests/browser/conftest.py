"""A service, Chromium, and a browser of its own for each person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import Town, Visitor, chromium, town
from databases import POSTGRES, schema
from rescind.service import recovery


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
