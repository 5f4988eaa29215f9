"""Flower's database: when many silos write at the same time, each write waits."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.supercore import sql_mixin
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from rescind.flower.superlink import BUSY_SECONDS, raise_busy_timeout

pytestmark = pytest.mark.flower


def busy_seconds(folder: Path) -> float:
    folder.mkdir()
    store = SqlObjectStore(str(folder / "state.db"))
    store.initialize()
    ((row,),) = (list(row.values()) for row in store.query("PRAGMA busy_timeout"))
    return float(row) / 1000


def test_a_write_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pragmas = vars(sql_mixin)["SQLITE_PRAGMAS"]
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", pragmas)  # restored after the test
    assert busy_seconds(tmp_path / "flower") < 60  # the control: Flower's own timeout
    raise_busy_timeout()
    assert busy_seconds(tmp_path / "ours") == BUSY_SECONDS
