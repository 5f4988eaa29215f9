"""Loops compile also where no folder can be written to; a service keeps them in its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="compiled forms need numba")
from numba.core import caching, config

from rescind.core.fast import kept_code

SOURCE = Path(kept_code.__file__).parents[2]


def added(a: int, b: int) -> int:
    return a + b


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a folder that is named can be written to, and none is."""
    only = [caching.UserProvidedCacheLocator]
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", only)
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")


@pytest.mark.usefixtures("nowhere")
def test_without_a_folder_a_loop_is_compiled_for_this_process() -> None:
    with pytest.raises(RuntimeError, match=kept_code.NOWHERE):
        kept_code.numba.njit(added, cache=True)  # control: numba itself refuses
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        assert kept_code.njit(added)(2, 3) == 5
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        assert kept_code.njit(nogil=True)(added)(2, 3) == 5


@pytest.mark.usefixtures("nowhere")
def test_a_service_keeps_its_code_in_its_folder(tmp_path: Path) -> None:
    kept_code.keep_in(tmp_path / "compiled")
    assert kept_code.njit(added)(2, 3) == 5
    assert list((tmp_path / "compiled").rglob("*.nbc"))
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "compiled"), "for its workers"


def test_a_folder_that_numba_finds_is_used(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "named"))
    kept_code.keep_in(tmp_path / "compiled")
    assert kept_code.njit(added)(2, 3) == 5
    assert list((tmp_path / "named").rglob("*.nbc"))
    assert not (tmp_path / "compiled").exists()


def test_every_loop_is_compiled_this_way() -> None:
    direct = re.compile(r"from numba import .*\bn?jit\b|cache=True")
    found = [
        str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if direct.search(p.read_text())
    ]
    assert found == ["core/fast/kept_code.py"]
