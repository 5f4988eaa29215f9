"""A cell of a recipe over silos: the same loop, checkpoints and measures as in one process."""

from __future__ import annotations

import logging
import time
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
from rescind.flower.elsewhere import Anew
from rescind.flower.executor import FlowerExecutor
from rescind.flower.line import Line
from rescind.flower.masking import Masked
from rescind.flower.sources import one_cell
from rescind.flower.streaming import train_stream
from rescind.forgetting import Spent
from rescind.method import Method
from rescind.provenance import versions
from rescind.purge import purge, traces
from rescind.recipe import Cell
from rescind.records import Erase, Event, Records, Unshare, Withdraw
from rescind.settings import find
from rescind.storage import METHODS, Checkpoints, resume
from rescind.stream_cell import measured_again
from rescind.trials import events as requests

log = logging.getLogger(__name__)


def serve(grid: Grid, asked: Serving, watch: tuple[Callable[[Moment], Any], ...] = ()) -> None:
    """Train and measure over the silos; writes run.json and the server's model."""
    _, cell = one_cell(asked.recipe, asked.cell, asked.changes)
    folder = Path(asked.out)
    params.make_folder(folder)
    line = Line(grid, asked.silos, asked.deadline)
    name = f"{cell.digest}/{cell.run.seed}/{asked.silos}"
    masked = None if asked.masked is None else Masked(asked.masked)
    executor = FlowerExecutor(line, name, asked.least, masked=masked)
    log.info("waiting for %d silos", asked.silos)
    if cell.data.variant:
        fed, facts = train_stream(cell, executor, folder, asked.resume, asked.wait, (_told, *watch))
    else:
        learner = learning(cell)
        fed = begin(learner, executor, asked.wait)
        fed, meter, seen = train(learner, fed, executor, folder, asked.resume, watch)
        facts = _facts(cell, fed, meter, seen)
    for event, unlearner in wanted(asked, cell, fed):
        fed, told = forget(fed, event, executor, unlearner)
        facts["forgot"] = [*facts.get("forgot", ()), told]
        facts["round"] = fed.now.state.round
        facts |= measured(cell, facts, fed)
    fed = executor.settle(fed)
    facts["silos"] = {
        "silos": asked.silos, "messages": line.letters, "refused": dict(line.refused),
        "waiting": list(executor.waiting(fed)), "masked": asked.masked,
    }  # fmt: skip
    facts["model"] = {"public": params.digest(fed.now.state.public)}
    params.save(folder / "model" / "public.safetensors", dict(fed.now.state.public))
    write_facts(folder, facts)
    tidy(folder)
    log.info("written: %s/run.json, metrics %s", folder, facts["metrics"]["test"])


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


def wanted(asked: Serving, cell: Cell, fed: Federation) -> list[tuple[Event, Method]]:
    """What is to be forgotten after training, and who forgets it."""
    named: Method | None = find(*METHODS, asked.unlearner)() if asked.unlearner else None
    events: list[Event] = []
    own = fed.method
    if cell.forget is not None:
        own = cell.forget.unlearner or own
        events += requests(cell, fed)
    if asked.take_back is not None:
        events.append(Unshare(fed.world.shared[fed.world.shared.client == asked.take_back]))
    if asked.erase is not None:
        client, items = asked.erase
        events.append(Erase(Records.of([client] * len(items), list(items))))
    if asked.withdraw is not None:
        events.append(Withdraw(asked.withdraw))
    return [(event, named or own) for event in events]


def forget(
    fed: Federation, event: Event, executor: FlowerExecutor, method: Method
) -> tuple[Federation, dict[str, Any]]:
    """Unlearn an event, purge, and let the silos remove what is no longer needed."""
    spent, began = Spent(), time.perf_counter()
    after = method.unlearn(replace(fed, watch=(*fed.watch, spent)), event)
    after = purged(fed, replace(after, watch=fed.watch), event, method.exact, executor)
    after = executor.settle(after)
    return after, {
        "event": type(event).__name__,
        "by": type(method).__name__,
        "exact": method.exact,
        "rounds": spent.rounds,
        "client_rounds": spent.client_rounds,
        "seconds": time.perf_counter() - began,
        "traces": traces(after, event, fed, made=not method.exact),
        "waiting": list(executor.waiting(after)),
    }


def purged(
    before: Federation, after: Federation, event: Event, exact: bool, executor: FlowerExecutor
) -> Federation:
    """`purge` for devices elsewhere: of private values only their moments are here."""
    vault = after.now.vault
    clean = purge(before, after.with_(vault=replace(vault, private={})), event, exact)
    if isinstance(event, Erase) and not exact:
        public, anew = after.now.state.public, Anew(event.records)
        vault = executor.apply(after.method, public, anew, vault, after.clock)
    return clean.with_(vault=vault)


def measured(cell: Cell, facts: dict[str, Any], fed: Federation) -> dict[str, Any]:
    """What is measured again once something was forgotten."""
    if cell.data.variant:
        return measured_again(facts, fed)
    return {"metrics": {s: fed.evaluate(s, cell.run.k) for s in ("valid", "test")}}


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
