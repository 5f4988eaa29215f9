"""The progress of forgetting over silos. A server that is killed can resume at any point.

It is saved before a request changes the model, and again when the model has forgotten it. In
between, a journal keeps the silos' answers. The newest progress stays, so that the next request, on
another day, goes on from it without training. Nothing from before a request is kept after it.
Requests themselves, and what silos confirmed of them, are in the ledger (`answering.py`).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.history import NEVER
from rescind.core.method import Method, Unlearner
from rescind.core.records import Event
from rescind.core.request import Request
from rescind.core.run_state import RoundResult
from rescind.core.saved import reading, table_in
from rescind.core.settings import find
from rescind.errors import ConfigError, DataError
from rescind.experiments.recipe import Cell
from rescind.experiments.stream_run import measured_again
from rescind.experiments.validation import quality
from rescind.flower.run_request import RunRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.journal import Journal
from rescind.flower.server.storage import load_remote, save_remote
from rescind.forgetting.pipeline import Forgotten, check_answers, unlearn_and_purge
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.kinds import UNLEARNERS

log = logging.getLogger(__name__)

TABLE = "stand.json"
"""Written last, so that incomplete progress is not resumed."""
EVENTS = "events.safetensors"
UNMEASURED = "measured_without"
"""In run.json: silos whose users are not in the metrics, because they were away."""


@dataclass(frozen=True)
class ForgetProgress:
    """A model, and what it has forgotten."""

    fed: Federation
    facts: dict[str, Any]
    """The content of run.json so far."""
    events: tuple[Event, ...] = ()
    """Requests that the recipe makes by lot and that are not unlearnt yet."""
    unlearnt: str = ""
    """The id of the last request that the model has forgotten."""


@dataclass
class ForgetProgressFiles:
    """Saves the newest progress in a folder and removes older ones."""

    folder: Path
    key: str
    """Name of the run. Progress of another run is refused."""
    executor: FlowerExecutor
    number: int = 0

    def clear(self) -> None:
        """Remove everything, before another training."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, progress: ForgetProgress) -> None:
        """Write the progress, then remove the one before."""
        self.number += 1
        shutil.rmtree(self.place, ignore_errors=True)  # an interrupted write
        save_remote(progress.fed, self.place)
        tensors, events = pack_events("event", progress.events)
        params.save(self.place / EVENTS, tensors, {"facts": json.dumps(events)})
        table = {"key": self.key, "facts": progress.facts, "unlearnt": progress.unlearnt}
        files.write_atomically(self.place / TABLE, json.dumps(table).encode(), private=True)
        for old in self.folder.glob("stand-*"):
            if old != self.place:
                shutil.rmtree(old)

    def found(self) -> ForgetProgress | None:
        """Read the newest complete progress, or return None."""
        for place in sorted(self.folder.glob("stand-*"), reverse=True):
            try:
                table = json.loads((place / TABLE).read_text(encoding="utf-8"))
                fed = load_remote(place, self.executor)
                tensors, notes = params.load(place / EVENTS)
                with reading(place):
                    events = tuple(unpack_events("event", tensors, table_in(notes)))
            except (OSError, ValueError, DataError) as error:
                log.warning("skipped incomplete progress: %s", error)
                continue
            if table["key"] != self.key:
                raise ConfigError(
                    f"{place} belongs to another run. Use the same recipe, cell, settings and "
                    f"number of silos, or choose another --out."
                )
            self.number = int(place.name.split("-")[1])
            return ForgetProgress(fed, table["facts"], events, table["unlearnt"])
        return None

    @property
    def place(self) -> Path:
        """Return the folder of the newest progress."""
        return self.folder / f"stand-{self.number:03d}"

    @contextmanager
    def journal(self, request: str) -> Iterator[None]:
        """Keep answers of silos to a request in a journal next to the newest progress.

        Masked sums are not kept, because their keys are new in each round: after a restart, all
        rounds of the request are run again.
        """
        line = self.executor.line
        if self.executor.masked is None:
            line.journal = Journal(self._heard(request))
        try:
            yield
        finally:
            line.journal = None

    def drop_journal(self, request: str) -> None:
        """Remove the answers to a request."""
        shutil.rmtree(self._heard(request), ignore_errors=True)

    def _heard(self, request: str) -> Path:
        return self.place / f"heard-{request}"


def unlearner(asked: RunRequest, cell: Cell) -> Unlearner | None:
    """Return the unlearner of the run request, or else of the cell; None: the learner itself."""
    if asked.unlearner:
        named: Unlearner = find(*UNLEARNERS, asked.unlearner)()
        check_answers(named)
        return named
    return cell.forget.unlearner if cell.forget else None


def forget(
    fed: Federation, event: Event, unlearner: Unlearner
) -> tuple[Request, Forgotten, dict[str, Any]]:
    """Unlearn an event and purge. Silos must still remove its data afterwards."""
    request = fed.request(event)
    done = unlearn_and_purge(fed, request, unlearner, (in_the_log,))
    return request, done, {
        "event": request.kind,
        "by": type(unlearner).__name__,
        "exact": unlearner.exact,
        "rounds": done.cost.rounds,
        "client_rounds": done.cost.client_rounds,
        "seconds": done.cost.wall,
        "traces": done.traces,
        "in_model": request.first_round is not None,
    }  # fmt: skip


def measured(
    cell: Cell, facts: dict[str, Any], fed: Federation, executor: FlowerExecutor
) -> dict[str, Any]:
    """Measure the model again after forgetting."""
    executor.unmeasured.clear()
    if cell.data.variant:
        found = measured_again(facts, fed)
    else:
        found = {"metrics": quality(fed, cell.run.k)}
    return {**found, UNMEASURED: sorted(executor.unmeasured)}


def silos_without_data(fed: Federation, silos: int) -> list[int]:
    """Return the silos with members, none of whom took part in a round of this model.

    They were away when a request had it trained again. Not known of later blocks of a stream.
    """
    if fed.past is None or fed.past.base is not None or not fed.now.state.round:
        return []
    silo_of = torch.arange(len(fed.world.members)) % silos
    here = {*silo_of[fed.world.members.cpu()].tolist()}
    first = fed.past.first.cpu()  # of rounds that an early stop dropped, too
    took_part = ((first != NEVER) & (first <= fed.now.state.round)).nonzero()[:, 0]
    lent = fed.world.shared.client.cpu() % silos
    return sorted(here - {*silo_of[took_part].tolist()} - {*lent.tolist()})


def silos_that_refuse(
    fed: Federation, method: Unlearner | None, executor: FlowerExecutor
) -> list[int]:
    """Return the silos that could not answer a request: they give no sum of a single client.

    An additive learner asks for those who withdraw or erase one by one. Silos that were away are
    not known. A silo of one client has no other sum; masked sums are never of one client.
    """
    by, silos = method or fed.method, executor.line.silos
    if not isinstance(by, Method) or not by.additive or executor.masked is not None:
        return []
    members = torch.bincount(fed.world.members.cpu().nonzero()[:, 0] % silos, minlength=silos)
    return [silo for silo in sorted(executor.line.sums_only) if members[silo] > 1]


def in_the_log(moment: RoundResult) -> None:
    """Log one line for each round."""
    refused = {r: n for total in moment.sums.values() for r, n in total.refused.items()}
    clients = sum(total.clients for total in moment.sums.values())
    log.info("round %d: %d clients, refused %s", moment.now.state.round, clients, refused)
