"""How `keys.bin` is laid out in slots of 64 bytes, and what a file tells before it is opened.

    slot 0         the server's own secret
    slots 1, 2     the log's size and root and the batch's number, written in turn
    slot n         id (8 bytes), key (32), check (24); all zero: free

The head has two places, so that a torn write leaves the older. Ids are random and never used again;
those below `RESERVED` are the server's own keys.

The secret is made once and never changes. So two files with one secret are copies of one service's
keys, however old, and two secrets are two services: neither is ever written over the other.

A copy may be damaged: cut, or with blocks of zeros or noise. Every slot says whether it is whole,
so a lost key is taken from the other copy, and files are written only when that is decided. The id
of a key is never used again: a key that the ledger names is the right one, however old its copy.
Other keys are taken only from a copy of the same age, because an older one holds keys that were
destroyed since.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rescind.errors import ConfigError
from rescind.ledger.errors import CannotStart

FILE = "keys.bin"
SLOT, KEY, CHECK = 64, 32, 24
FREE = bytes(SLOT)
FIRST = 3
"""Slots before it: the secret and the two places of the head."""
RESERVED = 1 << 32
SECRET, SIGNER, LOG_KEY = 1, 2, 3
"""Ids of the server's own keys: its secret, the key of receipts, the key of the log."""
SET_UP = 8
"""Slots of a disk's sector: what a set-up writes is in the first one, also if it began twice."""


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
    body = slot[:48]
    if len(slot) < SLOT or slot == FREE or check(place, body, SLOT - len(body)) != slot[48:]:
        return None
    size, batch = struct.unpack("<QQ", body[:16])
    return Head(size, batch, body[16:])


def heads_in(data: bytes) -> list[Head | None]:
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


def is_whole(place: int, slot: bytes) -> bool:
    """Whether a slot holds a key, and all of it."""
    return slot != FREE and check(place, slot[:40], CHECK) == slot[40:]


def id_of(slot: bytes) -> int:
    return int.from_bytes(slot[:8], "little")


def newest_head(heads: list[Head | None]) -> Head:
    return max((h for h in heads if h), key=lambda h: (h.batch, h.size), default=Head())


def slots_in(data: bytes) -> Iterator[bytes]:
    return (data[at : at + SLOT] for at in range(0, len(data) - SLOT + 1, SLOT))


def contents(path: Path) -> bytes:
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


@dataclass(frozen=True)
class Joined:
    """What all copies should hold."""

    data: bytes
    newest: int
    """The copy that it begins with: the others fill what this one lost."""

    @property
    def head(self) -> Head:
        return newest_head(heads_in(self.data))


def joined(paths: Sequence[Path], found: Sequence[bytes], needed: Collection[int] = ()) -> Joined:
    """Join copies of one service's keys, in memory. needed: ids that the ledger names"""
    newest = check_copies(paths, found)
    data = _whole_slots(found[newest])
    for other in found:
        if other != found[newest] and secret_of(data) is not None and _is_copy(other, data):
            data = _filled(data, other, needed)
    return Joined(data, newest)


def check_copies(paths: Sequence[Path], found: Sequence[bytes]) -> int:
    """Return which copy is the newest; refuse files that are no keys, or of two services.

    Nothing may be written before it. The first copy is written first, so it is newer if both say
    the same.
    """
    for path, data in zip(paths, found, strict=True):
        if secret_of(data) is not None or _unfinished(data):
            continue
        others = [one for one in found if secret_of(one) is not None]
        if not any(_is_copy(data, one) for one in others):
            raise CannotStart(
                f"{path} holds no keys of this service: it is another file, or was changed or cut. "
                f"Nothing was changed. Put the right file back, or move this one away; without any "
                f"copy nothing that was lent opens."
            )
    if len(found) == 1:
        return 0
    (path, mirror), (first, second) = paths, map(secret_of, found)
    if first is not None and second is not None and first != second:
        raise CannotStart(
            f"{mirror} holds the keys of another service than {path}. Nothing was changed. Name "
            f"another file as the mirror (--keys-mirror FILE), or move the wrong one away."
        )
    heads = [newest_head(heads_in(data)) for data in found]
    newer = second is not None and (first is None or heads[1].batch > heads[0].batch)
    if newer and first is not None and heads[0] != Head():  # without one: damaged or not finished
        raise CannotStart(
            f"the mirror {mirror} is newer than {path}. Nothing was changed. Put it in its place: "
            f"cp {quote(str(mirror))} {quote(str(path))}. Keep no old copy: it holds keys that "
            f"were destroyed since."
        )
    return int(newer)


def check_files(path: Path, mirror: Path | None) -> None:
    """Refuse files of keys that `KeySlots` would refuse, before a ledger is opened for them."""
    paths = [one for one in (path, mirror) if one is not None]
    check_copies(paths, [contents(one) for one in paths])


def _filled(data: bytes, other: bytes, needed: Collection[int]) -> bytes:
    """Take keys that are not there from another copy; never write over one that is whole."""
    same_age = newest_head(heads_in(data)) == newest_head(heads_in(other))
    there = keys_in(data)
    used, lost = set(there.values()), keys_in(other)
    for slot_id in there.keys() & lost.keys():
        del lost[slot_id]
    full = bytearray(data.ljust(len(_whole_slots(other)), b"\0"))
    for slot_id, place in lost.items():
        if same_age or slot_id < RESERVED or slot_id in needed:
            at = len(full) // SLOT if place in used else place  # it may have been used again
            body = other[SLOT * place : SLOT * place + 40]
            full[SLOT * at : SLOT * (at + 1)] = body + check(at, body, CHECK)
    return bytes(full)


def _is_copy(data: bytes, other: bytes) -> bool:
    """Whether a file is a copy of another one's keys. Without its secret, its other slots tell."""
    if (secret := secret_of(data)) is not None:
        return secret == secret_of(other)
    keys, others = keys_in(data), keys_in(other)
    return bool(keys.items() & others.items()) or (bool(data) and other.startswith(data))


def _whole_slots(data: bytes) -> bytes:
    return data[: len(data) // SLOT * SLOT]


def _unfinished(data: bytes) -> bool:
    """Whether a file is empty, or its set-up was killed: nothing needs what is in it."""
    beyond = data[SLOT : SLOT * FIRST] + data[SLOT * SET_UP :]
    used = any(slot_id >= RESERVED for slot_id in keys_in(data[: SLOT * SET_UP]))
    return len(data) % SLOT == 0 and not any(beyond) and not used
