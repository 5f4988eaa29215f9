"""A silo's long-term key, and the public keys of the other silos, from its part of a kit.

With them silos know each other's keys of a round, and the server cannot put itself in the place of
the others. They come with the kit, not from the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from rescind.errors import ConfigError

FILE = "silos.pub"
"""The public keys of all silos, one line each, the first of silo 0."""


@dataclass(frozen=True)
class Identity:
    """The key that a silo signs with, and those it verifies with."""

    key: ec.EllipticCurvePrivateKey
    silos: Mapping[int, ec.EllipticCurvePublicKey]

    @classmethod
    def of_kit(cls, kit: Path) -> Identity:
        """Read the silo's part of a kit."""
        try:
            key = load_ssh_private_key((kit / "node.key").read_bytes(), password=None)
            lines = (kit / FILE).read_bytes().splitlines()
            silos = {number: load_ssh_public_key(line) for number, line in enumerate(lines)}
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{kit} has no readable node.key and {FILE} ({error}). Without the other silos' "
                f"keys a server could pretend to be them. Make a new kit (rescind flower kit), or "
                f"join without --secure."
            ) from None
        found = {n: one for n, one in silos.items() if isinstance(one, ec.EllipticCurvePublicKey)}
        if len(found) < len(silos) or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"the keys in {kit} are not ECDSA keys. Make a new kit.")
        return cls(key, found)

    def sign(self, data: bytes) -> str:
        """Return a signature as hexadecimal digits."""
        return self.key.sign(data, ec.ECDSA(SHA384())).hex()

    def verifies(self, silo: int, data: bytes, signature: str) -> bool:
        """Return whether a silo has signed these bytes."""
        try:
            self.silos[silo].verify(bytes.fromhex(signature), data, ec.ECDSA(SHA384()))
        except (InvalidSignature, KeyError, ValueError):
            return False
        return True
