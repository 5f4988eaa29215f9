"""Forget requests over silos. A server that is killed can resume at any point.

Progress is saved before each request, and again when the model has forgotten it but silos may not
have removed it yet (which they may do twice). In between, a journal keeps their answers. The newest
progress stays when all requests are answered, so that the next one, on another day, goes on from it
without training. Nothing from before a request is kept after it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.history import NEVER
from rescind.core.method import Method, Unlearner
from rescind.core.records import Event, Records, Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.saved import reading, table_in
from rescind.core.settings import find
from rescind.core.words import count_of
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.recipe import Cell
from rescind.experiments.stream_run import measured_again
from rescind.experiments.unlearning_run import events as requests
from rescind.experiments.validation import quality
from rescind.flower.run_request import NamedRequest, RunRequest, silo_names
from rescind.flower.server.asked_names import AskedNames
from rescind.flower.server.combine import NeededError
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.journal import Journal
from rescind.flower.server.naming import (
    MissingError,
    UnknownError,
    digest_of,
    event_of,
    numbers,
)
from rescind.flower.server.receipts import facts_of, last_receipt, rows_left, write_receipts
from rescind.flower.server.storage import load_remote, save_remote
from rescind.forgetting.pipeline import check_answers, unlearn_and_purge
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.kinds import UNLEARNERS

log = logging.getLogger(__name__)

TABLE = "stand.json"
"""Written last, so that incomplete progress is not resumed."""
EVENTS = "events.safetensors"
WAITING = "waiting.txt"
"""Names the silos that a finished run waits for."""
UNMEASURED = "measured_without"
"""In run.json: silos whose users are not in the metrics, because they were away."""
REFUSED_LATER = "a request was refused; run.json says why when the others are answered"
REFUSED = "refused_requests"
"""In run.json: the requests of the last command that could not be answered, and why."""
REFUSED_EARLIER = "refused_earlier"
"""In run.json: those refused before because a silo was away, if no request was given since."""


@dataclass(frozen=True)
class ForgetProgress:
    """Progress of answering requests."""

    fed: Federation
    facts: dict[str, Any]
    """The content of run.json so far."""
    events: tuple[Event, ...] = ()
    """Requests that are not unlearnt yet, the next one first."""
    answered: tuple[Event, ...] = ()
    """Requests that are unlearnt, oldest first, whose receipts may not be complete yet."""
    asked: tuple[str, ...] = ()
    """Keyed digests of `events` as they were asked for (`naming.digest_of`); "" of a recipe's."""
    names: AskedNames = AskedNames()
    """Original ids in these requests, for their receipts."""
    unsettled: bool = False
    """The model has forgotten the last request, but silos must still remove its data."""


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

    def check_done(self) -> None:
        """Refuse to start a run over one with a request that silos have not confirmed."""
        path = self.folder / WAITING
        if path.is_file():
            raise ConfigError(
                f"not confirmed yet by {path.read_text(encoding='utf-8')}: a request of the run in "
                f"{self.folder.parent}. Start them and repeat its command with --resume, or "
                f"choose another --out."
            )

    def finish(self, waiting: Sequence[int]) -> None:
        """Note which silos have not confirmed yet: the run can be resumed for them."""
        if waiting:
            files.write_atomically(self.folder / WAITING, silo_names(waiting).encode())
        else:
            (self.folder / WAITING).unlink(missing_ok=True)

    def write(self, progress: ForgetProgress) -> None:
        """Write the progress, then remove the one before."""
        self.number += 1
        shutil.rmtree(self.place, ignore_errors=True)  # an interrupted write
        save_remote(progress.fed, self.place)
        tensors, event_facts = pack_events("event", progress.events)
        answered, answered_facts = pack_events("answered", progress.answered)
        tensors, event_facts = {**tensors, **answered}, {**event_facts, **answered_facts}
        params.save(self.place / EVENTS, tensors, {"facts": json.dumps(event_facts)})
        names = progress.names.only((*progress.events, *progress.answered))
        table = {
            "key": self.key, "facts": progress.facts, "unsettled": progress.unsettled,
            "asked": progress.asked, "names": names.table(),
        }  # fmt: skip
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
                    packed = table_in(notes)
                    both = (unpack_events(n, tensors, packed) for n in ("event", "answered"))
                    left, old = map(tuple, both)
                    asked, names = tuple(table["asked"]), AskedNames.read(table.get("names", {}))
            except (OSError, ValueError, DataError) as error:
                log.warning("skipped incomplete progress: %s", error)
                continue
            if table["key"] != self.key:
                raise ConfigError(
                    f"{place} belongs to another run. Use the same recipe, cell, settings and "
                    f"number of silos, or choose another --out."
                )
            self.number = int(place.name.split("-")[1])
            unsettled = bool(table["unsettled"])
            return ForgetProgress(fed, table["facts"], left, old, asked, names, unsettled)
        return None

    @property
    def place(self) -> Path:
        """Return the folder of the newest progress."""
        return self.folder / f"stand-{self.number:03d}"

    @contextmanager
    def journal(self) -> Iterator[None]:
        """Keep answers of silos in a journal next to the newest progress.

        Masked sums are not kept, because their keys are new in each round: after a restart, all
        rounds of the request are run again.
        """
        line = self.executor.line
        if self.executor.masked is None:
            line.journal = Journal(self.place / "heard")
        try:
            yield
        finally:
            line.journal = None


