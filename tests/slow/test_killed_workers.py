"""Workers of an engine are killed while a log is summed; the sum stays the same, bit for bit."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import rescind as rs
from rescind.estimators import log_ledger, logs

pytestmark = pytest.mark.slow
distributed = pytest.importorskip(
    "distributed", reason="needs Dask: python install.py '.[dask]'", exc_type=ImportError
)


class Deadly(Executor):
    """Kills a worker after some of the tasks were handed to Dask."""

    def __init__(self, client, after):
        self.client, self.inner, self.after = client, client.get_executor(), set(after)
        self.tasks, self.killed = 0, []

    def submit(self, work, /, *given, **named):
        made = self.inner.submit(work, *given, **named)
        self.tasks += 1
        if self.tasks in self.after:
            alive = set(self.client.run(os.getpid, on_error="ignore").values())
            os.kill(victim := min(alive - set(self.killed)), signal.SIGKILL)
            self.killed.append(victim)
        return made


@pytest.fixture
def client():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(host="127.0.0.1", **options) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


def test_killed_workers_change_nothing(tmp_path, monkeypatch, client):
    monkeypatch.setattr(logs, "ROWS", 20_000)
    monkeypatch.setattr(log_ledger, "PARTITION", 20_000)
    draw, count = np.random.default_rng(0), 400_000  # noqa: TID251
    table = pyarrow.table(
        {"user": draw.integers(0, 20_000, count), "item": draw.integers(0, 500, count)}
    )
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet", row_group_size=10_000)
    engine = Deadly(client, after=(8, 20, 30))  # 20 pieces, then 20 parts
    model = rs.Gram().fit(tmp_path, engine=engine)
    assert model.digest() == rs.Gram().fit(table).digest()
    assert (engine.tasks, len(set(engine.killed))) == (40, 3)
    assert not set(engine.killed) & set(client.run(os.getpid).values())
