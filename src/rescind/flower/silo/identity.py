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
    Encoding,
    PublicFormat,
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


def check_place(kit: Path, number: int, count: int) -> None:
    """Refuse another place than that of the silo whose part of a kit this is.

    With a wrong number a silo takes the place of another one, and a new folder.

    number, count: of --silo
    """
    found = _place(kit)
    if found is None or found == (number, count):
        return
    own, silos = found
    if number != own and number < silos:
        raise ConfigError(
            f"{kit} is the kit of silo {own}, and --silo {number}/{count} was given. If this "
            f"machine is silo {own}, give --silo {own}/{silos}. If it is silo {number}, copy that "
            f"silo's part of the kit here and give it with --kit. Nothing was changed."
        )
    raise ConfigError(
        f"{kit} is the kit of silo {own} of {silos}, and --silo {number}/{count} was given. Give "
        f"--silo {own}/{silos}. For another number of silos make a new kit (rescind flower kit "
        f"--silos {count}). Nothing was changed."
    )


def _place(kit: Path) -> tuple[int, int] | None:
    """Return the number of the silo whose key is in this part of a kit, and the number of silos.

    None: the part does not say it, because its version had no silos.pub, or its key is missing
    """
    if not (kit / "node.key").is_file() or not (kit / FILE).is_file():
        return None
    try:
        key = load_ssh_private_key((kit / "node.key").read_bytes(), password=None)
        lines = (kit / FILE).read_bytes().splitlines()
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{kit} has no readable node.key and {FILE} ({error}). Copy this silo's part of the "
            f"kit here again."
        ) from None
    own = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()
    for number, line in enumerate(lines):
        if line.split()[:2] == own:  # its third word is a name
            return number, len(lines)
    raise ConfigError(
        f"the files in {kit} are of different kits: its node.key is of none of the silos in its "
        f"{FILE}. Copy this silo's whole part of one kit here again, the kit of the server."
    )
