"""Exchange messages with the silos through Flower's grid.

Every exchange has a deadline, a reply must name the request it answers, and replies that come
after the deadline are refused and counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flwr.app import Message
from flwr.serverapp import Grid

from rescind.errors import DataError, RescindError
from rescind.flower.run_request import silo_names
from rescind.flower.server.journal import Answers, Journal
from rescind.flower.wire.messages import Letter, unpack_error
from rescind.flower.wire.schema import reply_flaw
from rescind.storage.packing import Facts

log = logging.getLogger(__name__)

UNKNOWN, LATE, ROUND = "node not known", "late", "wrong round"
STALE, REPLAYED, SILENT = "computed before something was forgotten", "replayed", "no answer in time"
UNREADABLE, FAILED, INVALID = "cannot be read", "node failed", "not as asked"

KINDS = {"train": "train", "measure": "evaluate"}
"""Flower's message type for a verb; all other verbs are queries."""
ROUNDS = ("train", "mask")
"""Verbs of a round: a silo that fails is left out of the round."""


@dataclass
class Transport:
    """The connection to the silos, with counts of sent and refused messages."""

    grid: Grid
    silos: int
    deadline: float = 300.0
    """Seconds a silo has to reply; a round then closes without the missing replies."""
    pause: float = 0.2
    """Seconds between two checks for replies."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Silo -> Flower's id of its node."""
    refused: Counter[str] = field(default_factory=Counter)
    """Number of replies that were not accepted, by reason."""
    letters: int = 0
    """Number of messages sent."""
    pending: dict[str, Facts] = field(default_factory=dict)
    """Requests without a reply, by Flower's message id."""
    unknown_nodes: set[int] = field(default_factory=set)
    """Nodes that are not a silo of this run."""
    standby_nodes: dict[int, int] = field(default_factory=dict)
    """Silo -> a second node with the same silo number: the first one may have been killed."""
    failed: dict[int, RescindError] = field(default_factory=dict)
    """Errors of nodes that answered the first request with one."""
    sums_only: set[int] = field(default_factory=set)
    """Silos that give no sum of a single client: they joined without --single-updates."""
    first_message: Letter | None = None
    """The first request, for nodes that join later."""
    journal: Journal | None = None
    """Saves replies, so that a server that was killed can repeat its requests."""

    def wait(self, request: Letter, seconds: float, least: int | None = None) -> dict[int, Letter]:
        """Wait until every silo has joined. Return their replies to the first request.

        least: this number of silos is enough when the time is over. Default: all
        """
        self.first_message, until = request, time.monotonic() + seconds
        for known in (self.nodes, self.unknown_nodes, self.standby_nodes):
            known.clear()  # ask every node, also those that replied to an earlier run
        replies: dict[int, Letter] = {}
        end = datetime.now() + timedelta(seconds=seconds)  # local, as the log's own times are
        told: list[int] = []
        while True:
            replies |= self._identify(request, {*self.grid.get_node_ids()})
            missing = [s for s in range(self.silos) if s not in replies]
            if not missing:
                return replies
            if missing != told:
                told = missing
                until_then = end.strftime("%H:%M:%S")
                log.info("waiting for %s, until %s (--wait)", silo_names(told), until_then)
            if time.monotonic() >= until:
                if least is not None and len(replies) >= least:
                    return replies
                for error in self.failed.values():
                    raise error
                raise DataError(
                    f"{len(replies)} of {self.silos} silos joined within {seconds:g} s; silos "
                    f"{missing} are missing. Start them (rescind flower join), or wait longer."
                )
            time.sleep(self.pause)

    def _identify(self, request: Letter, present: set[int]) -> dict[int, Letter]:
        """Ask new nodes which silo they are. Return the replies of silos that had no node."""
        new = present - {*self.nodes.values()} - self.unknown_nodes
        replies: dict[int, Letter] = {}
        for node, reply in self._exchange({node: request for node in sorted(new)}).items():
            if "error" in reply.facts:
                self.refused[FAILED] += 1
                self.failed[node] = unpack_error(reply.facts)
                log.warning("a node cannot join: %s", self.failed[node])
                continue
            self.failed.pop(node, None)
            silo, silos = int(reply.facts["silo"]), reply.facts["silos"]
            ours = silos == self.silos and 0 <= silo < self.silos
            if not ours or self.nodes.get(silo, -1) in present:
                self.unknown_nodes.add(node)
                self.refused[UNKNOWN] += 1
                if ours:
                    self.standby_nodes[silo] = node
                log.warning("a node that claims to be silo %s of %s is not needed", silo, silos)
                continue
            self.nodes[silo] = node
            (self.sums_only.discard if reply.facts.get("single_updates") else self.sums_only.add)(
                silo
            )
            replies[silo] = reply
        return replies

    def ask(self, requests: Mapping[int, Letter], needed: bool = True) -> Answers:
        """Send a request to each silo. Return (replies, reasons of missing replies) by silo.

        A silo that reports an error is left out. If no silo replies, its error is raised, except
        in a round. needed: False to go on also then
        """
        known = self.journal.read(requests) if self.journal else None
        replies, why = known or ({}, {})
        rest = {silo: one for silo, one in requests.items() if silo not in {*replies, *why}}
        self.letters += len(requests) - len(rest)
        if known is None or rest:
            found, why = self._ask_silos(rest, bool(replies) or not needed)
            replies = dict(sorted({**replies, **found}.items()))
            if self.journal is not None:
                self.journal.write(requests, (replies, why))
        for reason in why.values():
            self.refused[reason.partition(":")[0]] += 1
        return replies, why

    def _ask_silos(self, requests: Mapping[int, Letter], may_fail: bool) -> Answers:
        """Do the work of `ask` without the journal."""
        present = {*self.grid.get_node_ids()}
        if self.first_message is not None:
            self._identify(self.first_message, present)
        by_node, why = {}, {}
        for silo, request in requests.items():
            if self.nodes.get(silo, -1) in present:
                by_node[self.nodes[silo]] = request
            else:
                why[silo] = SILENT
        found = self._exchange(by_node, why)
        silo_of = {node: silo for silo, node in self.nodes.items()}
        replies, errors = {}, []
        for node, reply in found.items():
            silo = silo_of[node]
            if "error" not in reply.facts:
                replies[silo] = reply
                continue
            error = unpack_error(reply.facts)
            why[silo] = f"{FAILED}: {error}"
            if reply.facts["verb"] not in ROUNDS:
                errors.append(error)
        if errors and not replies and not may_fail:
            raise errors[0]
        for silo in requests:
            if silo not in replies:
                why.setdefault(silo, SILENT)
                if silo in self.standby_nodes:  # ask the second node next time
                    self.nodes[silo] = self.standby_nodes.pop(silo)
        return replies, why

    def _exchange(
        self, requests: Mapping[int, Letter], why: dict[int, str] | None = None
    ) -> dict[int, Letter]:
        """Send requests by node. Return the replies that come before the deadline.

        why: receives the reasons of refused replies, by silo
        """
        if not requests:
            return {}
        messages, order = [], list(requests.items())
        for node, request in order:
            verb = str(request.facts["verb"])
            messages.append(
                Message(
                    request.to_records(), node, KINDS.get(verb, "query"),
                    ttl=self.deadline + 60, group_id=str(request.facts["round"]),
                )
            )  # fmt: skip
        self.letters += len(messages)
        ids = list(self.grid.push_messages(messages))
        waiting: dict[str, tuple[int, Letter]] = dict(zip(ids, order, strict=True))
        until, replies = time.monotonic() + self.deadline, {}
        silo_of = {node: silo for silo, node in self.nodes.items()}
        while waiting:
            asked = [id_ for id_ in (*waiting, *self.pending) if id_]
            for message in self.grid.pull_messages(asked):
                id_ = message.metadata.reply_to_message_id
                if id_ not in waiting:
                    late = self.pending.pop(id_, None) is not None
                    self.refused[LATE if late else REPLAYED] += 1
                    continue
                node, request = waiting.pop(id_)
                reply, reason = _read(message, node, request, silo_of.get(node), self.silos)
                if reply is not None:
                    replies[node] = reply
                elif why is not None and node in silo_of:
                    why[silo_of[node]] = str(reason)
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(self.pause)
        self.pending |= {id_: request.facts for id_, (_, request) in waiting.items()}
        return replies


def _read(
    message: Message, node: int, request: Letter, silo: int | None, silos: int
) -> tuple[Letter | None, str | None]:
    """Return (reply, None), or (None, reason) if the message does not answer the request."""
    if message.has_error():
        return None, f"{FAILED}: {message.error.reason}"
    if message.metadata.src_node_id != node:
        return None, UNKNOWN
    try:
        reply = Letter.from_records(message.content)
    except RescindError:
        return None, UNREADABLE
    if flaw := mismatch(request, reply):
        return None, flaw
    try:
        flaw = reply_flaw(request, reply, silo, silos)
    except Exception as error:  # a letter that no check foresaw must not end the server
        flaw = repr(error)
    return (None, f"{INVALID}: {flaw}") if flaw else (reply, None)


def mismatch(request: Letter, reply: Letter) -> str | None:
    """Return why a reply does not belong to a request; None if it does."""
    facts = reply.facts
    if facts.get("run") != request.facts["run"] or facts.get("verb") != request.facts["verb"]:
        return REPLAYED
    if facts.get("epoch") != request.facts["epoch"]:
        return STALE
    if facts.get("round") != request.facts["round"]:
        return ROUND
    return REPLAYED if facts.get("of") != request.digest else None
