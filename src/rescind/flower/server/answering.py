"""Answer requests over silos: the steps of `rescind.requests.answer`, with silos as the holders.

    asked    the silo that has the person says what it means (`naming.look_up`)
    hidden   silos list who leaves before they do anything else (`silo.intake`)
    unlearnt the model forgets
    purged   each silo removes what else it has, and confirms; one that is away is waited for
    signed, logged   as for every request

A request that cannot go on does not keep others waiting.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rescind.audits.finding import Finding
from rescind.core import files, params
from rescind.core.claims import CASE, CLAIMED, one_line
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.home import ledger_file
from rescind.core.method import Unlearner
from rescind.core.records import Event, Unshare, Withdraw
from rescind.core.request import Request as Unlearning
from rescind.core.settings import to_table
from rescind.errors import ConfigError, ConsentError, RescindError
from rescind.experiments.recipe import Cell
from rescind.experiments.unlearning_run import events as drawn
from rescind.flower.run_request import RunRequest, silo_names
from rescind.flower.server.combine import NeededError
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.forgetting import ForgetProgress, ForgetProgressFiles, forget
from rescind.flower.server.naming import (
    SILO,
    AwayError,
    Found,
    asked_facts,
    event_of,
    labels_of,
    look_up,
)
from rescind.flower.server.requests import request as letter
from rescind.forgetting.pipeline import Forgotten, claimed_by, vouched
from rescind.forgetting.purge import inventory
from rescind.home import Copy, Ledger, Refused, Request
from rescind.home.request import ALREADY_GONE, ERASED, REFUSED, REPEATED, WAITING
from rescind.privacy.keys import about_signer, new_secret
from rescind.receipts.receipt import Done, Draft, prepare
from rescind.requests.answer import logged, repeated, signed
from rescind.requests.papers import papers_of
from rescind.requests.words import Words
from rescind.storage.events import event_text
from rescind.storage.provenance import version_of

log = logging.getLogger(__name__)

FEDERATION = "federation"
"""In a run's folder: the name under which the ledger knows its people. It stays."""
UNAUDITED = (
    "Audits need retrained models, which are made in one process (rescind audit). Level L3: the "
    "rounds were made again, or the sum subtracted, by the platform's own code. Level L1: it is "
    "not shown that the influence is gone."
)
KEPT = "The records themselves: devices keep them, and train on them."
COUNTED = (
    "The number of records counts those that the server knew; silos removed all others from their "
    "state, too."
)


