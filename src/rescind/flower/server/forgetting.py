"""Requests over silos: each is unlearnt, purged and settled, and a server may be killed anywhere.

Where the answering stands is on disk: before a request, and again once the model has forgotten it
but silos may not have removed it yet (which they may do twice). In between a journal has what
they said. Neither outlives the run, and nothing from before a request outlives the request.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.settings import find
from rescind.errors import ConfigError, DataError
from rescind.experiments.recipe import Cell
from rescind.experiments.stream_run import measured_again
from rescind.experiments.unlearning_run import events as requests
from rescind.flower.run_request import RunRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.journal import Journal
from rescind.flower.server.storage import load_remote, save_remote
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.federations import UNLEARNERS

log = logging.getLogger(__name__)

BEGUN = "stand.json"
"""Written last, so that a stand that was not written whole is not taken up."""
EVENTS = "events.safetensors"


@dataclass(frozen=True)
class ForgetProgress:
    """Where the answering of requests stands."""

    fed: Federation
    facts: dict[str, Any]
    """What run.json would say now."""
    events: tuple[Event, ...] = ()
    """Requests whose model is still to come, the next one first."""
    unsettled: bool = False
    """The model has forgotten the last request; the silos are to remove what is left of it."""


@dataclass
class ForgetProgressFiles:
    """The folder of the newest stand; older ones are removed."""

    folder: Path
    key: str
    """What the run is and what it was asked to forget: another one is refused."""
    executor: FlowerExecutor
    number: int = 0

    def clear(self) -> None:
        """Remove everything: a finished run keeps no trace of its way."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, stand: ForgetProgress) -> None:
        """Write a stand, then remove the one before."""
        self.number += 1
        shutil.rmtree(self.place, ignore_errors=True)  # of one that was killed while it wrote
        save_remote(stand.fed, self.place)
        tensors, told = pack_events("event", stand.events)
        params.save(self.place / EVENTS, tensors, {"facts": json.dumps(told)})
        begun = {"key": self.key, "facts": stand.facts, "unsettled": stand.unsettled}
        files.write_atomically(self.place / BEGUN, json.dumps(begun).encode())
        for old in self.folder.glob("stand-*"):
            if old != self.place:
                shutil.rmtree(old)

    def found(self) -> ForgetProgress | None:
        """The newest stand that was written whole."""
        for place in sorted(self.folder.glob("stand-*"), reverse=True):
            try:
                begun = json.loads((place / BEGUN).read_text(encoding="utf-8"))
                fed = load_remote(place, self.executor)
                tensors, notes = params.load(place / EVENTS)
            except (OSError, ValueError, DataError) as error:
                log.warning("passed over a stand that was not written whole: %s", error)
                continue
            if begun["key"] != self.key:
                raise ConfigError(
                    f"{place} belongs to another run, or was asked to forget something else. Go "
                    f"on with the same recipe and requests, or choose another --out."
                )
            self.number = int(place.name.split("-")[1])
            left = unpack_events("event", tensors, json.loads(notes["facts"]))
            return ForgetProgress(fed, begun["facts"], tuple(left), bool(begun["unsettled"]))
        return None

    @property
    def place(self) -> Path:
        """The folder of the newest stand."""
        return self.folder / f"stand-{self.number:03d}"

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Keep what silos answer in a journal beside the newest stand.

        Not of masked sums, whose keys are of one round and never the same again: a server that was
        killed asks for all of the request's rounds once more.
        """
        line = self.executor.line
        if self.executor.masked is None:
            line.journal = Journal(self.place / "heard")
        try:
            yield
        finally:
            line.journal = None


def answered(
    stand: ForgetProgress,
    cell: Cell,
    method: Unlearner | None,
    executor: FlowerExecutor,
    stands: ForgetProgressFiles,
) -> ForgetProgress:
    """Every request answered, one after another, from wherever the answering stands."""
    while stand.events or stand.unsettled:
        if not stand.unsettled:
            stand = _unlearnt(stand, method or stand.fed.method, executor, stands)
            stands.write(stand)
        with stands.heard():
            fed, facts = executor.settle(stand.fed), dict(stand.facts)
            *others, last = facts["forgot"]
            facts["forgot"] = [*others, {**last, "waiting": list(executor.waiting(fed))}]
            facts["round"] = fed.now.state.round
            facts |= measured(cell, facts, fed)
        stand = ForgetProgress(fed, facts, stand.events)
        stands.write(stand)
    with stands.heard():
        return replace(stand, fed=executor.settle(stand.fed))  # also who was away before


def _unlearnt(
    stand: ForgetProgress, method: Unlearner, executor: FlowerExecutor, stands: ForgetProgressFiles
) -> ForgetProgress:
    """The stand after the model has forgotten the next request."""
    event, *left = stand.events
    executor.begin_request(stand.fed)
    with stands.heard():
        fed, told = forget(stand.fed, event, method)
    facts = {**stand.facts, "forgot": [*stand.facts.get("forgot", ()), told]}
    return ForgetProgress(fed, facts, tuple(left), unsettled=True)


def unlearner(asked: RunRequest, cell: Cell) -> Unlearner | None:
    """Who forgets: as asked, else as the cell says; None: the learner itself."""
    if asked.unlearner:
        named: Unlearner = find(*UNLEARNERS, asked.unlearner)()
        return named
    return cell.forget.unlearner if cell.forget else None


def wanted(asked: RunRequest, cell: Cell, fed: Federation) -> tuple[Event, ...]:
    """What is to be forgotten after training."""
    events: list[Event] = requests(cell, fed) if cell.forget is not None else []
    if asked.take_back is not None:
        events.append(Unshare(fed.world.shared[fed.world.shared.client == asked.take_back]))
    if asked.erase is not None:
        client, items = asked.erase
        events.append(Erase(Records.of([client] * len(items), list(items))))
    if asked.withdraw is not None:
        events.append(Withdraw(asked.withdraw))
    return tuple(events)


def forget(
    fed: Federation, event: Event, unlearner: Unlearner
) -> tuple[Federation, dict[str, Any]]:
    """Unlearn an event and purge; the silos are still to remove what is no longer needed."""
    request = fed.request(event)
    done = unlearn_and_purge(fed, request, unlearner, (in_the_log,))
    return done.fed, {
        "event": request.kind,
        "by": type(unlearner).__name__,
        "exact": unlearner.exact,
        "rounds": done.cost.rounds,
        "client_rounds": done.cost.client_rounds,
        "seconds": done.cost.wall,
        "traces": done.traces,
    }


def measured(cell: Cell, facts: dict[str, Any], fed: Federation) -> dict[str, Any]:
    """What is measured again once something was forgotten."""
    if cell.data.variant:
        return measured_again(facts, fed)
    return {"metrics": {s: fed.evaluate(s, cell.run.k) for s in ("valid", "test")}}


def in_the_log(moment: RoundResult) -> None:
    """One line for each round, for whoever reads the log."""
    refused = {r: n for total in moment.sums.values() for r, n in total.refused.items()}
    clients = sum(total.clients for total in moment.sums.values())
    log.info("round %d: %d clients, refused %s", moment.now.state.round, clients, refused)
