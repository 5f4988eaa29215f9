"""A cell of a recipe over silos: the same loop, checkpoints and measures as in one process."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.run_state import RoundResult
from rescind.experiments.learning_run import Last, Meter, stopping, tidy
from rescind.experiments.recipe import Cell
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.forgetting import (
    ForgetProgress,
    ForgetProgressFiles,
    answered,
    in_the_log,
    unlearner,
    wanted,
)
from rescind.flower.server.streams import train_stream
from rescind.flower.server.transport import Transport
from rescind.flower.wire.secure_aggregation import Masked
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.provenance import versions
from rescind.storage.run_folder import write_facts

log = logging.getLogger(__name__)


def serve(
    grid: Grid, asked: RunRequest, watch: tuple[Callable[[RoundResult], Any], ...] = ()
) -> None:
    """Train and measure over the silos; writes run.json and the server's model."""
    _, cell = one_cell(asked.recipe, asked.cell, asked.changes)
    folder = Path(asked.out)
    files.make_folder(folder)
    line = Transport(grid, asked.silos, asked.deadline)
    name = f"{cell.digest}/{cell.run.seed}/{asked.silos}"
    masked = None if asked.masked is None else Masked(asked.masked)
    executor = FlowerExecutor(line, name, asked.least, masked=masked)
    stands = ForgetProgressFiles(folder / "forgetting", f"{name}/{asked.requests}", executor)
    log.info("waiting for %d silos", asked.silos)
    stand = stands.found() if asked.resume else None
    if stand is None:
        stands.clear()
        fed, facts = learnt(asked, cell, executor, folder, (in_the_log, *watch))
        stand = ForgetProgress(fed, facts, wanted(asked, cell, fed))
        stands.write(stand)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # nobody goes back to learning
    else:
        executor.meet(asked.wait)
        log.info("going on with what was learnt; %d requests to answer", len(stand.events))
    stand = answered(stand, cell, unlearner(asked, cell), executor, stands)
    fed, facts = stand.fed, stand.facts
    facts["silos"] = {
        "silos": asked.silos, "messages": line.letters, "refused": dict(line.refused),
        "waiting": list(executor.waiting(fed)), "masked": asked.masked,
    }  # fmt: skip
    facts["model"] = {"public": params.digest(fed.now.state.public)}
    params.save(folder / "model" / "public.safetensors", dict(fed.now.state.public))
    write_facts(folder, facts)
    stands.clear()
    tidy(folder)
    log.info("written: %s/run.json, metrics %s", folder, facts["metrics"]["test"])


def learnt(
    asked: RunRequest,
    cell: Cell,
    executor: FlowerExecutor,
    folder: Path,
    watch: tuple[Callable[[RoundResult], Any], ...],
) -> tuple[Federation, dict[str, Any]]:
    """The federation after its rounds, or blocks of rounds, and what run.json says of them."""
    if cell.data.variant:
        return train_stream(cell, executor, folder, asked.resume, asked.wait, watch)
    learner = learning(cell)
    fed = begin(learner, executor, asked.wait)
    fed, meter, seen = train(learner, fed, executor, folder, asked.resume, watch)
    return fed, _facts(cell, fed, meter, seen)


def learning(cell: Cell) -> Cell:
    """The same cell before its request: who learns keeps what the unlearner takes."""
    learner = cell.forget.learner if cell.forget else None
    return replace(cell, forget=None, method=learner or cell.method)


def begin(cell: Cell, executor: FlowerExecutor, wait: float) -> Federation:
    """A federation of all silos before its first round, with what people lend."""
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
    again: bool,
    watch: tuple[Callable[[RoundResult], Any], ...],
) -> tuple[Federation, Meter, Last]:
    """The rounds of a cell, from the newest checkpoint if asked."""
    meter, settings, until = Meter(), cell.run, stopping(cell)
    checkpoints = Checkpoints(
        folder / "checkpoints", settings.checkpoint_every, executor.run, meter.read
    )
    found = resume(checkpoints.folder, executor.run, fed, until) if again else None
    if found is not None:
        fed, until = replace(fed, now=found.now), found.until or until
        if fed.past is not None and found.first is not None:
            fed = replace(fed, past=replace(fed.past, first=found.first))
        meter = Meter(**found.extra)
        checkpoints.extra = meter.read
        log.info("going on after round %d", found.now.state.round)
    else:
        checkpoints.clear()
    seen, left = Last(until), settings.rounds - fed.now.state.round
    keep = executor.watch(settings.checkpoint_every)
    fed = fed.run(left, until=until, watch=(meter, seen, checkpoints, keep, *watch))
    return fed, meter, seen


def _facts(cell: Cell, fed: Federation, meter: Meter, seen: Last) -> dict[str, Any]:
    counted, until = meter.read(), seen.until
    return {
        **cell.stated,
        "shared": len(fed.world.shared),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "round": fed.now.state.round,
        "per_round": [{"round": r, **v} for r, v in until.history] if until else [],
        "metrics": {s: fed.evaluate(s, cell.run.k) for s in ("valid", "test")},
        "seconds": {"wall": counted["wall"], "cpu": counted["cpu"]},
        "bytes": {"up": counted["up"], "down": counted["down"]},
        "client_rounds": counted["client_rounds"],
        "refused": counted["refused"],
        "privacy": cell.promise(meter.most_often(), fed.world.sizes.clients),
    }
