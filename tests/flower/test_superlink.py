"""Flower's state on disk: many silos write at once, and wait for their turn."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.supercore import sql_mixin
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from rescind.flower.superlink import PATIENCE, SETTINGS, be_patient

pytestmark = pytest.mark.flower


def seconds_it_waits(folder: Path) -> float:
    folder.mkdir()
    store = SqlObjectStore(str(folder / "state.db"))
    store.initialize()
    ((row,),) = (list(row.values()) for row in store.query("PRAGMA busy_timeout"))
    return float(row) / 1000


def test_a_write_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_mixin, SETTINGS, vars(sql_mixin)[SETTINGS])  # put back afterwards
    assert seconds_it_waits(tmp_path / "flower") < 60  # the control: Flower's own patience
    be_patient()
    assert seconds_it_waits(tmp_path / "ours") == PATIENCE
