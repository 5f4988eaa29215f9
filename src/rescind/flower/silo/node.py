"""One silo: an `InProcess` executor over the data it holds, answering the server's letters.

Whatever it is asked, a silo first catches up with the events it owes an acknowledgement for; only
then does it train, measure or answer. Moments are named by digests of how they came about, so that
a request that is repeated (a server that was killed) gives the same moment, not a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import InProcess, Vault
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.method import Method
from rescind.core.records import Arrive, Erase, Event, Records
from rescind.core.tasks import Question
from rescind.core.update import Sum
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import ConfigError, ConsentError, DataError, RescindError
from rescind.flower.silo.partition import as_many, never, part_of
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter, method_of, metric_of, pack_error, pack_sum
from rescind.flower.wire.payloads import unpacked_steps
from rescind.flower.wire.secure_aggregation import Masks, flat
from rescind.flower.wire.steps import HELD, PRIVATE, Step, moment_of
from rescind.storage.events import unpack_events
from rescind.storage.packing import drawer, under


class Source(Protocol):
    """Where a silo's data comes from."""

    def hold(self, seed: int) -> Holdings:
        """What its clients hold at first, in the numbering of everybody."""
        ...

    def block(self, number: int, seed: int) -> Arrive | None:
        """What comes to its clients with a block; None: the server's event brings it."""
        ...


@dataclass(frozen=True)
class Given:
    """A source that is there already: holdings, and the blocks that follow."""

    holdings: Holdings
    blocks: tuple[Arrive, ...] = ()

    def hold(self, seed: int) -> Holdings:
        """The holdings, whatever the seed."""
        return self.holdings

    def block(self, number: int, seed: int) -> Arrive | None:
        """Block 1 is the first that follows."""
        return self.blocks[number - 1] if number <= len(self.blocks) else None