@dataclass
class Answering:
    """The requests of a run over silos, in the ledger of the server's home."""

    folder: Path
    by: Unlearner | None
    executor: FlowerExecutor
    saved: ForgetProgressFiles
    given: set[str] = field(default_factory=set)
    """The ids of those that this command asks."""

    @cached_property
    def ledger(self) -> Ledger:
        """Open the ledger of this home. Whoever only experiments has none."""
        return Ledger.open()

    def close(self) -> None:
        """Close the ledger, if it was opened."""
        if "ledger" in vars(self):
            self.ledger.__exit__()

    @property
    def dataset(self) -> str:
        """Return the name of the run's people in the ledger."""
        path = self.folder / FEDERATION
        if not path.is_file():
            files.write_atomically(path, f"run:{new_secret().hex()[:16]}".encode())
        return path.read_text(encoding="utf-8")

    def add(self, asked: RunRequest) -> None:
        """Write down what a command asks."""
        for words in asked.requests:
            name = self.dataset if asked.at is None else f"{self.dataset}@{asked.at}"
            options = {} if asked.at is None else {SILO: asked.at}
            request = replace(words.request(name), options=options)
            asked_facts(request)  # else it is a wrong command
            self.given.add(self.ledger.add(request).id)
            self.ledger.register(Copy(name, name, "silos", str(self.folder.resolve())))

    @property
    def todo(self) -> list[Request]:
        """Return the requests that are to be answered. What was refused is to be asked again."""
        if not ledger_file().is_file():
            return []
        return [
            one
            for one in self.ledger.requests(open_only=True)
            if one.dataset.partition("@")[0] == self.dataset
            and (one.outcome != REFUSED or one.id in self.given)
        ]

    def check_done(self) -> None:
        """Refuse to train anew while a silo has not confirmed what the model has forgotten."""
        begun = [one.id for one in self.todo if "unlearnt" in self.ledger.steps(one)]
        if begun:
            raise ConfigError(
                f"silos have not confirmed request {begun[0]} of the run in {self.folder} yet. "
                f"Start them and give the command with --resume, or choose another --out."
            )

    def check_known(self) -> None:
        """Refuse wrong ids before hours of training."""
        for request in (one for one in self.todo if one.id in self.given):
            try:
                look_up(self.executor, request)
            except Refused as refused:
                self.ledger.end(request, REFUSED, code=refused.code, reason=str(refused))
                raise
            except AwayError as error:
                log.warning("%s", error)

    def answer(self, progress: ForgetProgress) -> tuple[ForgetProgress, list[dict[str, Any]]]:
        """Answer all that is open, and save the progress. A silo that is away is waited for.

        Return what each request came to, too, as `told`
        """
        progress, todo = self._by_lot(progress), self.todo
        for number, request in enumerate(todo, 1):
            log.info("request %d of %d", number, len(todo))
            progress = self._unlearnt(progress, request)
        begun = any("unlearnt" in self.ledger.steps(one) for one in todo)
        if begun or self.executor.waiting(progress.fed):  # else the journal stays
            progress = replace(progress, fed=self.executor.settle(progress.fed))
            self.saved.write(progress)
        for request in todo:
            self._purged(progress.fed, request)
        return progress, [told(self.ledger.request(one.id)) for one in todo]

    def _by_lot(self, progress: ForgetProgress) -> ForgetProgress:
        """Unlearn what the recipe drew: nobody asked, so there is no receipt."""
        while progress.events:
            progress, _, _ = self._forget(progress, progress.events[0], "")
            progress = replace(progress, events=progress.events[1:])
            self.saved.write(progress)
        return progress

    def _forget(
        self, progress: ForgetProgress, event: Event, request: str
    ) -> tuple[ForgetProgress, Unlearning, Forgotten]:
        self.executor.begin_request(progress.fed)
        with self.saved.journal(request):
            inner, done, forgot = forget(progress.fed, event, self.by or progress.fed.method)
        others = {name: fact for name, fact in progress.facts.items() if name != "metrics"}
        told = [*others.get("forgot", ()), {"request": request, **forgot}]
        facts = {**others, "forgot": told, "round": done.fed.now.state.round}
        return ForgetProgress(done.fed, facts, progress.events, request), inner, done

    def _unlearnt(self, progress: ForgetProgress, request: Request) -> ForgetProgress:
        """Let the model forget a request, unless it has."""
        steps = self.ledger.steps(request)
        if "unlearnt" in steps:
            return progress
        if progress.unlearnt == request.id:  # killed before it was noted
            self.ledger.done(request, "unlearnt", steps["unlearnt silos"])
            return progress
        try:
            found = look_up(self.executor, request, progress.fed)
            if found.outcome == ERASED:
                return self._erased(progress, request, found)
            if found.outcome == REPEATED:
                (user,) = request.records
                known = repeated(self.ledger, request, user)
                self.ledger.end(request, REPEATED, known.receipt)
            elif found.outcome == ALREADY_GONE and request.kind != "leave":
                self.ledger.end(request, ALREADY_GONE)
            else:
                self._note(request, found)
                of = {} if found.outcome == ALREADY_GONE else {"silos": found.stored}
                self.ledger.done(request, "unlearnt", {"of": of})
        except Refused as refused:
            self.ledger.end(request, REFUSED, code=refused.code, reason=str(refused))
        except RescindError as error:
            lasting = isinstance(error, ConsentError) and error.client is not None
            if isinstance(error, NeededError):
                lasting = False
                self.saved.drop_journal(request.id)  # its silo is asked anew
            outcome, code = (REFUSED, error.code) if lasting else (WAITING, "")
            log.warning("request %s: %s", request.id, outcome)
            self.ledger.end(request, outcome, code=code, reason=str(error))
        return progress

    def _note(self, request: Request, found: Found) -> None:
        facts = {"outcome": found.outcome, "silo": found.silo}
        self.ledger.done(request, "asked", facts)

    def _erased(self, progress: ForgetProgress, request: Request, found: Found) -> ForgetProgress:
        """Unlearn a request. The draft of its receipt is in the ledger before the model is saved:
        killed between the two, the model forgets again, from the journal."""
        before, event = progress.fed, event_of(request, found, progress.fed)
        self._note(request, found)
        progress, inner, done = self._forget(progress, event, request.id)
        draft = self._draft(request, found, before, inner, done)
        labels = labels_of(request, found, before.world.sizes.items)
        known = {"draft": draft.to_text(), "event": event_text(event, labels)}
        noted = {"of": {"silos": {**known, **(found.stored if found.rows else {})}}}
        self.ledger.done(request, "unlearnt silos", noted)
        self.saved.write(progress)
        self.ledger.done(request, "unlearnt", noted)
        return progress

    def _draft(
        self, request: Request, found: Found, before: Federation, inner: Unlearning, done: Forgotten
    ) -> Draft:
        """Return what the receipt will say. Nothing is audited here, so nothing else is shown."""
        event, after, cost = inner.event, done.fed, done.cost
        level, code = stated_level(before, done.unlearner)
        stated = Done(
            method=to_table(after.method), unlearning=type(done.unlearner).__name__,
            level=level,
            world_before=before.world.digest(), world_after=after.world.digest(),
            model_before=params.digest(before.now.state.public),
            model_after=params.digest(after.now.state.public),
            rounds=cost.rounds, client_rounds=cost.client_rounds, online=cost.online(inner),
            seconds=cost.wall,
        )  # fmt: skip
        return prepare(
            event, stated, inventory(after), [Finding("audit", "UNAUDITED", note=UNAUDITED)],
            request.key, records=len(inner.records),
            not_covered=[
                *([COUNTED] if isinstance(event, Withdraw) else ()),
                *([KEPT] if isinstance(event, Unshare) else ()),
            ],
            claims={**about_signer(), **({CLAIMED: code} if code else {})},
            bound_claims={CASE: one_line(request.case, "the case")} if request.case else {},
            labels=labels_of(request, found, before.world.sizes.items),
            code=version_of(after.method),
        )  # fmt: skip

    def _purged(self, fed: Federation, request: Request) -> None:
        """Let each silo remove the rest; when all have confirmed, sign the receipt."""
        state = self.ledger.steps(request)
        if "unlearnt" not in state:
            return
        self._confirm(fed, request, state)
        state, silos = self.ledger.steps(request), range(self.executor.line.silos)
        if away := [silo for silo in silos if f"purged {silo}" not in state]:
            reason = f"Not confirmed yet by {silo_names(away)}."
            self.ledger.end(request, WAITING, reason=reason)
            return
        outcome = state["asked"]["outcome"]
        if outcome == ALREADY_GONE:
            self.ledger.end(request, outcome)
            return
        known = state["unlearnt"]["of"]["silos"]
        rows, items = max(state[f"purged {silo}"].get("deleted", (0, 0)) for silo in silos)
        if rows and "rows" not in known:  # its silo was away when it was looked up
            known |= {"rows": rows, "items": items, "before": ""}
            self.ledger.done(request, "unlearnt", {"of": {"silos": known}})
        days = (f"silo {silo} on {state[f'purged {silo}']['day']}" for silo in silos)
        self.ledger.done(request, "purged", {"silos": ", ".join(days)})
        for step in (signed, logged):
            state = self.ledger.steps(request)
            if step.__name__ not in state:
                facts = step(self.ledger, request, state, log.info)
                self.ledger.done(request, step.__name__, facts)
        self.ledger.end(request, outcome, self.ledger.steps(request)["signed"]["receipt"])

    def _confirm(self, fed: Federation, request: Request, state: dict[str, Any]) -> None:
        """Note which silos have nothing of a request any more."""
        waiting = {*self.executor.waiting(fed)}
        silos = {*range(self.executor.line.silos)} - waiting
        silos = {silo for silo in silos if f"purged {silo}" not in state}
        deleted = dict[int, tuple[int, int]]()
        if request.kind != "unshare":  # devices keep what they lent
            facts = {**asked_facts(request), "at": state["asked"]["silo"]}
            letters = {s: letter(self.executor.run, "purge", Clock(0), facts) for s in silos}
            replies, _ = self.executor.line.ask(letters, needed=False)
            silos = {silo for silo, reply in replies.items() if not reply.facts["left"]}
            said = {silo: replies[silo].facts for silo in silos}
            deleted = {silo: (facts["rows"], facts["things"]) for silo, facts in said.items()}
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        for silo in sorted(silos):
            facts = {"day": day, "deleted": deleted.get(silo, (0, 0))}
            self.ledger.done(request, f"purged {silo}", facts)


def of_recipe(cell: Cell, fed: Federation, executor: FlowerExecutor) -> tuple[Event, ...]:
    """Return the requests of a recipe, to be unlearnt after training."""
    if cell.forget is None:
        return ()
    if cell.forget.draw is not None:
        return tuple(drawn(cell, fed))
    leave = (Words("leave", {str(user): None}).request("") for user in cell.forget.clients)
    return tuple(Withdraw(look_up(executor, one, fed).client) for one in leave)


def told(request: Request) -> dict[str, Any]:
    """Return what a request came to, for run.json: whoever gave the command reads it."""
    papers = papers_of(request.id)
    return {**request.facts(), "papers": str(papers) if papers.is_file() else ""}


def stated_level(before: Federation, unlearner: Unlearner) -> tuple[str, str]:
    """Return the level that may be stated, and the code from outside that alone claims more."""
    exact = vouched(unlearner) and before.past is not None and before.past.base is None
    code = claimed_by(before.method, unlearner) if exact else ""
    return "L3" if exact and not code else "L1", code
