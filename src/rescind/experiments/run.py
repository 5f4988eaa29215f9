"""Run one cell of a recipe of any kind."""

from __future__ import annotations

from pathlib import Path

from rescind.experiments import learning_run, stream_run, unlearning_run
from rescind.experiments.cell import Cell
from rescind.experiments.learning_run import Result
from rescind.experiments.unlearning_run import TrialCache
from rescind.forgetting.parallel import one_thread


def run_one(cell: Cell, folder: Path, cache: TrialCache, resume: bool = True) -> Result:
    """Run a cell: a trial of an unlearner, a stream of blocks, or plain training.

    In one thread: more threads would add in another order, and the last bits would depend on the
    number of cores.
    """
    with one_thread():
        if cell.forget is not None:
            return unlearning_run.run_cell(cell, folder, cache)
        runner = stream_run if cell.data.variant else learning_run
        return runner.run_cell(cell, folder, resume, cache.watch)
