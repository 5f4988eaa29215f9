"""Lines that devices made: the silo of each device signs them, so the server can make up none.

The operator publishes `signed.json` beside the roster: which silo signed which lines, when, for
which log and which number of a roster. A stranger needs the public keys of the silos (`silos.pub`
of a kit).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from rescind.errors import ConfigError, DataError
from rescind.proof.roster import Public, Stated, digest, split

FILE = "signed.json"


@dataclass(frozen=True)
class Signed:
    """What one silo signed: the lines of its devices."""

    silo: int
    lines: tuple[str, ...]
    """Digests, in their order."""
    time: str
    """When its devices made them, by the silo's clock."""
    signature: str


def text_of(origin: str, number: int, time: str, lines: Iterable[str]) -> bytes:
    """Return what a silo signs. number: of the roster, so that old lines cannot be shown again"""
    head = ["rescind roster lines 2", origin, str(number), time]
    return "\n".join([*head, *sorted(lines), ""]).encode()


def written(signed: Sequence[Signed]) -> bytes:
    rows = [asdict(one) for one in signed]
    return (json.dumps(rows, indent=1) + "\n").encode()


def read(data: bytes) -> list[Signed]:
    """Read `signed.json`, or raise `DataError`."""
    try:
        rows: list[dict[str, Any]] = json.loads(data)
        return [
            Signed(int(r["silo"]), tuple(map(str, r["lines"])), str(r["time"]), str(r["signature"]))
            for r in rows
        ]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{FILE} does not say who signed which lines ({error}).") from None


def keys_in(data: bytes) -> list[ec.EllipticCurvePublicKey]:
    """Read the public keys of all silos, one line each, the first of silo 0."""
    try:
        keys = [load_ssh_public_key(line) for line in data.splitlines()]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"these are not the public keys of silos ({error}).") from None
    found = [key for key in keys if isinstance(key, ec.EllipticCurvePublicKey)]
    if not found or len(found) < len(keys):
        raise ConfigError("the keys of silos are ECDSA keys, one on each line (silos.pub).")
    return found


def check(
    public: Public,
    signed: Sequence[Signed],
    silos: Sequence[ec.EllipticCurvePublicKey],
    after: str | None = None,
) -> list[str]:
    """Return what holds; raise `DataError` if a line is not of a device, or a device's is missing.

    Comes after `roster.check`, which says that the lines add up. after: a time, as receipts state
    it; lines that were made before it may still hold what was erased then
    """
    number, origin = Stated.parse(public.stated).number, public.log.checkpoint.origin
    known = [one for part in signed for one in part.lines]
    for part in signed:
        if not _holds(part, origin, number, silos):
            raise DataError(f"silo {part.silo} did not sign these lines for roster {number}.")
    given = [digest(line) for line in split(public.lines)]
    if made_up := set(given) - set(known):
        raise DataError(f"{len(made_up)} lines were made by no device: {min(made_up)[:16]}.")
    if missing := set(known) - set(given):
        raise DataError(f"{len(missing)} lines of devices are missing: {min(missing)[:16]}.")
    if len(known) != len(given) or len({part.silo for part in signed}) != len(signed):
        raise DataError("a silo, or a line, stands twice among the signed ones.")
    if absent := set(range(len(silos))) - {part.silo for part in signed}:
        raise DataError(f"silo {min(absent)} signed no lines, so its devices may be left out.")
    oldest = min(signed, key=lambda part: part.time)
    if after is not None and oldest.time < after:
        raise DataError(
            f"the devices of silo {oldest.silo} made their lines on {oldest.time}, before {after}: "
            f"the lines may hold what was erased then."
        )
    return [
        f"all {len(given):,} lines were made by devices of {len(signed)} silos, the first on "
        f"{oldest.time}"
    ]


def _holds(
    part: Signed, origin: str, number: int, silos: Sequence[ec.EllipticCurvePublicKey]
) -> bool:
    try:
        text = text_of(origin, number, part.time, part.lines)
        silos[part.silo].verify(bytes.fromhex(part.signature), text, ec.ECDSA(SHA384()))
    except (InvalidSignature, IndexError, ValueError):
        return False
    return part.silo >= 0
