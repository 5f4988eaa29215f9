"""Check a receipt, offline, with nothing but its bytes and a public key one trusts."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rescind.audits.finding import overall
from rescind.errors import DataError
from rescind.forgetting import keys
from rescind.forgetting.receipt import Receipt, digest, parse, signed_bytes

if TYPE_CHECKING:
    from rescind.core.records import Event


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    holds: bool
    says: str


@dataclass(frozen=True)
class Verification:
    """Everything that was looked at. `receipt` is None where the bytes are none."""

    receipt: Receipt | None
    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        """Whether it is a receipt and every check holds."""
        return self.receipt is not None and all(check.holds for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """What does not hold."""
        return [check.says for check in self.checks if not check.holds]

    def also(self, *more: Check) -> Verification:
        """With further checks."""
        return replace(self, checks=(*self.checks, *more))


def verify(
    data: bytes,
    pinned: Mapping[str, str],
    chain: Sequence[bytes] | None = None,
    request: tuple[Event, bytes] | None = None,
    claims: Sequence[Callable[[Receipt], Check]] = (),
) -> Verification:
    """Whether these bytes are a receipt that somebody we know has signed, and nobody has changed.

    pinned: who it is, by public key (`ed25519:...`)    chain: earlier receipts, in any order
    request: the event and the requester's key          claims: further checks of its claims, by
    whoever has what they need (the additive learner's totals, say)
    """
    seen = _signature(data, pinned)
    receipt = seen.receipt
    if receipt is None:
        return seen
    given = overall(receipt.findings)
    follows = receipt.verdict == given
    says = f"its verdict {receipt.verdict} is the one its findings give"
    seen = seen.also(Check(follows, says if follows else f"{says}: no, they give {given}"))
    if chain is not None:
        seen = seen.also(*_chain(receipt, chain, pinned))
    if request is not None:
        seen = seen.also(_request(receipt, *request))
    return seen.also(*(claim(receipt) for claim in claims))


def _signature(data: bytes, pinned: Mapping[str, str]) -> Verification:
    try:
        receipt = parse(data)
    except DataError as error:
        return Verification(None, (Check(False, f"this is no receipt as it was issued: {error}"),))
    if not receipt.signature:
        return Verification(receipt, (Check(False, "it is not signed: anybody can have made it"),))
    if not _is_signed(receipt):
        broken = "its signature does not fit its content: one of the two was changed"
        return Verification(receipt, (Check(False, broken),))
    intact = Check(True, "its signature fits every byte")
    return Verification(receipt, (intact, _signer(receipt.public_key, pinned)))


def _signer(public_key: str, pinned: Mapping[str, str]) -> Check:
    if public_key in pinned:
        return Check(True, f"signed by {pinned[public_key]} ({public_key})")
    if pinned:
        known = ", ".join(f"{who} ({key})" for key, who in pinned.items())
        return Check(False, f"signed by a foreign key, {public_key}, and not by {known}")
    return Check(
        False,
        f"signed by a key nobody pinned, {public_key}: anybody can make a key. If the issuer "
        f"confirms by another way that it is theirs, give it with --key",
    )


def _is_signed(receipt: Receipt) -> bool:
    """Whether the signature is that of the public key the receipt names, over these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = bytes.fromhex(receipt.signature.removeprefix(keys.PREFIX))
        public = bytes.fromhex(receipt.public_key.removeprefix(keys.PREFIX))
        # The signature's own digits are not signed: only one way to write them is taken.
        if receipt.signature != keys.PREFIX + raw.hex():
            return False
        if receipt.public_key != keys.PREFIX + public.hex():
            return False
        Ed25519PublicKey.from_public_bytes(public).verify(raw, signed_bytes(receipt))
    except (InvalidSignature, ValueError):
        return False
    return True


def _chain(receipt: Receipt, given: Sequence[bytes], pinned: Mapping[str, str]) -> list[Check]:
    """Walk back from receipt to receipt by their digests; what is given must be on the way."""
    earlier = {digest(data): _signature(data, pinned) for data in given}
    said: list[Check] = []
    here, steps = receipt, 0
    while here.previous in earlier:
        found = earlier.pop(here.previous)
        steps += 1
        if not found.valid or found.receipt is None:
            why = "; ".join(found.problems)
            return [*said, Check(False, f"receipt {steps} before it is not valid: {why}")]
        if found.receipt.time > here.time:
            late = f"receipt {steps} before it is dated later, {found.receipt.time}"
            said.append(Check(False, late))
        here = found.receipt
    if here.previous and not steps:
        said.append(Check(False, f"none of the earlier receipts given is {here.previous}"))
    elif here.previous:
        open_end = f"{steps} earlier receipts are in order; {here.previous} was not given"
        said.append(Check(True, open_end))
    else:
        said.append(Check(True, f"{steps} earlier receipts are in order, back to the first"))
    if earlier:
        astray = f"{len(earlier)} of the receipts given are not on its chain"
        said.append(Check(False, f"{astray}: {', '.join(earlier)}"))
    return said


def _request(receipt: Receipt, event: Event, key: bytes) -> Check:
    fits = hmac.compare_digest(event.digest(key).encode(), receipt.asked.digest.encode())
    if fits:
        return Check(True, f"it is about exactly the {receipt.asked.kind} request given")
    return Check(False, "it is not about the request given, or the key belongs to another receipt")
