"""The folder of a run: whether it is finished, and where it went on. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

from rescind.errors import DataError

MOVED = "moved.json"


def went_on(run: Path) -> str:
    """Where a run went on whose records were forgotten; '' for any other folder."""
    moved = run / MOVED
    if not moved.is_file():
        return ""
    return f"Its records were forgotten; it went on as {json.loads(moved.read_text())['to']}."


def check_finished(run: Path) -> None:
    """Refuse a folder without a finished run, and say where one is."""
    if (run / "run.json").is_file() and (run / "model").is_dir():
        return
    inside = sorted(str(p.parent) for p in run.glob("**/run.json") if p.parent != run)[:3]
    hint = went_on(run)
    if not hint and inside:
        hint = f"Finished runs inside it: {', '.join(inside)}."
    raise DataError(
        f"{run} holds no finished run. "
        + (hint or "Give the folder that `rescind run` names after 'Written', or runs/demo.")
    )


def model_in(run: Path) -> Path:
    """Where a run's federation was saved: RUN/model, or the folder itself; refused if nowhere."""
    folder = run / "model" if (run / "model").is_dir() else run
    if not (folder / "server.safetensors").is_file():
        hint = went_on(folder) or went_on(folder.parent)
        raise DataError(
            f"{folder} holds no saved federation (server.safetensors is missing). "
            + (hint or "Give the folder of a finished run.")
        )
    return folder
