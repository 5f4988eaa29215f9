"""The silo's side of secure sums. It checks everything that the server says.

A round has four stages, each answered once: keys, shares of secrets for the other silos, the masked
sum, and the shares that remove masks. docs/secure-sums.md describes the messages.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from rescind.core.update import Sum
from rescind.errors import ConsentError, DataError, RescindError
from rescind.flower.silo.identity import Identity
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.secure_aggregation import (
    KEYS,
    MASK,
    MAX_SILOS,
    MIN_SILOS,
    SHARES,
    UNMASK,
    Vector,
    as_bytes,
    by_silo,
    digest_of,
    fields_of,
    flatten_sum,
    own_key,
    pair_mask,
    public_of,
    sealed,
    shared_key,
    task_of,
    threshold_of,
    to_steps,
)
from rescind.privacy.shamir import split
from rescind.privacy.shares import Numbers, expanded
from rescind.storage.packing import Facts

NUMBER = "secure_sum"
"""The note in silo.json with the number of the last round that the silo began."""
_NONCE = bytes(12)
"""Every key encrypts one message."""


@dataclass
class _Round:
    """What a silo knows in a round. It is in memory only."""

    run: str
    number: int
    members: list[int]
    range: float
    mask_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    share_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    next: str = SHARES
    keys: dict[int, Facts] = field(default_factory=dict)
    """The keys that silos announced, with their signatures."""
    shares: dict[int, list[str]] = field(default_factory=dict)
    """By silo: this silo's share of its mask secret, and of its seed."""

    @property
    def threshold(self) -> int:
        return threshold_of(len(self.members))

    @property
    def view(self) -> str:
        """Return a digest of the round as this silo sees it. All silos must see the same."""
        return digest_of("view", self.run, self.number, self.members, sorted(self.keys.items()))


@dataclass
class Masks:
    """The silo's side of secure sums, from one round to the next."""

    identity: Identity | None = None
    """Signs keys, and verifies those of others; None: the server is trusted to forward them."""
    round: _Round | None = None

    def answer(self, store: Store, silo: int, silos: int, request: Letter) -> Facts:
        """Return the reply to a stage that exchanges keys or shares."""
        with self._over_if_it_fails():
            return self._answer(store, silo, silos, request)

    def mask(self, silo: int, request: Letter, total: Sum) -> tuple[list[Any], Tensor]:
        """Return the reply to the stage that masks a sum: (description, masked vector)."""
        with self._over_if_it_fails():
            vector, spec = flatten_sum(total)
            return spec, torch.from_numpy(self._mask(silo, request, vector).view(np.int64))

    @contextmanager
    def _over_if_it_fails(self) -> Iterator[None]:
        """Forget the keys of a round in which a stage failed."""
        try:
            yield
        except RescindError:
            self.round = None
            raise
        except (KeyError, TypeError, ValueError, InvalidTag) as error:
            self.round = None
            raise DataError(
                f"a message of a secure sum is not valid ({type(error).__name__}: {error}). The "
                f"round is over; the next one starts with new keys."
            ) from None

    def _answer(self, store: Store, silo: int, silos: int, request: Letter) -> Facts:
        stage = fields_of(request, stage=str)["stage"]
        if stage == KEYS:
            self.round = _begin(store, silo, silos, request)
            return self._announce(silo, self.round)
        now = self._current(request, stage)
        if stage == SHARES:
            return {"shares": self._share(silo, now, request)}
        if stage == UNMASK:
            self.round = None  # one answer only: a second could remove what the first hides
            return {"shares": _reveal(silo, now, request)}
        raise DataError(f"unknown stage '{stage}' of a secure sum.")

    def _current(self, request: Letter, stage: str) -> _Round:
        """Return the current round, if this is its next stage."""
        now, number = self.round, fields_of(request, number=int)["number"]
        if now is None or (now.run, now.number, now.next) != (
            request.facts.get("run"), number, stage
        ):  # fmt: skip
            raise ConsentError(
                f"stage '{stage}' of secure sum {number} does not follow what this silo answered "
                f"last. Every stage is answered once, in order; start a new round."
            )
        return now

    def _announce(self, silo: int, now: _Round) -> Facts:
        """Return the silo's new public keys, signed if it has an identity."""
        keys = {
            "mask": public_of(now.mask_secret),
            "share": public_of(now.share_secret),
            "seed": sealed(now.seed),
        }
        mine = {**keys, "signature": ""}
        if self.identity is not None:
            mine["signature"] = self.identity.sign(_signed(now, silo, mine))
        now.keys = {silo: mine}
        return mine

    def _share(self, silo: int, now: _Round, request: Letter) -> Facts:
        """Check everybody's keys. Return shares of this silo's secrets, encrypted for each."""
        keys = by_silo(fields_of(request, keys=dict)["keys"])
        if keys.get(silo) != now.keys[silo]:
            raise ConsentError(f"the server shows other keys for silo {silo} than it sent.")
        strangers = {*keys} - {*now.members}
        public = [one[name] for one in keys.values() for name in ("mask", "share")]
        if strangers or len({*public}) < len(public):
            raise ConsentError(
                f"the keys of secure sum {now.number} are of silos {sorted(keys)}, each must be "
                f"one of {now.members} and have keys of its own."
            )
        _check_enough(silo, now, [*keys])
        for other, one in keys.items() if self.identity else ():
            assert self.identity is not None
            if not self.identity.verifies(other, _signed(now, other, one), one["signature"]):
                raise ConsentError(
                    f"the keys that the server shows for silo {other} are not signed by silo "
                    f"{other}. The server may have put its own in their place."
                )
        now.keys, now.next = keys, MASK
        mask_shares = split(now.mask_secret, now.threshold, keys)
        seed_shares = split(now.seed, now.threshold, keys)
        out = {}
        for other in keys:
            pair = [f"{mask_shares[other]:x}", f"{seed_shares[other]:x}"]
            if other == silo:
                now.shares[silo] = pair
                continue
            box, about = _box(now, other, silo, other)
            out[str(other)] = box.encrypt(_NONCE, as_bytes(*pair), about).hex()
        return out

    def _mask(self, silo: int, request: Letter, vector: Vector) -> Numbers:
        """Decrypt the shares of the other silos, and mask the sum with all who sent some."""
        now = self._current(request, MASK)
        received = by_silo(fields_of(request, shares=dict)["shares"])
        _check_enough(silo, now, [*received, silo])
        for other, sent in received.items():
            box, about = _box(now, other, other, silo)
            _, *now.shares[other] = json.loads(box.decrypt(_NONCE, bytes.fromhex(sent), about))
        task, numbers = task_of(request), to_steps(vector, now.range)
        numbers = numbers + expanded(own_key(now.seed, now.view, task), len(numbers))
        for other in received:
            other_key = now.keys[other]["mask"]
            numbers += pair_mask(now.mask_secret, other_key, len(numbers), now.view, task)
        now.next = UNMASK
        return numbers