def answered(
    progress: ForgetProgress,
    cell: Cell,
    method: Unlearner | None,
    executor: FlowerExecutor,
    saved: ForgetProgressFiles,
) -> ForgetProgress:
    """Answer all remaining requests, one after another, and save the progress.

    A request that cannot go on, because a silo is missing or does not allow it, is named.

    Silos that are away are waited for: the requests' facts and receipts name them until they have
    confirmed, in this run or when it is resumed.
    """
    of = len(progress.events)
    while progress.events or progress.unsettled:
        if not progress.unsettled:
            log.info("request %d of %d", 1 + of - len(progress.events), of)
            try:
                progress = _unlearn(progress, cell, method, executor, saved)
            except (ConsentError, DataError) as error:
                # Without a client it is about the run, not about somebody's records.
                if not isinstance(error, ConsentError) or error.client is None:
                    done = _receipts_of(progress, saved)  # those before it do not wait for it
                    raise type(error)(_stuck(progress, error, done)) from None
                # It would stand before all later requests for ever.
                progress = _without_next(progress, error)
                saved.write(progress)
                continue
            saved.write(progress)
        with saved.journal():
            fed, facts = executor.settle(progress.fed), dict(progress.facts)
            *others, last = facts["forgot"]
            waiting = list(executor.waiting(fed))
            last = {**last, "waiting": waiting, "silos": executor.line.silos}
            facts["forgot"] = [*others, last]
            facts["round"] = fed.now.state.round
            facts |= measured(cell, facts, fed, executor)
        progress = replace(progress, fed=fed, facts=facts, unsettled=False)
        saved.write(progress)
    if not progress.answered:
        if any(one.get("again") for one in progress.facts.get(REFUSED, ())):
            saved.write(progress)  # a later command tells of them
        return progress
    fed = executor.settle(progress.fed)  # not from the journal: silos that were away may be back
    still = executor.waiting(fed)
    forgot = [
        {**one, "waiting": [silo for silo in one["waiting"] if silo in still]}
        for one in progress.facts["forgot"]
    ]
    facts = progress.facts
    if facts.get(UNMEASURED) and not still:  # all are back: the numbers are of all again
        facts = {**facts, **measured(cell, facts, fed, executor)}
    write_receipts(saved.folder.parent, fed, forgot, progress.answered, progress.names)
    left = [event for event, one in zip(progress.answered, _open(forgot), strict=True)
            if one["waiting"]]  # fmt: skip
    forgot = [one if one["waiting"] else _shown(one) for one in forgot]
    facts = {**facts, "forgot": forgot}
    progress = replace(progress, fed=fed, facts=facts, answered=tuple(left))
    saved.write(progress)
    return progress


