"""Shamir's secret sharing (1979): enough shares give a secret back, fewer say nothing about it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**521 - 1
"""Shares are numbers modulo this Mersenne prime, so a secret may have up to 64 bytes."""
SECRET_BYTES = 32


def split(secret: bytes, needed: int, holders: Iterable[int]) -> dict[int, int]:
    """Return a share for each holder, of whom `needed` can recover the secret together.

    A share is the value, at the holder's number + 1, of a random polynomial of degree needed - 1
    whose value at 0 is the secret.
    """
    constant = int.from_bytes(secret, "big")
    polynomial = [*(secrets.randbelow(PRIME) for _ in range(needed - 1)), constant]

    def value(at: int) -> int:
        total = 0
        for coefficient in polynomial:  # Horner's rule, highest power first
            total = (total * at + coefficient) % PRIME
        return total

    return {holder: value(holder + 1) for holder in holders}


def join(shares: Mapping[int, int]) -> bytes:
    """Return the secret of these shares. Raises `ValueError` if they do not belong together.

    Too few shares, or a wrong one, give another number: compare the result with a commitment.
    """
    total = 0
    for holder, share in shares.items():
        above = below = 1
        for other in shares:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        total = (total + share * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong together")
    return total.to_bytes(SECRET_BYTES, "big")
