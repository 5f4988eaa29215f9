"""Fixtures for data tests; tests with real data need RESCIND_DATA and are skipped without it."""

import os
from pathlib import Path

import numpy as np
import pytest

from rescind.data import Dataset


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give each test its own empty cache."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data_folder():
    """Return the RESCIND_DATA folder, or skip the test."""
    folder = os.environ.get("RESCIND_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("RESCIND_DATA is not set to a folder with datasets")
    return Path(folder)


@pytest.fixture
def offline(monkeypatch):
    """Disable RESCIND_DATA, the publisher and pip."""
    from rescind.data import obtain

    monkeypatch.delenv("RESCIND_DATA", raising=False)

    def refuse(url, path, say):
        raise obtain.DataError(f"publisher {url}: no network in this test")

    monkeypatch.setattr(obtain, "_download", refuse)
    monkeypatch.setattr(obtain.sys, "executable", "/no/such/python")


@pytest.fixture
def rows():
    """Return a function that makes a small dataset from (user, item, time) rows."""

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
