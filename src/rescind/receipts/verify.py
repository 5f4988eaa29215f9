"""Verify a receipt offline, from its bytes and a trusted public key."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rescind.audits.finding import overall
from rescind.core.words import count_of
from rescind.errors import DataError
from rescind.privacy import keys
from rescind.privacy.sealing import sealed
from rescind.receipts.receipt import (
    NAMES,
    Receipt,
    canonical,
    digest,
    opened,
    parse,
    signed_bytes,
)

if TYPE_CHECKING:
    from rescind.core.records import Event

BY_NUMBERS = (
    ", by the numbers of the run. That these numbers are the users and items named in the file is "
    "a statement of the operator: this receipt does not cover names"
)


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    holds: bool
    says: str
    note: bool = False
    """Whether it is worth knowing, but decides nothing."""


@dataclass(frozen=True)
class Verification:
    """The results of all checks. `receipt` is None if the bytes are not a receipt."""

    receipt: Receipt | None
    checks: tuple[Check, ...]
    exact: Receipt | None = None
    """The receipt with exact numbers, if the requester's key was given."""

    @property
    def valid(self) -> bool:
        """Return whether it is a receipt and every check holds."""
        return self.receipt is not None and all(check.holds for check in self.checks)

    @property
    def problems(self) -> list[str]:
        return [check.says for check in self.checks if not check.holds]

    def also(self, *more: Check) -> Verification:
        return replace(self, checks=(*self.checks, *more))


def verify(
    data: bytes,
    pinned: Mapping[str, str],
    chain: Sequence[bytes] | None = None,
    request: tuple[Event, bytes] | tuple[Event, bytes, str] | None = None,
    claims: Sequence[Callable[[Receipt], Check]] = (),
    key: bytes | None = None,
) -> Verification:
    """Check that these bytes are an unchanged receipt, signed with a trusted key.

    pinned: names of trusted signers, by public key (`ed25519:...`)
    chain: earlier receipts, in any order
    request: the event, the requester's key, and what its file says of names (`names_in`)
    claims: further checks of its claims, which need data (such as an additive learner's totals)
    key: the requester's key, to open the exact numbers; that of `request` does it, too
    """
    result = _signature(data, pinned)
    receipt = result.receipt
    if receipt is None or not result.checks[0].holds:
        return result  # what a changed text says of itself is worth no line
    expected = overall(receipt.findings)
    follows = receipt.verdict == expected
    says = f"its findings give the verdict {expected}"
    result = result.also(Check(follows, says if follows else f"{says}, not {receipt.verdict}"))
    if chain is not None:
        result = result.also(*_chain(receipt, chain, pinned))
    if request is not None:
        key = request[1]
        result = result.also(_request(receipt, *request))
    if key is not None:
        result = _open(result, receipt, key)
    return result.also(*(claim(receipt) for claim in claims))


def _signature(data: bytes, pinned: Mapping[str, str]) -> Verification:
    try:
        receipt = parse(data)
    except DataError as error:
        return Verification(None, (Check(False, f"not a valid receipt: {error}"),))
    if not receipt.signature:
        return Verification(receipt, (Check(False, "it is not signed, so its origin is unknown"),))
    if not _is_signed(receipt):
        broken = "its signature does not match its content. Ask the operator for the file again"
        return Verification(receipt, (Check(False, broken),))
    intact = Check(True, "its signature matches every byte")
    return Verification(receipt, (intact, _signer(receipt.public_key, pinned)))


def _signer(public_key: str, pinned: Mapping[str, str]) -> Check:
    if public_key in pinned:
        return Check(True, f"signed by {pinned[public_key]} ({public_key})")
    return Check(
        False,
        f"signed by {public_key}, which is not a trusted key: anyone can make a key. If the issuer "
        f"confirms from another source that it is theirs, give it with --key",
    )


def _is_signed(receipt: Receipt) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = bytes.fromhex(receipt.signature.removeprefix(keys.PREFIX))
        public = bytes.fromhex(receipt.public_key.removeprefix(keys.PREFIX))
        # The text of the signature is not signed, so only one spelling is accepted.
        spelling = (keys.PREFIX + raw.hex(), keys.PREFIX + public.hex())
        if (receipt.signature, receipt.public_key) != spelling:
            return False
        Ed25519PublicKey.from_public_bytes(public).verify(raw, signed_bytes(receipt))
    except (InvalidSignature, ValueError):
        return False
    return True


