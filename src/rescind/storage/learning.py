"""Replace the model in the folder of a run, in an order that survives a kill at any moment.

    1. RUN/.learning/model         the new model; the one before still answers
    2. RUN/.learning/learnt.json   from now on the new model counts
    3. RUN                         gets both

Needs no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescind.core.files import in_use, locked, make_folder, sync_folder, write_atomically
from rescind.errors import DataError
from rescind.storage.run_folder import FOR_WORKERS, LEARNING, SCRATCH

REPORT = "report.html"
LEARNT = "learnt.json"
"""The facts of a new model, written when it is complete: they become run.json."""


def settle(run: Path) -> None:
    """Give a new model that is complete its place; remove what killed commands left."""
    if (run / LEARNING / LEARNT).is_file():
        with locked(run):
            _put_in_place(run)
    left = [run / SCRATCH, *run.glob(f"audits/{FOR_WORKERS}*")]
    if any(path.is_dir() for path in left) and not in_use(run):
        for path in left:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def learning_in(run: Path) -> Iterator[None]:
    """Hold the folder of a run that is trained, or trained anew."""
    try:
        make_folder(run)
    except OSError as error:
        why = f"cannot make the folder {run}: {error.strerror}"
        raise DataError(f"{why}. Choose another with --out.") from None
    settle(run)
    with locked(run):
        yield


def begin_learning(run: Path) -> Path:
    """Return the folder for a new model of this run. Until it is complete, nothing changes."""
    shutil.rmtree(run / LEARNING, ignore_errors=True)
    make_folder(run / LEARNING)
    return run / LEARNING / "model"


def finish_learning(run: Path, facts: dict[str, Any]) -> None:
    """Replace the model here by the new one, which is saved."""
    write_atomically(run / LEARNING / LEARNT, json.dumps(facts, indent=2).encode())
    _put_in_place(run)


def _put_in_place(run: Path) -> None:
    """Give a complete new model its place. Killed at any moment, it can be done again."""
    new = run / LEARNING
    if (new / "model").is_dir():
        (run / "run.json").unlink(missing_ok=True)  # so that it is never beside another's model
        shutil.rmtree(run / "model", ignore_errors=True)
        os.replace(new / "model", run / "model")
        sync_folder(run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    (run / REPORT).unlink(missing_ok=True)  # it is about the model before
    os.replace(new / LEARNT, run / "run.json")
    sync_folder(run)
    shutil.rmtree(new)


def clear_made_with(run: Path) -> None:
    """Delete what was made with the records of a run, but for its model and its facts.

    Receipts stay, and finished runs that somebody put below this one: they are answered by
    themselves.
    """
    for path in run.iterdir():
        if path.is_dir() and path.name != "model" and not path.is_symlink():
            _clear(path)
        elif path.is_file() and not path.name.startswith(("run.json", "receipt")):
            path.unlink()


def _clear(folder: Path) -> None:
    if (folder / "run.json").is_file() and (folder / "model").is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _clear(path)
        elif not path.name.startswith("receipt"):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
