"""A service for each test, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doors import House, opened


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A service without limits, so that a test may call as often as it likes."""
    with opened(tmp_path / "state") as one:
        yield one