def _chain(receipt: Receipt, given: Sequence[bytes], pinned: Mapping[str, str]) -> list[Check]:
    """Follow the digests back through earlier receipts; all given ones must be on the chain."""
    earlier = {digest(data): _signature(data, pinned) for data in given}
    checks: list[Check] = []
    here, steps = receipt, 0
    while here.previous in earlier:
        found = earlier.pop(here.previous)
        steps += 1
        if not found.valid or found.receipt is None:
            why = "; ".join(found.problems)
            return [*checks, Check(False, f"receipt {steps} before it is not valid: {why}")]
        if found.receipt.time > here.time:
            checks.append(_stepped_back(found.receipt, here))
        here = found.receipt
    if here.previous and not steps:
        checks.append(Check(False, f"none of the given earlier receipts is {here.previous}"))
    elif here.previous:
        open_end = f"{_in_order(steps)}; {here.previous} was not given"
        checks.append(Check(True, open_end))
    else:
        checks.append(Check(True, f"{_in_order(steps)}, back to the first"))
    if not earlier:
        return checks
    every = [receipt, *(v.receipt for data in given if (v := _signature(data, pinned)).valid)]
    named = {digest(canonical(one)): one for one in every if one is not None}
    says = f"{len(earlier)} of the given receipts are not on its chain: {', '.join(earlier)}"
    return [*checks, Check(False, says), *forks(named)]


def _in_order(receipts: int) -> str:
    are = "is" if receipts == 1 else "are"
    return f"{count_of(receipts, 'earlier receipt')} {are} in order"


def _stepped_back(earlier: Receipt, later: Receipt) -> Check:
    """Note a clock that was set back. The digests give the order; a time is only a statement."""
    says = f"the clock stepped back from {earlier.time} to {later.time} between two receipts"
    return Check(True, f"{says}; their order is given by their digests", note=True)


def forks(receipts: Mapping[str, Receipt]) -> list[Check]:
    """Return a failed check for each receipt that several others name as their predecessor.

    receipts: by name, all valid. One history has one successor of each receipt, so whoever shows
    different successors to different people has two histories. Only who has both can see it
    """
    after: dict[str, list[str]] = {}
    for name, receipt in receipts.items():
        if receipt.previous:
            after.setdefault(receipt.previous, []).append(name)
    known = {digest(canonical(receipt)): name for name, receipt in receipts.items()}
    return [
        Check(False, f"FORK: {' and '.join(names)} both follow {known.get(previous, previous)}")
        for previous, names in after.items()
        if len(names) > 1
    ]


def verify_all(files: Mapping[str, bytes], pinned: Mapping[str, str]) -> dict[str, Verification]:
    """Verify receipts together, by name: each one, its predecessor among them, and forks.

    A copy of a receipt counts once. Forks fail under the name ''.
    """
    found = {name: verify(data, pinned) for name, data in files.items()}
    place = {digest(data): name for name, data in reversed(list(files.items()))}
    valid = {n: v.receipt for n, v in found.items() if v.valid and v.receipt is not None}
    for name, receipt in valid.items():
        before = place.get(receipt.previous)
        if before in valid:
            back = valid[before].time > receipt.time
            more = [_stepped_back(valid[before], receipt)] if back else []
            found[name] = found[name].also(Check(True, f"it follows {before}"), *more)
        elif receipt.previous:
            says = f"the receipt before it, {receipt.previous}, is not among the valid ones"
            found[name] = found[name].also(Check(True, says, note=True))
    once = {n: one for n, one in valid.items() if place[digest(files[n])] == n}
    split = forks(once)
    return {**found, "": Verification(None, tuple(split))} if split else found


def _open(result: Verification, receipt: Receipt, key: bytes) -> Verification:
    try:
        exact = opened(receipt, key)
    except DataError as error:
        return result.also(Check(False, str(error).rstrip(".")))
    agrees = Check(True, "the key opens its exact numbers, and they agree with what it says openly")
    return replace(result.also(agrees), exact=exact)


def _request(receipt: Receipt, event: Event, key: bytes, names: str = "") -> Check:
    """Compare a request. names: what its file says of original ids (`names_in`)"""
    if not hmac.compare_digest(event.digest(key).encode(), receipt.asked.digest.encode()):
        return Check(False, "it is not about the given request, or the key is of another receipt")
    if names and NAMES not in receipt.claims:
        return Check(True, f"it is about the given {receipt.asked.kind} request{BY_NUMBERS}")
    if names and not hmac.compare_digest(
        sealed(names, key).encode(), receipt.claims[NAMES].encode()
    ):
        return Check(False, "the request names other users or items than the receipt is about")
    return Check(True, f"it is about exactly the given {receipt.asked.kind} request{_whose(names)}")


def _whose(names: str) -> str:
    """Return whose request it is, by original ids: one may have been sent somebody else's."""
    users = (json.loads(names) if names else {}).get("user")
    several = len({*users}) if isinstance(users, list) else 0
    if not users or several > 1:
        return f", of {several} users" if several > 1 else ""
    return f", of user '{users if isinstance(users, str) else users[0]}'"
