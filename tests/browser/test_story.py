"""The whole story of a person, in a browser: 0 lost or phantom changes, 0 errors on the console."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_join_and_import(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 1, 2, 3, 59)
    page.screenshot(path="/tmp/shot1.png", full_page=True)
