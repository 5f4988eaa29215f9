"""Real data is found through RESCIND_DATA; where it is missing, tests say so and are skipped."""

import os
from pathlib import Path

import numpy as np
import pytest

from rescind.data import Dataset


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Each test has an empty cache of its own."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data_folder():
    """The folder of RESCIND_DATA, or a skip."""
    folder = os.environ.get("RESCIND_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("RESCIND_DATA is not set to a folder with datasets")
    return Path(folder)


@pytest.fixture
def offline(monkeypatch):
    """No RESCIND_DATA, no publisher and no pip: only what the test itself provides."""
    from rescind.data import obtain

    monkeypatch.delenv("RESCIND_DATA", raising=False)

    def refuse(url, path, say):
        raise obtain.DataError(f"publisher {url}: no network in this test")

    monkeypatch.setattr(obtain, "_download", refuse)
    monkeypatch.setattr(obtain.sys, "executable", "/no/such/python")


@pytest.fixture
def rows():
    """Make a small dataset from (user, item, time) rows."""

    def make(*triples, name="tiny"):
        user, item, time = (np.asarray(column) for column in zip(*triples, strict=True))
        return Dataset(
            name=name,
            user=user,
            item=item,
            rating=None,
            time=time,
            users=np.asarray([f"u{n}" for n in range(user.max() + 1)]),
            items=np.asarray([f"i{n}" for n in range(item.max() + 1)]),
        )

    return make
