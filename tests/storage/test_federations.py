"""Saved federations: unknown settings, and folders that hold none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rescind import methods
from rescind.core import params
from rescind.core.federation import Federation
from rescind.errors import DataError, RescindError
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.run_folder import model_in
from worlds import tiny_holdings


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the facts of the server's file, digest included, as another version wrote them."""
    path = folder / "server.safetensors"
    tensors, notes = params.load(path)
    facts = json.loads(notes["facts"])
    change(facts)
    params.save(path, tensors, {"facts": json.dumps(facts)})


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    save_federation(Federation.start(tiny_holdings(), methods.Gram()).run(1), tmp_path)
    rewritten(tmp_path, lambda facts: facts["method"].update(nonsense=1))
    with pytest.raises(RescindError, match="nonsense"):
        load_federation(tmp_path)


def test_a_folder_of_runs_is_answered_with_the_runs_inside_it(tmp_path: Path) -> None:
    run = tmp_path / "music" / "seed-0"
    save_federation(Federation.start(tiny_holdings(), methods.Gram()).run(1), run / "model")
    (run / "run.json").write_text("{}")
    with pytest.raises(DataError, match=r"Finished runs inside it: .*seed-0") as refused:
        model_in(tmp_path / "music")
    assert str(run) in str(refused.value)
    assert model_in(run) == run / "model"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="Give the folder of a finished run"):
        model_in(tmp_path / "empty")
