"""Ten recovery codes: each opens the account once if every passkey is lost.

A code is 25 letters and digits in five groups. The first two groups find its row, by a keyed
digest; the other three are secret, kept as an Argon2id digest under the account's key.
"""

from __future__ import annotations

import hmac
import secrets

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from rescind.ledger.accounts import Code
from rescind.ledger.credentials import Found

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: nothing that is mistaken for something else."""
GROUP, GROUPS, FINDS = 5, 5, 2
COUNT = 10
MEMORY_KIB, ITERATIONS = 19 * 1024, 2
"""OWASP's smallest setting for Argon2id; the secret part has 75 random bits anyway."""


def new_codes(count: int = COUNT) -> tuple[list[str], tuple[Code, ...]]:
    """Return codes for their owner, and what is kept of them."""
    texts = [new_text() for _ in range(count)]
    return texts, tuple(map(kept, texts))


def new_text() -> str:
    groups = ("".join(secrets.choice(ALPHABET) for _ in range(GROUP)) for _ in range(GROUPS))
    return "-".join(groups)


def split(text: str) -> tuple[bytes, bytes]:
    """Return the part that finds the row, and the secret. Case, spaces and hyphens do not count."""
    plain = "".join(c for c in text.upper() if c.isalnum()).translate(str.maketrans("OIL", "011"))
    cut = GROUP * FINDS
    return b"recovery " + plain[:cut].encode(), plain[cut : GROUP * GROUPS].encode()


def matches(text: str, found: Found | None) -> bool:
    """Whether a code is the one kept. It takes as long if there is none."""
    salt = bytes.fromhex(found.plain["salt"]) if found else bytes(16)
    digest = bytes.fromhex(found.plain["digest"]) if found else bytes(32)
    return hmac.compare_digest(_slow_digest(split(text)[1], salt), digest) and found is not None


def kept(text: str) -> Code:
    """Return what is kept of a code. It takes a while, on purpose."""
    lookup, secret = split(text)
    salt = secrets.token_bytes(16)
    return Code(lookup, salt, _slow_digest(secret, salt))


def _slow_digest(secret: bytes, salt: bytes) -> bytes:
    kdf = Argon2id(salt=salt, length=32, iterations=ITERATIONS, lanes=1, memory_cost=MEMORY_KIB)
    return kdf.derive(secret)
