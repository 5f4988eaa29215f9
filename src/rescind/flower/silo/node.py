"""One silo: answers the server's requests with an `InProcess` executor over its own data.

Before it trains, measures or answers, a silo applies all events that it has not acknowledged.
The id of a saved state (a moment, wire/steps.py) is a digest of how it was computed, so a request
that a restarted server repeats gives the same moment, not a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import InProcess, Vault
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Arrive, Erase, Event, Records, Withdraw
from rescind.core.tasks import Question
from rescind.core.update import Sum
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import ConsentError, DataError, RescindError
from rescind.flower.silo.intake import Intake, Source
from rescind.flower.silo.lines import signed_lines
from rescind.flower.silo.minimums import (
    check_masked,
    check_measured,
    check_method,
    check_training,
)
from rescind.flower.silo.partition import grow, heaviest, leave_out
from rescind.flower.silo.secure_sum import Masks
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import (
    SENDER,
    Letter,
    method_of,
    metric_of,
    pack_error,
)
from rescind.flower.wire.payloads import unpacked_letters, unpacked_steps, with_sums
from rescind.flower.wire.schema import request_flaw
from rescind.flower.wire.secure_aggregation import SECURE, VECTOR
from rescind.flower.wire.serde import read, written
from rescind.flower.wire.steps import HELD, PRIVATE, Step, moment_of, opened
from rescind.storage.events import unpack_events
from rescind.storage.packing import Facts, drawer, under

log = logging.getLogger(__name__)

REMEMBERED = 100
"""Number of missed letters whose answers a silo remembers."""


@dataclass(frozen=True)
class Node:
    """A silo, with all clients c for which c mod silos = silo."""

    store: Store
    source: Source
    silo: int = 0
    silos: int = 1
    executor: InProcess = field(default_factory=InProcess)
    single_updates: bool = False
    """Allow methods that send updates of single clients to the server."""
    questions: bool = False
    """Answer the server's questions about single records (for audits)."""
    secure: bool = False
    """Send sums only if they are masked."""
    masks: Masks = field(default_factory=Masks)

    def answer_bytes(self, data: bytes) -> bytes:
        """Return the reply to a message, both as bytes. Never raises: see `answer`."""
        try:
            reply = self.answer(Letter.from_records(read(data)))
        except Exception as error:  # not a letter at all
            reply = self._failed({}, error)
        return written(reply.to_records())

    def answer(self, request: Letter) -> Letter:
        """Return the reply to a request. An error becomes a reply with the error.

        A silo serves on after any request, also one that no check foresaw.
        """
        verbs: dict[str, Callable[[Letter], Letter]] = {
            "meet": self._meet, "hold": self._hold, "next": self._next, "open": self._open,
            "lend": self._lend, "apply": self._apply, "train": self._train, "mask": self._mask,
            "measure": self._measure, "query": self._query, "keep": self._keep,
            "lines": self._lines, "find": self._intake.find, "purge": self._intake.purge,
        }  # fmt: skip
        echo = {n: request.facts.get(n) for n in ("run", "round", "epoch", "verb")}
        try:
            echo |= {"of": request.digest, "silo": self.silo, "silos": self.silos}
            if flaw := request_flaw(request):
                raise DataError(f"a request is not as expected: {flaw}. {SENDER}")
            self._check_epoch(request)
            self._answer_missed(request)
            reply = verbs[str(request.facts["verb"])](request)
            return Letter({**echo, **reply.facts}, reply.tensors)
        except Exception as error:
            return self._failed(echo, error)

    def _answer_missed(self, request: Letter) -> None:
        """Do first what the silo missed: start again without records, remove old states."""
        for letter in unpacked_letters(request.facts, request.tensors):
            done = [str(digest) for digest in self.store.notes.get("done", ())]
            if letter.digest in done:  # only the reply was lost
                continue
            if flaw := request_flaw(letter):
                raise DataError(f"a request is not as expected: {flaw}. {SENDER}")
            self._answer_missed(letter)
            (self._open if letter.facts["verb"] == "open" else self._keep)(letter)
            self.store.note(done=[*done, letter.digest][-REMEMBERED:])

    def _failed(self, echo: Facts, error: Exception) -> Letter:
        """Build the reply that states an error."""
        if not isinstance(error, RescindError):
            log.warning("a request was not answered: %r", error)
            error = DataError(f"silo {self.silo} could not answer ({error!r}). {SENDER}")
        about = {"silo": self.silo, "silos": self.silos}
        return Letter({**echo, **about, **pack_error(error)}, {})

    def _check_epoch(self, request: Letter) -> None:
        """Refuse a model from before something was forgotten permanently."""
        if request.facts.get("verb") in (
            "meet",
            "next",
            "find",
            "purge",
            "hold",
        ):  # they use no model
            return
        epoch = int(self.store.notes.get("epoch", 0))
        if (
            self.store.notes.get("run") == request.facts.get("run")
            and request.facts["epoch"] < epoch
        ):
            raise ConsentError(
                f"the server's model is of epoch {request.facts['epoch']}, but something was "
                f"forgotten here since (epoch {epoch}). Resume from a later checkpoint."
            )

    @property
    def _intake(self) -> Intake:
        return Intake(self.store, self.source, self.silo, self.silos)

    # -- saved states ------------------------------------------------------------------------------

    def _mine(self, clients: int) -> Tensor:
        """Return which clients are on this silo. [clients] bool"""
        return torch.arange(clients) % self.silos == self.silo

    def _names(self, held: int, holdings: Holdings) -> tuple[str, ...]:
        """Return the key of the person with each number; other silos may have higher numbers."""
        return self._intake.numbering(held).with_room(holdings.clients, holdings.items).users

    def _catch_up(self, request: Letter) -> tuple[int, int, Vault]:
        """Apply pending events. Return the moments of the request (held, private) and the vault."""
        held, private = int(request.facts["held"]), int(request.facts["private"])
        if not self._has(held, private):
            self._take_steps(request)
        return held, private, self.store.vault(held, private)

    def _has(self, held: int, private: int) -> bool:
        return self.store.has(HELD, held) and self.store.has(PRIVATE, private)

    def _take_steps(self, request: Letter) -> None:
        """Compute and save the moments of pending steps. Holdings are last: they mark the end."""
        for step in unpacked_steps("owed", request.facts, request.tensors, self.silo):
            held, private = step.after
            if not self._has(held, private):
                before = self.store.vault(step.held, step.private)
                vault, numbering = self._take_step(request, step, before)
                self.store.save_private(private, vault, self._mine(vault.holdings.clients))
                self.store.save_held(held, vault.holdings, numbering)

    def _take_step(self, request: Letter, step: Step, vault: Vault) -> tuple[Vault, str]:
        """Return the vault after a step, and the name of its numbering."""
        method, clock = method_of(request.facts["method"]), Clock(request.facts["seed"])
        event, numbering = step.event, self.store.numbering_of(step.held)
        if isinstance(event, Arrive):
            now = vault.holdings.now
            event, numbering = self._intake.arriving(step.held, event, now, clock.seed)
        before = vault.holdings
        vault = self.executor.apply(method, step.public, event, vault, clock)
        if isinstance(event, Erase | Withdraw):  # after it was checked, and before it is saved
            self._intake.remember(step.held, before, event)
        if isinstance(event, Erase):  # in process, `forget` does this
            noted = method.client_erased(vault.private, event.records, vault.holdings.now)
            vault = replace(vault, private=noted)
        members = vault.holdings.members & self._mine(vault.holdings.clients)
        return replace(vault, holdings=replace(vault.holdings, members=members)), numbering

    def _state(self, held: int, private: int, holdings: Holdings) -> Letter:
        """Build the reply that every request gets: moments, sizes, and flags of the clients."""
        ids = {"available": holdings.available, "keeps": holdings.keeps, "member": holdings.members}
        tensors = {name: flags.nonzero().squeeze(1) for name, flags in ids.items()}
        graph = holdings.graph
        facts = {
            "held": held, "private": private, "clients": holdings.clients, "items": holdings.items,
            "task": holdings.task, "block": holdings.now,
            "validated": len(holdings.holders("valid")),
            "heaviest": heaviest(holdings),
            "features": graph.features if graph else 0, "classes": graph.classes if graph else 0,
        }  # fmt: skip
        return Letter(facts, under("said", tensors))

    # -- verbs -------------------------------------------------------------------------------------

    def _meet(self, request: Letter) -> Letter:
        """Reply with the silo's number, and what its owner allows. Nothing is loaded."""
        return Letter({"single_updates": self.single_updates}, {})

    def _hold(self, request: Letter) -> Letter:
        """Load the data. Reply with its sizes, and what tells its table from others."""
        holdings, numbering, table = self._intake.first(int(request.facts["seed"]))
        moment = moment_of(f"{holdings.digest()}/{numbering.digest}", HELD)
        name = self.store.save_numbering(numbering)
        if not self.store.has(HELD, moment):
            self.store.save_held(moment, holdings, name)
        # A run of the same name goes on counting, so that models from before stay refused.
        run, notes = str(request.facts["run"]), self.store.notes
        epoch = int(notes.get("epoch", 0)) if notes.get("run") == run else 0
        self.store.note(run=run, epoch=epoch)
        reply = self._state(moment, 0, holdings)
        said = {"past_epoch": epoch, "table": table, "single_updates": self.single_updates}
        return Letter({**reply.facts, **said}, reply.tensors)

    def _next(self, request: Letter) -> Letter:
        """Reply with the sizes of the next block and its training clients, if there is one."""
        found = self._intake.block(int(request.facts["block"]), int(request.facts["seed"]))
        if found is None:
            return Letter({"there": False}, {})
        mine = found[0]
        trains = torch.unique(mine.records.client[mine.split == TRAIN])
        facts = {"there": True, "clients": mine.clients, "items": mine.items}
        return Letter(facts, {"trains": trains})

    def _open(self, request: Letter) -> Letter:
        """Create initial private values, without the records that are to be left out."""
        held = int(request.facts["held"])
        if not self.store.has(HELD, held):
            self._take_steps(request)
        holdings, left_out = self.store.held(held), list[Event]()
        numbering = self.store.numbering_of(held)
        for event in unpack_events("never", request.tensors, request.facts):
            self._intake.remember(held, holdings, event)
            holdings = leave_out(holdings, event)
            left_out.append(event)
        # Other silos may have clients and items with higher numbers.
        holdings = grow(holdings, int(request.facts["clients"]), int(request.facts["items"]))
        method, clock = method_of(request.facts["method"]), Clock(request.facts["seed"])
        vault = self.executor.open(method, holdings, clock)
        held = opened(held, left_out, holdings.clients, holdings.items)
        private = moment_of(request.digest, PRIVATE)
        self.store.save_held(held, vault.holdings, numbering)
        self.store.save_private(private, vault, self._mine(holdings.clients))
        return self._state(held, private, vault.holdings)

    def _lend(self, request: Letter) -> Letter:
        """Reply with the records that simulated clients lend. No other records leave the silo."""
        held, private, vault = self._catch_up(request)
        clock, (full, part, none) = Clock(request.facts["seed"]), request.facts["ratio"]
        groups = draw_groups(int(request.facts["clients"]), clock, (full, part, none))
        loan = draw_share(vault.holdings, groups, clock, float(request.facts["part"])).records
        reply = self._state(held, private, vault.holdings)
        columns = {"client": loan.client, "item": loan.item, "time": loan.time}
        return Letter(reply.facts, {**reply.tensors, **under("loan", columns)})

    def _apply(self, request: Letter) -> Letter:
        """Apply pending events."""
        held, private, vault = self._catch_up(request)
        return self._state(held, private, vault.holdings)

    def _train(self, request: Letter) -> Letter:
        """Run one round of the clients asked for. Reply with their sums by role."""
        masked = SECURE in request.facts
        if self.secure and not masked:
            raise ConsentError(f"silo {self.silo} sends masked sums only. Run with --secure.")
        method = method_of(request.facts["method"])
        if not self.single_updates:
            check_method(self.silo, method)
        held, private, vault = self._catch_up(request)
        clock = Clock(request.facts["seed"]).at(int(request.facts["round"]))
        ids, public = request.tensors["ids"], drawer("public", request.tensors)
        values = drawer("mail", request.tensors)
        mail = Mail(values.pop("ids"), values) if values else None
        roles = {int(client): role for client, role in request.facts["roles"]} or None
        self._check_own(ids, vault)
        if not self.single_updates:
            check_training(self.silo, method, ids, vault.holdings, roles)
        if not self.single_updates and masked:
            folder, names = self.store.folder, self._names(held, vault.holdings)
            check_masked(folder, self.silo, method, ids, vault.holdings, names)
        sums, after = self.executor.train(method, public, mail, vault, ids, roles, clock)
        moment = moment_of(request.digest, PRIVATE)
        self.store.save_private(moment, after, self._mine(after.holdings.clients))
        self.store.save_model(method, public, held, moment)
        if "keep" in request.facts:
            self.store.keep_only(PRIVATE, {*request.facts["keep"], private, moment})
        if "keep_held" in request.facts:
            self.store.keep_only(HELD, {*request.facts["keep_held"], held})
        reply = self._state(held, moment, after.holdings)
        return self._with_masked(request, reply, sums) if masked else with_sums(reply, sums)

    def _with_masked(self, request: Letter, reply: Letter, sums: Mapping[str, Sum]) -> Letter:
        """Add a masked sum to a reply. The clients in it are not secret."""
        if len(sums) != 1:
            raise ConsentError(f"silo {self.silo} masks one sum in a round, not {sorted(sums)}.")
        ((role, total),) = sums.items()
        rest = {"up": total.up, "down": total.down, "refused": dict(total.refused)}
        spec, vector = self.masks.mask(self.silo, request, total)
        facts = {**reply.facts, **rest, "spec": spec, "role": role}
        return Letter(facts, {**reply.tensors, "who": total.who, VECTOR: vector})

    def _mask(self, request: Letter) -> Letter:
        """Answer a stage of a secure sum that exchanges keys or shares of secrets."""
        answer = self.masks.answer(self.store, self.silo, self.silos, request)
        return Letter({SECURE: answer}, {})

    def _measure(self, request: Letter) -> Letter:
        """Reply with totals over the clients asked for."""
        held, private, vault = self._catch_up(request)
        method, metric = method_of(request.facts["method"]), metric_of(request.facts["metric"])
        public, ids = drawer("public", request.tensors), request.tensors["ids"]
        self._check_own(ids, vault)
        if not self.single_updates:
            folder, holdings = self.store.folder, vault.holdings
            names = self._names(held, holdings)
            check_measured(folder, self.silo, ids, holdings, metric.split, metric.block, names)
        total = self.executor.measure(method, public, vault, ids, metric)
        self.store.save_model(method, public, held, private)
        return with_sums(self._state(held, private, vault.holdings), {"measure": total})

    def _query(self, request: Letter) -> Letter:
        """Reply with answers about single records, if the silo's owner allows it."""
        if not self.questions:
            raise ConsentError(
                f"silo {self.silo} does not answer questions about single records. Recommend on "
                f"the silo itself (rescind flower recommend), or join with --questions."
            )
        held, private, vault = self._catch_up(request)
        method, public = method_of(request.facts["method"]), drawer("public", request.tensors)
        records = Records(**drawer("records", request.tensors))
        self._check_own(records.client, vault)
        ask = cast(Question, request.facts["ask"])
        answer = self.executor.query(method, public, vault, records, ask)
        reply = self._state(held, private, vault.holdings)
        return Letter(reply.facts, {**reply.tensors, "answer": answer})

    def _keep(self, request: Letter) -> Letter:
        """Remove permanently every moment that the request does not name.

        The current model is saved with them, because the silo recommends from what is left.
        """
        held, private, vault = self._catch_up(request)
        for event in unpack_events("never", request.tensors, request.facts):
            self._clean_base(request, event)
        public = drawer("public", request.tensors)
        self.store.save_model(method_of(request.facts["method"]), public, held, private)
        self.store.keep_only(HELD, {*request.facts["keep_held"], held})
        if "keep_private" in request.facts:
            self.store.keep_only(PRIVATE, {*request.facts["keep_private"], private})
        self.store.note(epoch=int(request.facts["epoch"]))
        return self._state(held, private, vault.holdings)

    def _lines(self, request: Letter) -> Letter:
        """Reply with a hidden line for what each device has in the sum, signed by this silo."""
        held, private, vault = self._catch_up(request)
        facts, tensors = signed_lines(
            request, vault, self.store, None if self.secure else self.masks.identity
        )
        reply = self._state(held, private, vault.holdings)
        return Letter({**reply.facts, **facts}, {**reply.tensors, **tensors})

    def _clean_base(self, request: Letter, event: Event) -> None:
        """Remove the records of an event from the holdings that are kept (the initial ones)."""
        for moment in request.facts["keep_held"]:
            if self.store.has(HELD, moment):
                left = leave_out(self.store.held(moment), event)
                self.store.save_held(moment, left, self.store.numbering_of(moment))

    def _check_own(self, ids: Tensor, vault: Vault) -> None:
        """Check that all clients are on this silo."""
        inside = (ids >= 0) & (ids < vault.holdings.clients) & (ids % self.silos == self.silo)
        if not bool(inside.all()):
            raise DataError(
                f"silo {self.silo} of {self.silos} was asked for client {int(ids[~inside][0])}, "
                f"which is not on this silo. Give every silo its own --silo number."
            )
