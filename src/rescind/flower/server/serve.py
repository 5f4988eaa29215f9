"""Run a cell of a recipe over silos, with the same loop and measures as in one process."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.run_state import RoundResult
from rescind.core.words import count_of
from rescind.experiments.learning_run import Last, Meter, tidy
from rescind.experiments.recipe import Cell
from rescind.experiments.results import only_numbers
from rescind.experiments.validation import quality, stopping
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.answering import Answering, of_recipe
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.forgetting import (
    UNMEASURED,
    ForgetProgress,
    ForgetProgressFiles,
    in_the_log,
    measured,
    silos_that_refuse,
    silos_without_data,
    unlearner,
)
from rescind.flower.server.rosters import check_possible, publish_in
from rescind.flower.server.streams import train_stream
from rescind.flower.server.transport import Transport
from rescind.flower.wire.secure_aggregation import Masked
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.provenance import version_of, versions
from rescind.storage.run_folder import write_facts

log = logging.getLogger(__name__)


OnRound = Callable[[RoundResult], Any]


def serve(grid: Grid, asked: RunRequest, on_round: tuple[OnRound, ...] = ()) -> None:
    """Train, forget and measure over the silos. Writes run.json and the server's model."""
    _, cell = one_cell(asked.recipe, asked.cell, asked.changes)
    if asked.roster is not None:
        check_possible(cell, asked.masked is not None)
    folder, by = Path(asked.out), unlearner(asked, cell)
    files.make_folder(folder)
    transport = Transport(grid, asked.silos, asked.deadline)
    name = f"{cell.digest}/{cell.run.seed}/{asked.silos}"
    masked = None if asked.masked is None else Masked(asked.masked)
    executor = FlowerExecutor(transport, name, asked.least, asked.limit, asked.trim, masked=masked)
    saved = ForgetProgressFiles(folder / "forgetting", name, executor)
    with closing(Answering(folder, by, executor, saved)) as answering:
        answering.add(asked)
        progress = _model(asked, cell, answering, on_round)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # training is complete
        progress, requests = answering.answer(progress)
    fed, facts, waiting = progress.fed, progress.facts, executor.waiting(progress.fed)
    if "metrics" not in facts or (facts.get(UNMEASURED) and not waiting):
        facts = {**facts, **measured(cell, facts, fed, executor)}
        saved.write(replace(progress, facts=facts))
    facts = {**facts, "requests": requests}
    facts["silos"] = {
        "silos": asked.silos, "messages": transport.letters,
        "refused": dict(transport.refused),
        "waiting": list(waiting), "masked": asked.masked,
        "not_in_model": silos_without_data(fed, asked.silos),
        "would_refuse": silos_that_refuse(fed, by, executor),
    }  # fmt: skip
    facts["model"] = {"public": params.digest(fed.now.state.public)}
    params.save(folder / "model" / "public.safetensors", dict(fed.now.state.public))
    if asked.roster is not None:
        public = Path(asked.roster)
        facts["roster"] = publish_in(public, fed, Path(asked.log) if asked.log else None)
    write_facts(folder, facts)
    tidy(folder)
    log.info("written: %s/run.json, metrics %s", folder, facts["metrics"]["test"])


def _model(
    asked: RunRequest, cell: Cell, answering: Answering, on_round: tuple[OnRound, ...]
) -> ForgetProgress:
    """Return the model that forgets: that of the run's folder, or else a new one.

    A request to a finished run goes on from it; without one, the run is trained anew.
    """
    executor, saved, folder = answering.executor, answering.saved, answering.folder
    log.info("waiting for %d silos", asked.silos)
    progress = saved.found() if asked.resume or asked.requests else None
    if progress is not None:
        executor.meet(asked.wait)
        log.info("resumed after training; %s", count_of(len(answering.todo), "request"))
        return progress
    answering.check_done()
    saved.clear()
    if asked.requests:
        executor.meet(asked.wait)
        answering.check_known()
    fed, facts = learn(asked, cell, executor, folder, (in_the_log, *on_round))
    progress = ForgetProgress(fed, facts, of_recipe(cell, fed, executor))
    saved.write(progress)
    return progress


def learn(
    asked: RunRequest,
    cell: Cell,
    executor: FlowerExecutor,
    folder: Path,
    on_round: tuple[OnRound, ...],
) -> tuple[Federation, dict[str, Any]]:
    """Train a cell, or a stream of blocks. Return the federation and the facts for run.json."""
    if cell.data.variant:
        return train_stream(cell, executor, folder, asked.resume, asked.wait, on_round)
    learner = learner_cell(cell)
    fed = start_federation(learner, executor, asked.wait)
    fed, meter, last = train(learner, fed, executor, folder, asked.resume, on_round)
    executor.unmeasured.clear()  # of validations on the way
    facts = _facts(cell, fed, meter, last)
    return fed, {**facts, UNMEASURED: sorted(executor.unmeasured)}


def learner_cell(cell: Cell) -> Cell:
    """Return the cell without its forgetting request, with the learner the unlearner needs."""
    learner = cell.forget.learner if cell.forget else None
    return replace(cell, forget=None, method=learner or cell.method)


def start_federation(cell: Cell, executor: FlowerExecutor, wait: float) -> Federation:
    """Wait for all silos and start a federation, with the records that clients lend."""
    seed = cell.run.seed
    fed = Federation.start(executor.gather(seed, wait), cell.method, seed, executor)
    if cell.sharing is None:
        return fed
    full, part, none = cell.sharing.ratio
    return fed.apply(executor.lend(fed, (full, part, none), cell.sharing.part))


def train(
    cell: Cell,
    fed: Federation,
    executor: FlowerExecutor,
    folder: Path,
    from_checkpoint: bool,
    on_round: tuple[OnRound, ...],
) -> tuple[Federation, Meter, Last]:
    """Run the rounds of a cell, from the newest checkpoint if `from_checkpoint`."""
    meter, settings, until = Meter(), cell.run, stopping(cell, fed)
    checkpoints = Checkpoints(
        folder / "checkpoints", settings.checkpoint_every, executor.run, meter.read
    )
    found = resume(checkpoints.folder, executor.run, fed, until) if from_checkpoint else None
    if found is not None:
        fed, until = replace(fed, now=found.now), found.until or until
        if fed.past is not None and found.first is not None:
            fed = replace(fed, past=replace(fed.past, first=found.first))
        meter = Meter(**found.extra)
        checkpoints.extra = meter.read
        log.info("resumed after round %d", found.now.state.round)
    else:
        checkpoints.clear()
    last, left = Last(until), settings.rounds - fed.now.state.round
    keep = executor.watch(settings.checkpoint_every)
    fed = fed.run(left, until=until, watch=(meter, last, checkpoints, keep, *on_round))
    return fed, meter, last


def _facts(cell: Cell, fed: Federation, meter: Meter, last: Last) -> dict[str, Any]:
    counted, until = meter.read(), last.until
    return {
        **cell.stated,
        "shared": len(fed.world.shared),
        "versions": versions() | version_of(fed.method),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "round": fed.now.state.round,
        "per_round": [{"round": r, **only_numbers(v)} for r, v in until.history] if until else [],
        "metrics": quality(fed, cell.run.k),
        "seconds": {"wall": counted["wall"], "cpu": counted["cpu"]},
        "bytes": {"up": counted["up"], "down": counted["down"]},
        "client_rounds": counted["client_rounds"],
        "refused": counted["refused"],
        "privacy": cell.promise(meter.most_often(), fed.world.sizes.clients),
    }