def _open(forgot: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests whose receipts may not be complete yet."""
    return [one for one in forgot if "done" in one]


def _receipts_of(progress: ForgetProgress, saved: ForgetProgressFiles) -> list[str]:
    """Write the receipts of the requests that are answered; return their names in the folder.

    Silos are not asked: one that was away when its request was answered counts as away.
    """
    forgot = [dict(one) for one in progress.facts.get("forgot", ())]
    write_receipts(saved.folder.parent, progress.fed, forgot, progress.answered, progress.names)
    return [one["receipt"] for one in _open(forgot)]


def _stuck(progress: ForgetProgress, error: Exception, done: Sequence[str]) -> str:
    """Say which request cannot go on, how many wait behind it, and what is of the others."""
    first, *rest = progress.events
    users = {*getattr(first, "records", Records.of([], [])).client.tolist()}
    users |= {first.client} if isinstance(first, Withdraw) else set()
    whose = f" of user '{progress.names.user_id(users.pop())}'" if len(users) == 1 else ""
    wait = f"; {count_of(len(rest), 'later request')} wait{'s' * (len(rest) == 1)}" * bool(rest)
    others = f" Answered before it: {', '.join(done)}." * bool(done)
    others += "".join(f" Refused: {one['why']}" for one in progress.facts.get(REFUSED, ()))
    return (
        f"the request{whose} ({type(first).__name__.lower()}) is not answered yet{wait}: {error} "
        f"When that is mended, give the same command again{', with --resume' * bool(done)}.{others}"
    )


def _without_next(progress: ForgetProgress, error: ConsentError) -> ForgetProgress:
    """Return the progress without a request that cannot be answered, and why, for run.json."""
    log.warning(REFUSED_LATER)
    named = progress.names.named(error)
    again = isinstance(error, NeededError)
    facts = _with_refused(progress.facts, type(progress.events[0]).__name__, named, again)
    return replace(progress, facts=facts, events=progress.events[1:], asked=progress.asked[1:])


def _with_refused(facts: dict[str, Any], event: str, why: Exception, again: bool) -> dict[str, Any]:
    """Return the facts with a refused request. again: only because a silo was away"""
    refused = {"event": event, "why": str(why), **({"again": True} if again else {})}
    return {**facts, REFUSED: [*facts.get(REFUSED, ()), refused]}


def _unlearn(
    progress: ForgetProgress,
    cell: Cell,
    method: Unlearner | None,
    executor: FlowerExecutor,
    saved: ForgetProgressFiles,
) -> ForgetProgress:
    """Unlearn the next request; silos have not removed its data yet."""
    event, before = progress.events[0], progress.facts.get("forgot", ())
    executor.begin_request(progress.fed)
    with saved.journal():
        fed, forgot = forget(progress.fed, event, method or progress.fed.method)
    forgot |= rows_left(cell.data.name, event, executor.line.silos)
    forgot["asked"] = progress.asked[0]
    forgot["number"] = 1 + max(last_receipt(saved.folder.parent), *(f["number"] for f in before), 0)
    return ForgetProgress(
        fed, {**progress.facts, "forgot": [*before, forgot]}, progress.events[1:],
        (*progress.answered, event), progress.asked[1:], progress.names, unsettled=True,
    )  # fmt: skip


def unlearner(asked: RunRequest, cell: Cell) -> Unlearner | None:
    """Return the unlearner of the run request, or else of the cell; None: the learner itself."""
    if asked.unlearner:
        named: Unlearner = find(*UNLEARNERS, asked.unlearner)()
        check_answers(named)
        return named
    return cell.forget.unlearner if cell.forget else None


def of_recipe(cell: Cell, fed: Federation, executor: FlowerExecutor) -> tuple[Event, ...]:
    """Return the request of a recipe, to be answered after training."""
    if cell.forget is None:
        return ()
    if cell.forget.draw is not None:
        return tuple(requests(cell, fed))
    leave = [NamedRequest("withdraw", str(user)) for user in cell.forget.clients]
    known = numbers(executor, leave, fed)
    return tuple(event_of(one, fed, known) for one in leave)


def with_requests(
    progress: ForgetProgress, asked: RunRequest, executor: FlowerExecutor
) -> ForgetProgress:
    """Return the progress with what was asked for at the end of its queue.

    A request that is in the queue, or that silos have not confirmed, is not taken twice; nor one
    that was answered, if the run is resumed. One that cannot be answered is refused by itself.
    """
    refusals = (REFUSED, REFUSED_EARLIER)
    facts = {name: fact for name, fact in progress.facts.items() if name not in refusals}
    earlier = [one for n in refusals for one in progress.facts.get(n, ()) if one.get("again")]
    if earlier and not asked.requests:
        facts[REFUSED_EARLIER] = earlier
    progress = replace(progress, facts=facts)
    forgot = facts.get("forgot", ())
    # One that a kill left unlearnt but unsettled has no "waiting" yet: it is under way, too.
    open_ = [f for f in forgot if asked.resume or f.get("waiting", True)]
    known = {*progress.asked, *(f.get("asked") for f in open_)}
    new = [one for one in dict.fromkeys(asked.requests) if digest_of(one) not in known]
    if not new:
        return progress
    found = numbers(executor, new, progress.fed)
    leaving = [e.client for e in progress.events if isinstance(e, Withdraw)]
    events: list[Event] = []
    digests: list[str] = []
    names = progress.names
    for one in new:
        try:
            event = event_of(one, progress.fed, found)
            if found.of(one)[0] in leaving:
                raise ConsentError(f"user '{one.user}' withdraws already. Give that request alone.")
        except (UnknownError, ConsentError) as error:
            log.warning(REFUSED_LATER)
            again = isinstance(error, MissingError)
            facts = _with_refused(facts, one.kind.capitalize(), error, again)
            continue
        events.append(event)
        digests.append(digest_of(one))
        names = names.also(one, found)
    return replace(
        progress, facts=facts, events=(*progress.events, *events),
        asked=(*progress.asked, *digests), names=names,
    )  # fmt: skip


def forget(
    fed: Federation, event: Event, unlearner: Unlearner
) -> tuple[Federation, dict[str, Any]]:
    """Unlearn an event and purge. Silos must still remove its data afterwards."""
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
        "in_model": request.first_round is not None,
        "done": facts_of(fed, request, done),
    }


def published(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of requests for run.json, without the digests that receipts seal."""
    forgot = [
        {n: v for n, v in _shown(one).items() if n != "asked"} for one in facts.get("forgot", ())
    ]
    return {"forgot": forgot} if forgot else {}


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a request without those that only its receipts need.

    "stated" is in progress that earlier versions saved.
    """
    return {n: v for n, v in one.items() if n not in ("done", "stated", "silos")}


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
