"""A cell of a recipe over silos: the same loop, checkpoints and measures as in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from rescind import params
from rescind.experiment import Last, Meter, stopping, tidy, write_facts
from rescind.federation import Federation, Moment
from rescind.flower.asked import Serving
from rescind.flower.executor import FlowerExecutor
from rescind.flower.line import Line
from rescind.flower.sources import one_cell
from rescind.method import Method
from rescind.provenance import versions
from rescind.recipe import Cell
from rescind.records import Event, Unshare, Withdraw
from rescind.settings import find
from rescind.storage import METHODS, Checkpoints, resume

log = logging.getLogger(__name__)


def serve(grid: Grid, asked: Serving, watch: tuple[Callable[[Moment], Any], ...] = ()) -> None:
    """Train and measure over the silos; writes run.json and the server's model."""
    _, cell = one_cell(asked.recipe, asked.cell, asked.changes)
    folder = Path(asked.out)
    params.make_folder(folder)
    line = Line(grid, asked.silos, asked.deadline)
    name = f"{cell.digest}/{cell.run.seed}/{asked.silos}"
    executor = FlowerExecutor(line, name, asked.least)
    log.info("waiting for %d silos", asked.silos)
    fed = begin(cell, executor, asked.wait)
    fed, meter, seen = train(cell, fed, executor, folder, asked.resume, watch)
    facts = _facts(cell, fed, meter, seen)
    for event in wanted(asked, fed):
        fed, facts["forgot"] = forget(fed, event, executor, asked.unlearner)
        facts["metrics"] = {s: fed.evaluate(s, cell.run.k) for s in ("valid", "test")}
    fed = executor.settle(fed)
    facts["silos"] = {
        "silos": asked.silos, "messages": line.letters, "refused": dict(line.refused),
        "waiting": list(executor.waiting(fed)),
    }  # fmt: skip
    facts["model"] = {"public": params.digest(fed.now.state.public)}
    params.save(folder / "model" / "public.safetensors", dict(fed.now.state.public))
    write_facts(folder, facts)
    tidy(folder)
    log.info("written: %s/run.json, metrics %s", folder, facts["metrics"]["test"])


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
    watch: tuple[Callable[[Moment], Any], ...],
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
    fed = fed.run(left, until=until, watch=(meter, seen, checkpoints, keep, _told, *watch))
    return fed, meter, seen


def wanted(asked: Serving, fed: Federation) -> list[Event]:
    """What is to be forgotten after training."""
    events: list[Event] = []
    if asked.take_back is not None:
        events.append(Unshare(fed.world.shared[fed.world.shared.client == asked.take_back]))
    if asked.withdraw is not None:
        events.append(Withdraw(asked.withdraw))
    return events


def forget(
    fed: Federation, event: Event, executor: FlowerExecutor, unlearner: str | None
) -> tuple[Federation, dict[str, Any]]:
    """Unlearn an event and let the silos remove what is no longer needed."""
    method: Method = find(*METHODS, unlearner)() if unlearner else fed.method
    after = executor.settle(method.unlearn(fed, event))
    return after, {
        "event": type(event).__name__,
        "by": type(method).__name__,
        "rounds": after.now.state.round - fed.now.state.round,
        "waiting": list(executor.waiting(after)),
    }


def _told(moment: Moment) -> None:
    """One line for each round, for whoever reads the log."""
    refused = {r: n for total in moment.sums.values() for r, n in total.refused.items()}
    clients = sum(total.clients for total in moment.sums.values())
    log.info("round %d: %d clients, refused %s", moment.now.state.round, clients, refused)


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
