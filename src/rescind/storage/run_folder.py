"""The folder of a run: its model, and what is known of it. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from rescind.core import files
from rescind.errors import DataError

HEAD = "server.safetensors"
"""The file of a saved federation that names all others."""
SCRATCH = ".scratch"
"""Holds what a command needs while it works; swept by the next command."""
LEARNING = ".learning"
"""In a run that is trained: its new model, until it is complete. The earlier one stands so long."""
FOR_WORKERS = "rescind-audit-"
"""Prefix of folders with a federation and a request for the workers of an audit."""


def name_above(file: Path) -> str:
    """Return the name of the folder a file is in, also of ../file; '' for the working directory."""
    if file.parent.name != "..":
        return file.parent.name
    folder = file.parent.resolve()  # "sub/.." may be elsewhere, if sub is a link
    return "" if folder == Path.cwd() else folder.name


def has_model(run: Path) -> bool:
    """Return whether a run still has its model."""
    return (run / "model").is_dir()


@contextmanager
def working_on(run: Path) -> Iterator[Path]:
    """Hold the lock of a run and yield a private folder in it for temporary files."""
    with files.locked(run):
        scratch = run / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir(mode=0o700)
        except OSError as error:
            why = error.strerror or error
            raise DataError(f"cannot write in {run}: {why}. Allow it, or copy the run.") from None
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def check_finished(run: Path) -> None:
    """Raise if a folder has no finished run, with a hint where one is."""
    if (run / "run.json").is_file() and has_model(run):
        return
    give = "Give the folder that `rescind run` names after 'Written', or runs/demo."
    if not run.exists():
        raise DataError(f"there is no folder {run}. {_elsewhere(run) or give}")
    check_free(run)  # a run that is still learning is not finished either
    _check_not_interrupted(run)
    raise DataError(f"{run} holds no finished run. {_inside(run) or give}")


def _check_not_interrupted(run: Path) -> None:
    if (run / LEARNING).is_dir():
        raise DataError(
            f"{run} holds no finished run: learning here was interrupted. Give its `rescind run` "
            f"again, with --resume, then this command."
        )


def check_free(run: Path) -> None:
    """Raise if another command works in a folder."""
    if run.is_dir():
        with files.locked(run):
            pass


def _elsewhere(run: Path) -> str:
    """Return a hint to finished runs that a folder which is not there may mean; '' if none."""
    beside = run.parent if run.parent.name and run.parent.is_dir() else Path("runs")
    # Of a folder elsewhere its neighbours alone: what is above it may be a whole disk.
    found = _finished_in(beside, "*" if run.is_absolute() or ".." in run.parts else "**")
    by_likeness = sorted(found, key=lambda one: (-_likeness(one, run), one))
    return f"Finished runs in {beside}: {_first_few(by_likeness)}." if by_likeness else ""


def _first_few(names: Sequence[str], few: int = 3) -> str:
    more = f" and {len(names) - few:,} more" if len(names) > few else ""
    return ", ".join(names[:few]) + more


def _likeness(one: str, run: Path) -> float:
    return SequenceMatcher(None, one.lower(), str(run).lower()).ratio()


def _inside(run: Path) -> str:
    """Return a hint to runs further down; '' if there are none."""
    inside = sorted(_finished_in(run))
    return f"Finished runs inside it: {_first_few(inside)}." if inside else ""


def _finished_in(folder: Path, depth: str = "**") -> list[str]:
    found = (path.parent for path in folder.glob(f"{depth}/run.json") if path.parent != folder)
    return [str(one) for one in found if has_model(one)]


def model_in(run: Path) -> Path:
    """Return where a federation was saved: RUN/model or the folder itself; raise if in neither."""
    folder = run / "model" if (run / "model").is_dir() else run
    if not folder.exists():
        hint = _elsewhere(run) or "Give the folder of a finished run."
        raise DataError(f"there is no folder {run}. {hint}")
    if not (folder / HEAD).is_file():
        _check_not_interrupted(run)
        raise DataError(
            f"{folder} holds no saved federation ({HEAD} is missing). "
            + (_inside(run) or "Give the folder of a finished run.")
        )
    return folder


def artefact_of(run: Path) -> str:
    """Return the id by which a ledger knows a run; "" of a folder that has none, or of a copy."""
    with suppress(DataError):
        name = str((read_facts(run) or {}).get("artefact", ""))
        return name if name.endswith(place_of(run)) else ""
    return ""


def place_of(run: Path) -> str:
    """Return the end of the id of a run in this folder: whoever copies it has another run."""
    return hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()


def dataset_of(facts: dict[str, Any], artefact: str) -> str:
    """Return the name under which a ledger knows the data of a run.

    Imported data has its own. Of published data each run is answered by itself.
    """
    data = facts.get("data") or {}
    return str(data["name"]) if data.get("source") == "imported" else f"run:{artefact}"


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    files.write_atomically(folder / "run.json", json.dumps(facts, indent=2).encode())


def read_facts(folder: Path) -> dict[str, Any] | None:
    """Read run.json, or return None if the run did not finish."""
    path = folder / "run.json"
    if not path.is_file():
        return None
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}:{error.colno}: not valid JSON. Rerun.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}). Rerun.") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("configuration"), dict):
        raise DataError(f"{path} does not describe a run. Rerun.")
    return facts
