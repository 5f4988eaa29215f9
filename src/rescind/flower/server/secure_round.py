"""The server's side of secure sums: it forwards keys and shares, and removes masks from the total.

A silo that is lost at any stage is left out, as long as enough are left (`threshold_of`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.server.transport import UNREADABLE, Transport
from rescind.flower.wire.messages import SENDER, Letter
from rescind.flower.wire.payloads import OTHERS
from rescind.flower.wire.secure_aggregation import (
    KEYS,
    MASK,
    MAX_SILOS,
    MIN_SILOS,
    SECURE,
    SHARES,
    TOO_FEW,
    UNMASK,
    VECTOR,
    Masked,
    by_silo,
    digest_of,
    fields_of,
    from_steps,
    own_key,
    pair_mask,
    public_of,
    sealed,
    task_of,
    threshold_of,
    unflatten_sum,
)
from rescind.privacy.shamir import join
from rescind.privacy.shares import Numbers, expanded
from rescind.storage.packing import Facts

WRONG = "wrong shares or sums"


def exchange_round(
    transport: Transport,
    requests: Mapping[int, Letter],
    key_request: Letter,
    masked: Masked | None,
    roles: Mapping[int, str] | None = None,
) -> tuple[dict[int, Letter], dict[int, str], Sum | None]:
    """Return (replies, reasons of missing replies, the total if sums are masked) of a round.

    requests: by silo    key_request: for the stages that exchange keys
    """
    if masked is None:
        return *transport.ask(requests), None
    if roles:
        raise ConfigError(
            "a round in which clients have different roles has several sums, but only one sum can "
            "be masked. Use another unlearner, or run without --secure."
        )
    if not MIN_SILOS <= len(requests) <= MAX_SILOS:
        return {}, dict.fromkeys(requests, TOO_FEW), None
    now = _Round(transport, requests, key_request, masked.range)
    try:
        vector = now.total()
        replies = [*now.replies.values()]
        total = None if vector is None else _with_rest(from_steps(vector, masked.range), replies)
    except DataError as error:  # one silo sent something wrong, and nobody's sum can be read
        return {}, dict.fromkeys(requests, f"{WRONG}: {error}"), None
    why = {silo: now.why.get(silo, TOO_FEW) for silo in requests if silo not in now.replies}
    if total is None:
        return {}, dict.fromkeys(requests, TOO_FEW) | why, None
    return now.replies, why, total


def _with_rest(vector: np.ndarray, replies: list[Letter]) -> Sum:
    """Return the total as a sum, with what the silos sent beside their masked vectors."""
    specs = [reply.facts["spec"] for reply in replies]
    if any(spec != specs[0] for spec in specs):
        raise DataError(f"silos masked sums of different shapes. {SENDER}")
    rest = [Sum({}, 0.0, 0, refused=reply.facts["refused"]) for reply in replies]
    who = torch.cat([reply.tensors["who"] for reply in replies])
    sent = {name: sum(int(reply.facts[name]) for reply in replies) for name in ("up", "down")}
    refused = sum(rest, Sum({}, 0.0, 0)).refused
    total = unflatten_sum(vector, specs[0])
    return replace(total, who=who, refused=refused, up=sent["up"], down=sent["down"])


@dataclass
class _Round:
    """One round. A stage is sent to the silos that answered the stage before."""

    transport: Transport
    requests: Mapping[int, Letter]
    """The requests of the round, sent with the stage that collects masked sums."""
    key_request: Letter
    """Sent with the other stages."""
    range: float
    number: int = field(default_factory=time.time_ns)
    """Silos refuse a number that is not above all earlier ones, also after a restart."""
    replies: dict[int, Letter] = field(default_factory=dict)
    """The replies with masked sums."""
    why: dict[int, str] = field(default_factory=dict)

    def total(self) -> Numbers | None:
        """Run the four stages. Return the total of the silos in `replies`; None: too few."""
        members = sorted(self.requests)
        enough = threshold_of(len(members))
        about = {"members": members, "threshold": enough, "range": float(self.range)}
        answers = self._ask(KEYS, dict.fromkeys(members, about))
        keys = {silo: reply.facts[SECURE] for silo, reply in answers.items()}
        if len(keys) < enough:
            return None
        shown = {"keys": {str(silo): one for silo, one in keys.items()}}
        answers = self._ask(SHARES, dict.fromkeys(keys, shown))
        boxes = {silo: by_silo(r.facts[SECURE]["shares"]) for silo, r in answers.items()}
        if len(boxes) < enough:
            return None
        letters: dict[int, Facts] = {
            to: {"shares": {str(s): box[to] for s, box in boxes.items() if to in box}}
            for to in boxes
        }
        self.replies = self._ask(MASK, letters)
        if len(self.replies) < enough:
            return None
        there = {"alive": sorted(self.replies)}
        answers = self._ask(UNMASK, dict.fromkeys(self.replies, there))
        if len(answers) < enough:
            return None
        shares = {silo: by_silo(r.facts[SECURE]["shares"]) for silo, r in answers.items()}
        view = digest_of(
            "view", self.key_request.facts["run"], self.number, members, sorted(keys.items())
        )
        return self._unmasked(boxes, keys, shares, view)

    def _unmasked(
        self,
        sharing: Iterable[int],
        keys: Mapping[int, Facts],
        shares: Mapping[int, Mapping[int, str]],
        view: str,
    ) -> Numbers:
        """Add the masked sums and remove the masks. sharing: the silos that masks are with"""
        vectors = [reply.tensors[VECTOR].numpy().view(np.uint64) for reply in self.replies.values()]
        if len({vector.shape for vector in vectors}) > 1:
            raise DataError(f"silos masked sums of different shapes. {SENDER}")
        total: Numbers = np.sum(vectors, axis=0, dtype=np.uint64)
        (task,) = {task_of(self.requests[silo]) for silo in self.replies}
        for silo in sharing:
            secret = _recovered(silo, {by: one[silo] for by, one in shares.items() if silo in one})
            lost = silo not in self.replies
            if (public_of(secret) if lost else sealed(secret)) != keys[silo][_NAMES[lost]]:
                raise DataError(
                    f"the shares of silo {silo}'s secret do not fit what it announced: a silo has "
                    f"sent a wrong share. The round has no total."
                )
            if not lost:
                total -= expanded(own_key(secret, view, task), len(total))
            for other in self.replies if lost else ():
                total += pair_mask(secret, keys[other]["mask"], len(total), view, task)
        return total

    def _ask(self, stage: str, letters: Mapping[int, Facts]) -> dict[int, Letter]:
        requests = {}
        for silo, facts in letters.items():
            base = self.requests[silo] if stage == MASK else self.key_request
            about = {**facts, "stage": stage, "number": self.number}
            requests[silo] = Letter({**base.facts, SECURE: about}, base.tensors)
        replies, why = self.transport.ask(requests)
        self.why |= why
        flaws = {silo: f"{UNREADABLE}: {flaw}" for silo, reply in replies.items()
                 if (flaw := _flaw(stage, requests[silo], reply))}  # fmt: skip
        self.why |= flaws
        return {silo: reply for silo, reply in replies.items() if silo not in flaws}


def _flaw(stage: str, request: Letter, reply: Letter) -> str | None:
    """Return what is wrong with the form of a silo's reply; None if it can be used."""
    try:
        if stage == KEYS:
            keys = fields_of(reply, mask=str, share=str, seed=str, signature=str)
            if any(len(bytes.fromhex(keys[name])) != 32 for name in ("mask", "share", "seed")):
                return "a key that does not have 32 bytes"
        elif stage == MASK:
            facts, who, vector = reply.facts, reply.tensors["who"], reply.tensors[VECTOR]
            if vector.dtype != torch.int64 or vector.ndim != 1:
                return f"a masked sum of {vector.dtype} and shape {tuple(vector.shape)}"
            if not bool(torch.isin(who, request.tensors["ids"]).all()):
                return OTHERS
            counts = [facts["up"], facts["down"], *facts["refused"].values()]
            if type(facts["spec"]) is not list or any(type(one) is not int for one in counts):
                return "counts that are not whole numbers"
        else:
            by_silo(fields_of(reply, shares=dict)["shares"])
    except (AttributeError, KeyError, RuntimeError, ValueError, DataError) as error:
        return str(error)
    return None


_NAMES = {True: "mask", False: "seed"}
"""What a recovered secret is compared with: of a lost silo, and of one in the sum."""


def _recovered(silo: int, shares: Mapping[int, str]) -> bytes:
    """Return a secret from shares of it. shares: by the silo that holds one"""
    try:
        return join({by: int(share, 16) for by, share in shares.items()})
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the secret of silo {silo} cannot be recovered ({error}). The round has no total."
        ) from None