@dataclass(frozen=True)
class Node:
    """A silo of clients: those whose number leaves remainder `silo` when divided by `silos`."""

    store: Store
    source: Source
    silo: int = 0
    silos: int = 1
    executor: InProcess = field(default_factory=InProcess)
    single_updates: bool = False
    """Allow methods that show the server single clients' updates."""
    questions: bool = False
    """Answer questions about single records (audits from the server's side)."""
    secure: bool = False
    """Send sums only if they are masked."""
    masks: Masks = field(default_factory=Masks)

    def answer(self, asked: Letter) -> Letter:
        """The reply to a letter. What a person can mend comes back as an error, not a crash."""
        verbs: dict[str, Callable[[Letter], Letter]] = {
            "meet": self._meet,
            "hold": self._hold,
            "next": self._next,
            "open": self._open,
            "lend": self._lend,
            "apply": self._apply,
            "train": self._train,
            "mask": self._mask,
            "measure": self._measure,
            "query": self._query,
            "keep": self._keep,
        }
        echo = {n: asked.facts.get(n) for n in ("run", "round", "epoch", "verb")}
        echo |= {"of": asked.digest, "silo": self.silo, "silos": self.silos}
        try:
            self._fence(asked)
            verb = verbs.get(str(asked.facts.get("verb")))
            if verb is None:
                raise ConfigError(f"a silo cannot '{echo['verb']}': use {', '.join(verbs)}.")
            told = verb(asked)
            return Letter({**echo, **told.facts}, told.tensors)
        except RescindError as error:
            return Letter({**echo, **pack_error(error)}, {})

    def _fence(self, asked: Letter) -> None:
        """Refuse a server that has gone back behind something that was forgotten for good."""
        if asked.facts.get("verb") in ("meet", "next"):  # whatever the model: nothing is computed
            return
        fence = int(self.store.notes.get("epoch", 0))
        if self.store.notes.get("run") == asked.facts.get("run") and asked.facts["epoch"] < fence:
            raise ConsentError(
                f"the server's model is of epoch {asked.facts['epoch']}, but something was "
                f"forgotten here since (epoch {fence}). Go on from a later checkpoint."
            )

    # -- moments -----------------------------------------------------------------------------------

    def _mine(self, clients: int) -> Tensor:
        """Which clients live here. [clients] bool"""
        return torch.arange(clients) % self.silos == self.silo

    def _caught_up(self, asked: Letter) -> tuple[int, int, Vault]:
        """The moments a letter is about, after the events this silo had not heard of."""
        held, private = int(asked.facts["held"]), int(asked.facts["private"])
        if not self._knows(held, private):
            self._take_steps(asked)
        return held, private, self.store.vault(held, private)

    def _knows(self, held: int, private: int) -> bool:
        return self.store.knows(HELD, held) and self.store.knows(PRIVATE, private)

    def _take_steps(self, asked: Letter) -> None:
        """Make the moments that events lead to. Private ones first: holdings say it is done."""
        for step in unpacked_steps("owed", asked.facts, asked.tensors, self.silo):
            held, private = step.after
            if not self._knows(held, private):
                vault = self._applied(asked, step, self.store.vault(step.held, step.private))
                self.store.save_private(private, vault, self._mine(vault.holdings.clients))
                self.store.save_held(held, vault.holdings)

    def _applied(self, asked: Letter, step: Step, vault: Vault) -> Vault:
        method, clock = method_of(asked.facts["method"]), Clock(asked.facts["seed"])
        event = step.event
        if isinstance(event, Arrive):
            own = self.source.block(vault.holdings.now + 1, clock.seed)
            event = self._part(event if own is None else own)
        vault = self.executor.apply(method, step.public, event, vault, clock)
        if isinstance(event, Erase):  # in process, `forget` does this itself
            noted = method.client_erased(vault.private, event.records, vault.holdings.now)
            vault = replace(vault, private=noted)
        members = vault.holdings.members & self._mine(vault.holdings.clients)
        return replace(vault, holdings=replace(vault.holdings, members=members))

    def _part(self, block: Arrive) -> Arrive:
        """A block without what belongs to clients of other silos."""
        mine = self._mine(block.clients)[block.records.client]
        return replace(block, records=block.records[mine], split=block.split[mine])

    def _state(self, held: int, private: int, holdings: Holdings) -> Letter:
        """What the server may know after a request: names of moments, and two bits per client."""
        ids = {"available": holdings.available, "keeps": holdings.keeps, "member": holdings.members}
        tensors = {name: flags.nonzero().squeeze(1) for name, flags in ids.items()}
        graph = holdings.graph
        facts = {
            "held": held, "private": private, "clients": holdings.clients, "items": holdings.items,
            "task": holdings.task, "block": holdings.now,
            "validated": len(holdings.holders("valid")),
            "features": graph.features if graph else 0, "classes": graph.classes if graph else 0,
        }  # fmt: skip
        return Letter(facts, under("said", tensors))

    # -- verbs -------------------------------------------------------------------------------------

    def _meet(self, asked: Letter) -> Letter:
        """Say only which silo this is, as every reply does: the run goes on with what is here."""
        return Letter({}, {})

    def _hold(self, asked: Letter) -> Letter:
        """Take in the data, and say how large the world is as seen from here."""
        holdings = part_of(self.source.hold(int(asked.facts["seed"])), self.silo, self.silos)
        moment = moment_of(holdings.digest(), HELD)
        if not self.store.knows(HELD, moment):
            self.store.save_held(moment, holdings)
        self.store.note(run=str(asked.facts["run"]), epoch=int(asked.facts["epoch"]))
        return self._state(moment, 0, holdings)

    def _next(self, asked: Letter) -> Letter:
        """How large a block to come is, and who here trains on it; perhaps there is none."""
        block = self.source.block(int(asked.facts["block"]), int(asked.facts["seed"]))
        if block is None:
            return Letter({"there": False}, {})
        mine = self._part(block)
        trains = torch.unique(mine.records.client[mine.split == TRAIN])
        facts = {"there": True, "clients": block.clients, "items": block.items}
        return Letter(facts, {"trains": trains})

    def _open(self, asked: Letter) -> Letter:
        """First private values, perhaps for a world in which some records never were."""
        held = int(asked.facts["held"])
        if not self.store.knows(HELD, held):
            self._take_steps(asked)
        holdings = self.store.held(held)
        for event in unpack_events("never", asked.tensors, asked.facts):
            holdings = never(holdings, event)
            held = moment_of(f"{held}/never/{event.digest()}", HELD)
        # The world may have more clients than were known when this silo began.
        holdings = as_many(holdings, int(asked.facts["clients"]), int(asked.facts["items"]))
        method, clock = method_of(asked.facts["method"]), Clock(asked.facts["seed"])
        vault = self.executor.open(method, holdings, clock)
        held = moment_of(f"{held}/{holdings.clients}/{holdings.items}", HELD)
        private = moment_of(asked.digest, PRIVATE)
        self.store.save_held(held, vault.holdings)
        self.store.save_private(private, vault, self._mine(holdings.clients))
        return self._state(held, private, vault.holdings)

    def _lend(self, asked: Letter) -> Letter:
        """What simulated people here lend: only that leaves, since the server gets a copy."""
        held, private, vault = self._caught_up(asked)
        clock, (full, part, none) = Clock(asked.facts["seed"]), asked.facts["ratio"]
        groups = draw_groups(int(asked.facts["clients"]), clock, (full, part, none))
        loan = draw_share(vault.holdings, groups, clock, float(asked.facts["part"])).records
        told = self._state(held, private, vault.holdings)
        columns = {"client": loan.client, "item": loan.item, "time": loan.time}
        return Letter(told.facts, {**told.tensors, **under("loan", columns)})

    def _apply(self, asked: Letter) -> Letter:
        """Nothing but catching up."""
        held, private, vault = self._caught_up(asked)
        return self._state(held, private, vault.holdings)

    def _train(self, asked: Letter) -> Letter:
        """One round of the clients asked for; their sums, by role."""
        masked = bool(asked.facts.get("masked"))
        if self.secure and not masked:
            raise ConsentError(
                f"silo {self.silo} sends sums only if they are masked. Run with --secure."
            )
        method = self._allowed(method_of(asked.facts["method"]))
        held, private, vault = self._caught_up(asked)
        clock = Clock(asked.facts["seed"]).at(int(asked.facts["round"]))
        ids, public = asked.tensors["ids"], drawer("public", asked.tensors)
        letters = drawer("mail", asked.tensors)
        mail = Mail(letters.pop("ids"), letters) if letters else None
        roles = {int(client): role for client, role in asked.facts["roles"]} or None
        self._own(ids, vault)
        self._not_alone(method, ids, vault, roles)
        sums, after = self.executor.train(method, public, mail, vault, ids, roles, clock)
        moment = moment_of(asked.digest, PRIVATE)
        self.store.save_private(moment, after, self._mine(after.holdings.clients))
        self.store.save_model(method, public, held, moment)
        if "keep" in asked.facts:
            self.store.keep_only(PRIVATE, {*asked.facts["keep"], private, moment})
        if "keep_held" in asked.facts:
            self.store.keep_only(HELD, {*asked.facts["keep_held"], held})
        told = self._state(held, moment, after.holdings)
        return self._hidden(asked, told, sums) if masked else _with_sums(told, sums)

    def _hidden(self, asked: Letter, told: Letter, sums: Mapping[str, Sum]) -> Letter:
        """A reply whose sum only the server's total shows; who is in it is no secret."""
        ((role, total),) = sums.items()
        vectors, spec = flat(total)
        rest = {"up": total.up, "down": total.down, "refused": dict(total.refused)}
        facts = {**told.facts, **rest, "spec": spec, "role": role}
        sent = self.masks.stage(self.silo, asked.tensors, vectors)
        return Letter(facts, {**told.tensors, "who": total.who, **sent})

    def _mask(self, asked: Letter) -> Letter:
        """A stage of masking that carries keys and shares of keys."""
        return Letter({}, self.masks.stage(self.silo, asked.tensors))

    def _measure(self, asked: Letter) -> Letter:
        """Totals over the clients asked for."""
        held, private, vault = self._caught_up(asked)
        method, metric = method_of(asked.facts["method"]), metric_of(asked.facts["metric"])
        public, ids = drawer("public", asked.tensors), asked.tensors["ids"]
        self._own(ids, vault)
        total = self.executor.measure(method, public, vault, ids, metric)
        self.store.save_model(method, public, held, private)
        return _with_sums(self._state(held, private, vault.holdings), {"measure": total})

    def _query(self, asked: Letter) -> Letter:
        """Answers about single records, where the owner of the silo allows it."""
        if not self.questions:
            raise ConsentError(
                f"silo {self.silo} does not answer questions about single records. Recommend on "
                f"the silo itself (rescind flower recommend), or join with --questions."
            )
        held, private, vault = self._caught_up(asked)
        method, public = method_of(asked.facts["method"]), drawer("public", asked.tensors)
        records = Records(**drawer("records", asked.tensors))
        self._own(records.client, vault)
        ask = cast(Question, asked.facts["ask"])
        found = self.executor.query(method, public, vault, records, ask)
        told = self._state(held, private, vault.holdings)
        return Letter(told.facts, {**told.tensors, "answer": found})

    def _keep(self, asked: Letter) -> Letter:
        """Remove every moment but those named: from now on the rest is forgotten for good.

        Recommendations here are made from what stays, so the model of now is kept beside it.
        """
        held, private, vault = self._caught_up(asked)
        for event in unpack_events("never", asked.tensors, asked.facts):
            self._clean_base(asked, event)
        public = drawer("public", asked.tensors)
        self.store.save_model(method_of(asked.facts["method"]), public, held, private)
        self.store.keep_only(HELD, {*asked.facts["keep_held"], held})
        if "keep_private" in asked.facts:
            self.store.keep_only(PRIVATE, {*asked.facts["keep_private"], private})
        self.store.note(epoch=int(asked.facts["epoch"]))
        return self._state(held, private, vault.holdings)

    def _clean_base(self, asked: Letter, event: Event) -> None:
        """Take records out of the moments that stay, too: of the devices' first holdings."""
        for moment in asked.facts["keep_held"]:
            if self.store.knows(HELD, moment):
                self.store.save_held(moment, never(self.store.held(moment), event))

    def _allowed(self, method: Method) -> Method:
        if method.individual and not self.single_updates:
            raise ConsentError(
                f"{type(method).__name__} shows the server what single clients send; silo "
                f"{self.silo} sends sums only. Choose another method, or join with "
                f"--single-updates."
            )
        return method

    def _not_alone(
        self, method: Method, ids: Tensor, vault: Vault, roles: Mapping[int, str] | None
    ) -> None:
        """A sum of one among many is a single update: refused, unless the method is about one.

        Whoever leaves has a role alone; from an additive learner one person's part is subtracted.
        """
        many, demanded = int(vault.holdings.members.sum()), roles or method.additive
        if len(ids) == 1 and many > 1 and not (demanded or self.single_updates):
            raise ConsentError(
                f"silo {self.silo} was asked for one of its {many} people alone, whose sum would "
                f"be a single update. Draw more people a round, or join with --single-updates."
            )

    def _own(self, ids: Tensor, vault: Vault) -> None:
        """Only clients of this silo can be asked for."""
        inside = (ids >= 0) & (ids < vault.holdings.clients) & (ids % self.silos == self.silo)
        if not bool(inside.all()):
            raise DataError(
                f"silo {self.silo} of {self.silos} was asked for client {int(ids[~inside][0])}, "
                f"who does not live here."
            )


def _with_sums(told: Letter, sums: Mapping[str, Sum]) -> Letter:
    """A reply with sums by role in it."""
    facts, tensors = dict(told.facts), dict(told.tensors)
    facts["sums"] = {}
    for number, (role, total) in enumerate(sums.items()):
        told_sum, packed = pack_sum(total)
        facts["sums"][role] = {**told_sum, "place": number}
        tensors |= under(f"sum{number}", packed)
    return Letter(facts, tensors)
