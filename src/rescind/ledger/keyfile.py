"""How `keys.bin` is laid out in slots of 64 bytes, and what a file tells before it is opened.

    slot 0         the server's own secret
    slots 1, 2     the log's size and root and the batch's number, written in turn
    slot n         id (8 bytes), key (32), check (24); all zero: free

The head has two places, so that a torn write leaves the older. Ids are random and never used again;
those below `RESERVED` are the server's own keys.

The secret is made once and never changes. So two files with one secret are copies of one service's
keys, however old, and two secrets are two services: neither is ever written over the other.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rescind.errors import ConfigError

FILE = "keys.bin"
SLOT, KEY, CHECK = 64, 32, 24
FREE = bytes(SLOT)
FIRST = 3
"""Slots before it: the secret and the two places of the head."""
RESERVED = 1 << 32
SECRET, SIGNER, LOG_KEY = 1, 2, 3
"""Ids of the server's own keys: its secret, the key of receipts, the key of the log."""


@dataclass(frozen=True)
class Head:
    """How far the ledger was when keys were last destroyed: an older ledger does not fit."""

    size: int = 0
    batch: int = 0
    root: bytes = bytes(32)


def check(place: int, body: bytes, size: int) -> bytes:
    """Return what stands at the end of a slot that is whole."""
    slot = place.to_bytes(8, "little")
    return hashlib.blake2b(slot + body, digest_size=size, person=b"rescind slot").digest()


def head_at(place: int, slot: bytes) -> Head | None:
    """Return a head, or None if it is not whole."""
    body = slot[:48]
    if len(slot) < SLOT or slot == FREE or check(place, body, SLOT - len(body)) != slot[48:]:
        return None
    size, batch = struct.unpack("<QQ", body[:16])
    return Head(size, batch, body[16:])


def heads_in(data: bytes) -> list[Head | None]:
    """Return both heads of a file."""
    return [head_at(place, data[SLOT * place : SLOT * (place + 1)]) for place in (1, 2)]


def head_of(path: Path) -> Head:
    """Return the newest head in a file of keys, also while a service has it; none: no file."""
    try:
        with open(path, "rb") as file:
            data = file.read(SLOT * FIRST)
    except FileNotFoundError:
        return Head()
    return newest_head(heads_in(data))


def keys_in(data: bytes) -> dict[int, int]:
    """Return the ids of all keys that are whole, the secret left out, and their places."""
    return {
        id_of(slot): place
        for place, slot in enumerate(slots_in(data))
        if place >= FIRST and is_whole(place, slot)
    }


def torn_in(data: bytes) -> int:
    """Return how many slots are neither free nor whole."""
    slots = enumerate(slots_in(data))
    return sum(p >= FIRST and slot != FREE and not is_whole(p, slot) for p, slot in slots)


def is_whole(place: int, slot: bytes) -> bool:
    """Whether a slot holds a key, and all of it."""
    return slot != FREE and check(place, slot[:40], CHECK) == slot[40:]


def id_of(slot: bytes) -> int:
    """Return the id of the key in a slot."""
    return int.from_bytes(slot[:8], "little")


def newest_head(heads: list[Head | None]) -> Head:
    """Return the newest head that is whole."""
    return max((h for h in heads if h), key=lambda h: (h.batch, h.size), default=Head())


def slots_in(data: bytes) -> Iterator[bytes]:
    """Return the slots of a file, in order."""
    return (data[at : at + SLOT] for at in range(0, len(data) - SLOT + 1, SLOT))


def contents(path: Path) -> bytes:
    """Return the bytes of a file of keys; none: no file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise ConfigError(
            f"cannot read the keys {path}: {error.strerror}. Name a file that you can read."
        ) from None


def identity(secret: bytes | None) -> str | None:
    """Return what may be told of a secret: it is in the ledger, to say which keys are its own."""
    return None if secret is None else hmac.digest(secret, b"identity", "sha256").hex()


def secret_of(data: bytes) -> bytes | None:
    """Return the server's secret; None: it is not there, or not whole."""
    slot = data[:SLOT]
    whole = len(slot) == SLOT and is_whole(0, slot)
    return slot[8:40] if whole and id_of(slot) == SECRET else None
