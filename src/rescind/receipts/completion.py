"""Receipts over silos that complete another one, when the last silo has confirmed.

They state the digest of the receipt that they complete (`COMPLETES`). In a chain they stand where
they were written: after the newest receipt, of whatever request.

Earlier versions stated no digest, and let a completion follow the receipt that it completes, which
the next request may follow, too. Such a pair is no second history.
"""

from __future__ import annotations

from collections.abc import Mapping

from rescind.core.claims import COMPLETES, CONFIRMED, WAITED_FOR
from rescind.receipts.receipt import Receipt, canonical, digest


def waits(receipt: Receipt) -> bool:
    """Return whether it waits for silos."""
    return bool(_silos(receipt, WAITED_FOR))


def can_complete(last: Receipt, first: Receipt) -> bool:
    """Return whether what both state openly allows that the last one completes the first.

    Whether they are about the same request is known only to who has the keys of both.
    """
    waited = _silos(first, WAITED_FOR)
    everybody = _silos(first, CONFIRMED) | waited
    confirmed = not waits(last) and _silos(last, CONFIRMED) == everybody
    return bool(waited) and confirmed and _open_facts(last) == _open_facts(first)


def beside_the_chain(receipts: Mapping[str, Receipt]) -> dict[str, str]:
    """Return the completions of earlier versions that share a predecessor with the next request.

    Each with the name of what it completes. It must be the end of its branch, and the other
    receipt must wait for a silo, too: only so did earlier versions write both. Whatever else
    shares a predecessor is a fork.
    """
    known = {digest(canonical(receipt)): name for name, receipt in receipts.items()}
    after: dict[str, list[str]] = {}
    for name, receipt in receipts.items():
        after.setdefault(receipt.previous, []).append(name)
    return {
        name: known[receipt.previous]
        for name, receipt in receipts.items()
        if receipt.previous in known
        and COMPLETES not in receipt.claims
        and digest(canonical(receipt)) not in after
        and can_complete(receipt, receipts[known[receipt.previous]])
        and _one_that_waits(receipts, {*after[receipt.previous]} - {name}, receipt.previous, known)
    }


def _one_that_waits(
    receipts: Mapping[str, Receipt], others: set[str], previous: str, known: Mapping[str, str]
) -> bool:
    """Return whether there is one other successor, which waits for a silo of the predecessor's."""
    waited = _silos(receipts[known[previous]], WAITED_FOR)
    return len(others) == 1 and all(_silos(receipts[n], WAITED_FOR) & waited for n in others)


def _silos(receipt: Receipt, claim: str) -> set[str]:
    return {one for one in receipt.claims.get(claim, "").split(", ") if one.isdecimal()}


def _open_facts(receipt: Receipt) -> tuple[object, ...]:
    """Return what two receipts of one request state alike, also if the software is newer."""
    asked, done = receipt.asked, receipt.done
    return (
        asked.kind, asked.records, asked.people, done.unlearning, done.rounds, done.client_rounds,
        done.online, done.seconds, done.data,
    )  # fmt: skip
