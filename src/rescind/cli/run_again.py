"""What `rescind run` says of runs that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rescind.experiments.recipe import Cell

_RESUME = "To resume, give the same command with --resume."
_CHECKPOINT = ("The last checkpoint is kept.", _RESUME)
_MODELS = ("Models that are trained are kept.", _RESUME)
_NOTHING = ("No checkpoint was written yet:", "the same command begins again at round 1.")
_ROUNDS = "checkpoints/round-*.safetensors"
_IN_A_STREAM = ("checkpoints/block-*/rounds/round-*.safetensors", "checkpoints/block-*[1-9]*/*")
"""Rounds inside a block, and starts of blocks; that of block 0 is written before any round."""
_FINISHED = ("learned/*/run.json", "retrains/*.safetensors", "retrains/*/round-*.safetensors")


def tell_finished(cells: Sequence[Cell], folders: Sequence[Path]) -> None:
    """Say how many runs are there already, and that they are trained again."""
    from rescind.errors import DataError
    from rescind.storage.run_folder import has_model, read_facts

    there = 0
    for cell, folder in zip(cells, folders, strict=True):
        with suppress(DataError):  # a damaged one is told later
            done = read_facts(folder)
            there += bool(done and same(done, cell) and (cell.forget or has_model(folder)))
    if there:
        count = f"{there} of {len(cells)} runs are" if len(cells) > 1 else "this run is"
        typer.echo(f"{count} finished and trained again; --resume skips what is finished", err=True)


def data_changed(done: dict[str, Any], cell: Cell) -> str:
    """Say so if rows of the data were erased or added after a run was finished."""
    from rescind.core.home import ledger_file
    from rescind.data.importing import imported_folder

    name = cell.data.name
    files = [ledger_file(), *(imported_folder() / name).glob("*")]
    last = max((path.stat().st_mtime for path in files if path.is_file()), default=0.0)
    if last <= datetime.fromisoformat(done["date"]).timestamp() + 1:  # its seconds are whole
        return ""
    return f", and rows of '{name}' were erased or added since: run without --resume to learn them"


def tell_replaced(folder: Path, cell: Cell, title: str) -> None:
    """Say that a finished run of other settings or code is replaced, and how to keep both."""
    from rescind.errors import DataError
    from rescind.storage.run_folder import read_facts

    with suppress(DataError):  # a damaged one is no run that could be kept
        done = read_facts(folder)
        if done and not same(done, cell):
            what = "settings" if not _same_settings(done, cell) else "code"
            typer.echo(
                f"{title}: this replaces a finished run of other {what} in {folder}. "
                f"To keep both, stop it and give --out.",
                err=True,
            )


def kept(folder: Path) -> tuple[str, str]:
    """Say what a stopped run left in its folder to go on from, and how to go on."""
    return _CHECKPOINT if _any(folder, _ROUNDS, *_IN_A_STREAM) else _NOTHING


def kept_of_trials(home: Path) -> tuple[str, str]:
    """Say the same of a stopped trial, from what the trials of a recipe share."""
    if _any(home, f"learned/*/{_ROUNDS}"):
        return _CHECKPOINT
    return _MODELS if _any(home, *_FINISHED) else _NOTHING


def _any(folder: Path, *patterns: str) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def same(done: dict[str, Any], cell: Cell) -> bool:
    """Return whether a finished run is of this cell, and of the same text of an own method."""
    made = done.get("versions", {})
    same = all(_same_text(made.get(name, ""), code) for name, code in cell.code.items())
    return same and _same_settings(done, cell)


def _same_settings(done: dict[str, Any], cell: Cell) -> bool:
    return (done.get("digest"), done.get("seed")) == (cell.digest, cell.run.seed)


def _same_text(one: str, other: str) -> bool:
    """Return whether two files, given by name and digest, have one text. The name may change."""
    return one.rpartition(" ")[2] == other.rpartition(" ")[2]