def _begin(store: Store, silo: int, silos: int, request: Letter) -> _Round:
    """Check the rules of a new round. Its number is saved before it is answered."""
    facts = fields_of(request, number=int, members=list, threshold=int, range=float)
    number, members, last = facts["number"], facts["members"], int(store.notes.get(NUMBER, 0))
    if number <= last:
        raise ConsentError(
            f"secure sum {number} is not after {last}, the last one that silo {silo} took part in. "
            f"A round is never repeated; check that the server's clock was not set back."
        )
    valid = all(type(one) is int and 0 <= one < silos for one in members)
    if not valid or len({*members}) < len(members) or silo not in members:
        raise ConsentError(
            f"secure sum {number} is over silos {members}; they must be different ones of 0 to "
            f"{silos - 1}, and silo {silo} among them."
        )
    if not MIN_SILOS <= len(members) <= MAX_SILOS:
        raise ConsentError(
            f"secure sum {number} is over {len(members)} silos; silo {silo} takes part with "
            f"{MIN_SILOS} to {MAX_SILOS}."
        )
    if facts["threshold"] != threshold_of(len(members)):
        raise ConsentError(
            f"secure sum {number} has threshold {facts['threshold']} of {len(members)} silos; "
            f"silo {silo} takes part only with {threshold_of(len(members))}."
        )
    if not 0 < facts["range"] < 2.0**31:
        raise DataError(f"the range of masked sums must be above 0 and below 2**31; got {facts}.")
    store.note(**{NUMBER: number})
    return _Round(str(request.facts.get("run")), number, sorted(members), facts["range"])


def _reveal(silo: int, now: _Round, request: Letter) -> Facts:
    """Return shares: of the seed of a silo that is in the sum, of the mask secret of a lost one.

    Never both of one silo: together they remove all its masks.
    """
    alive = fields_of(request, alive=list)["alive"]
    if not {*alive} <= {*now.shares} or len({*alive}) < len(alive) or silo not in alive:
        raise ConsentError(
            f"the server says that silos {alive} are in secure sum {now.number}; they must be "
            f"different ones of {sorted(now.shares)}, and silo {silo} among them."
        )
    _check_enough(silo, now, alive)
    return {str(one): pair[one in alive] for one, pair in now.shares.items()}


def _check_enough(silo: int, now: _Round, there: list[int]) -> None:
    if len(there) < now.threshold:
        raise ConsentError(
            f"{len(there)} of the {len(now.members)} silos of secure sum {now.number} are there; "
            f"silo {silo} takes part with {now.threshold} or more."
        )


def _signed(now: _Round, silo: int, keys: Facts) -> bytes:
    """Return the bytes that a silo signs: its keys, and the round that they are for."""
    own = [keys["mask"], keys["share"], keys["seed"]]
    return as_bytes("keys", now.run, now.number, now.members, silo, *own)


def _box(now: _Round, other: int, sender: int, receiver: int) -> tuple[ChaCha20Poly1305, bytes]:
    """Return the cipher for shares from one silo to another, and what it is bound to."""
    key = shared_key(now.share_secret, now.keys[other]["share"], "shares", sender, receiver)
    return ChaCha20Poly1305(key), as_bytes("shares", now.view, sender, receiver)
