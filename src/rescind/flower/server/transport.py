"""The line to the silos: who is there, letters out, replies in, and what is not accepted.

It drives Flower's grid itself: every exchange has a deadline, a reply must name the request it
answers, and whatever comes after the deadline is refused and counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from rescind.errors import DataError, RescindError
from rescind.flower.server.journal import Answers, Journal
from rescind.flower.wire.messages import Letter, unpack_error
from rescind.storage.packing import Facts

log = logging.getLogger(__name__)

UNKNOWN, LATE, ROUND = "node not known", "late", "wrong round"
STALE, REPLAYED, SILENT = "computed before something was forgotten", "replayed", "no answer in time"
UNREADABLE, FAILED = "cannot be read", "node failed"

KINDS = {"train": "train", "measure": "evaluate"}
"""Flower's kind of message for a verb; everything else is a query."""
ROUNDS = ("train", "mask")
"""Verbs of a round: a silo that fails at them is left out of it."""


@dataclass
class Transport:
    """The silos that are there, by number, and everything that was counted on the way."""

    grid: Grid
    silos: int
    deadline: float = 300.0
    """Seconds a silo has for an answer; a round closes then with those who answered."""
    pause: float = 0.2
    """Seconds between two looks for replies."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Silo -> Flower's number of its node."""
    refused: Counter[str] = field(default_factory=Counter)
    """How many replies were not accepted, by reason."""
    letters: int = 0
    """Messages sent."""
    pending: dict[str, Facts] = field(default_factory=dict)
    """Letters without a reply, by Flower's number of the message."""
    unknown_nodes: set[int] = field(default_factory=set)
    """Nodes that are no silo of ours."""
    standby_nodes: dict[int, int] = field(default_factory=dict)
    """Silo -> a second node that says it is this silo: perhaps the first was killed."""
    first_message: Letter | None = None
    """The first letter, for nodes that come later."""
    journal: Journal | None = None
    """Where answers are kept, and taken from if a server that was killed asks again."""

    def wait(self, ask: Letter, seconds: float) -> dict[int, Letter]:
        """Every silo's answer to a first letter, once all are there. Nodes come when they come."""
        self.first_message, until = ask, time.monotonic() + seconds
        for known in (self.nodes, self.unknown_nodes, self.standby_nodes):
            known.clear()  # everybody is asked, also who answered another run
        heard: dict[int, Letter] = {}
        while True:
            heard |= self._greet(ask, {*self.grid.get_node_ids()})
            if len(heard) == self.silos:
                return heard
            if time.monotonic() >= until:
                missing = [s for s in range(self.silos) if s not in heard]
                raise DataError(
                    f"{len(heard)} of {self.silos} silos joined within {seconds:g} s; silos "
                    f"{missing} are missing. Start them (rescind flower join), or wait longer."
                )
            time.sleep(self.pause)

    def _greet(self, ask: Letter, present: set[int]) -> dict[int, Letter]:
        """Ask nodes that nobody has met yet which silo they are."""
        new = present - {*self.nodes.values()} - self.unknown_nodes
        heard: dict[int, Letter] = {}
        for node, reply in self._exchange({node: ask for node in sorted(new)}).items():
            if "error" in reply.facts:
                raise unpack_error(reply.facts)
            silo, silos = int(reply.facts.get("silo", -1)), reply.facts.get("silos")
            ours = silos == self.silos and 0 <= silo < self.silos
            if not ours or self.nodes.get(silo, -1) in present:
                self.unknown_nodes.add(node)
                self.refused[UNKNOWN] += 1
                if ours:
                    self.standby_nodes[silo] = node
                log.warning("a node that says it is silo %s of %s is not needed", silo, silos)
                continue
            self.nodes[silo] = node
            heard[silo] = reply
        return heard

    def ask(self, letters: Mapping[int, Letter]) -> Answers:
        """Replies by silo, and for every silo without one the reason.

        An error that a person can mend is raised, unless the letter is about a round: there, a
        silo that fails is left out.
        """
        found = self.journal.read(letters) if self.journal else None
        if found is not None:
            self.letters += len(letters)
        else:
            found = self._asked(letters)
            if self.journal is not None:
                self.journal.write(letters, found)
        for reason in found[1].values():
            self.refused[reason.partition(":")[0]] += 1
        return found

    def _asked(self, letters: Mapping[int, Letter]) -> Answers:
        """`ask`, of the silos themselves."""
        present = {*self.grid.get_node_ids()}
        if self.first_message is not None:
            self._greet(self.first_message, present)
        to, why = {}, {}
        for silo, letter in letters.items():
            if self.nodes.get(silo, -1) in present:
                to[self.nodes[silo]] = letter
            else:
                why[silo] = SILENT
        found = self._exchange(to, why)
        silo_of = {node: silo for silo, node in self.nodes.items()}
        replies = {}
        for node, reply in found.items():
            silo = silo_of[node]
            if "error" not in reply.facts:
                replies[silo] = reply
            elif reply.facts["verb"] in ROUNDS:
                why[silo] = f"{FAILED}: {reply.facts['why']}"
            else:
                raise unpack_error(reply.facts)
        for silo in letters:
            if silo not in replies:
                why.setdefault(silo, SILENT)
                if (
                    silo in self.standby_nodes
                ):  # who came second under its number is asked next time
                    self.nodes[silo] = self.standby_nodes.pop(silo)
        return dict(sorted(replies.items())), why

    def _exchange(
        self, letters: Mapping[int, Letter], why: dict[int, str] | None = None
    ) -> dict[int, Letter]:
        """Send, then look for replies until all are there or the deadline has come."""
        if not letters:
            return {}
        waiting: dict[str, tuple[int, Letter]] = {}
        messages, order = [], list(letters.items())
        for node, letter in order:
            verb = str(letter.facts["verb"])
            messages.append(
                Message(
                    letter.to_records(), node, KINDS.get(verb, "query"),
                    ttl=self.deadline + 60, group_id=str(letter.facts["round"]),
                )
            )  # fmt: skip
        self.letters += len(messages)
        sent = list(self.grid.push_messages(messages))
        for name, (node, letter) in zip(sent, order, strict=True):
            waiting[name] = (node, letter)
        until, replies = time.monotonic() + self.deadline, {}
        silo_of = {node: silo for silo, node in self.nodes.items()}
        while waiting:
            for message in self._pulled([*waiting, *self.pending]):
                name = message.metadata.reply_to_message_id
                if name not in waiting:
                    self._refuse(REPLAYED if self.pending.pop(name, None) is None else LATE)
                    continue
                node, letter = waiting.pop(name)
                reply, reason = _read(message, node, letter)
                if reply is not None:
                    replies[node] = reply
                elif why is not None and node in silo_of:
                    why[silo_of[node]] = str(reason)
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(self.pause)
        self.pending |= {name: letter.facts for name, (_, letter) in waiting.items()}
        return replies

    def _pulled(self, names: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages([name for name in names if name])

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1


def _read(message: Message, node: int, letter: Letter) -> tuple[Letter | None, str | None]:
    """A reply if it answers this very request; else the reason why it is refused."""
    if message.has_error():
        return None, f"{FAILED}: {message.error.reason}"
    if message.metadata.src_node_id != node:
        return None, UNKNOWN
    try:
        reply = Letter.from_records(message.content)
    except RescindError:
        return None, UNREADABLE
    return (None, flaw) if (flaw := mismatch(letter, reply)) else (reply, None)


def mismatch(asked: Letter, reply: Letter) -> str | None:
    """Why a reply does not belong to a request; None: it does."""
    told = reply.facts
    if told.get("run") != asked.facts["run"] or told.get("verb") != asked.facts["verb"]:
        return REPLAYED
    if told.get("epoch") != asked.facts["epoch"]:
        return STALE
    if told.get("round") != asked.facts["round"]:
        return ROUND
    return REPLAYED if told.get("of") != asked.digest else None
