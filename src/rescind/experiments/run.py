"""Run one cell of a recipe, whatever it asks for."""

from __future__ import annotations

from pathlib import Path

from rescind.experiments import learning_run as experiment
from rescind.experiments import stream_run as stream_cell
from rescind.experiments import unlearning_run as trials
from rescind.experiments.cell import Cell
from rescind.experiments.learning_run import Result


def run_one(cell: Cell, folder: Path, room: trials.TrialCache, again: bool = True) -> Result:
    """Run a cell of any kind: a trial of an unlearner, a stream of blocks, or rounds."""
    if cell.forget is not None:
        return trials.run_cell(cell, folder, room)
    if cell.data.variant:
        return stream_cell.run_cell(cell, folder, again, room.watch)
    return experiment.run_cell(cell, folder, again, room.watch)
