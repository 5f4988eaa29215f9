"""Signatures of the operator, the only one who may submit runs.

Flower's own account login needs a commercial plugin. Ours is a signature (Ed25519) of each request
in one header: time, random number, signature. The server has only the public key.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from rescind.errors import ConfigError
from rescind.privacy import keys

HEADER = "rescind-operator"
FRESH = 300.0
"""Seconds for which a signature is valid. A longer difference of two clocks is an error."""


def load_operator_key(path: Path) -> Ed25519PrivateKey:
    """Read the operator's private key. It is refused if other users can read it."""
    try:
        key = load_pem_private_key(keys.read_private(path), None)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is not an operator's key. Use the one of your kit.")
    return key


def signed(key: Ed25519PrivateKey, path: str, body: bytes) -> str:
    """Return the header for a request to this path with this body."""
    at, once = f"{time.time():.0f}", secrets.token_hex(16)
    return f"{at}.{once}.{key.sign(_text(path, body, at, once)).hex()}"


@dataclass
class OperatorCheck:
    """Checks signatures of requests. Each is accepted once."""

    public: str
    """The operator's public key, as `keys.public_text` writes it."""
    seen: dict[str, float] = field(default_factory=dict)
    """Random numbers of accepted requests, and when they may be forgotten."""

    def refusal(self, header: str | None, path: str, body: bytes) -> str | None:
        """Return why a request is refused; None if the operator signed it."""
        if not header:
            return "it is not signed by the operator"
        at, _, rest = header.partition(".")
        once, _, signature = rest.partition(".")
        try:
            key = Ed25519PublicKey.from_public_bytes(
                bytes.fromhex(self.public.removeprefix(keys.PREFIX))
            )
            key.verify(bytes.fromhex(signature), _text(path, body, at, once))
            age = time.time() - int(at)
        except (InvalidSignature, ValueError):
            return "its signature is not the operator's"
        if not abs(age) <= FRESH:
            return f"it was signed {age:.0f} s ago ({FRESH:.0f} s are allowed); check the clocks"
        self.seen = {name: until for name, until in self.seen.items() if until > time.time()}
        if once in self.seen:
            return "it was sent before"
        self.seen[once] = time.time() + 2 * FRESH
        return None


def _text(path: str, body: bytes, at: str, once: str) -> bytes:
    return f"rescind\n{path}\n{at}\n{once}\n{hashlib.sha256(body).hexdigest()}".encode()
