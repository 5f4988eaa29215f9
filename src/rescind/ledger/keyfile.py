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
from collections.abc import Iterator, Sequence
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
SET_UP = 8
"""Slots of a disk's sector: what a set-up writes is in the first one, also if it began twice."""
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


def ids_in(path: Path) -> set[int]:
    """Return the ids of the keys of boxes in a file, without opening it for writing."""
    data = contents(path)
    whole = (
        slot
        for place, slot in enumerate(slots_in(data))
        if place >= FIRST and slot != FREE and check(place, slot[:40], CHECK) == slot[40:]
    )
    return {slot_id for slot in whole if (slot_id := id_of(slot)) >= RESERVED}


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


def identity_in(path: Path) -> str | None:
    """Return whose keys a file holds; None: nobody's."""
    return identity(_secret(contents(path)))


def check_copies(paths: Sequence[Path], found: Sequence[bytes]) -> int:
    """Return which copy is the newest; refuse files that are no keys, or of two services.

    Nothing may be written before it. The first copy is written first, so it is newer if both say
    the same.
    """
    for path, data in zip(paths, found, strict=True):
        if _secret(data) is None and not _unfinished(data):
            raise CannotStart(_no_keys(path, mirror=path != paths[0]))
    if len(found) == 1:
        return 0
    (path, mirror), (first, second) = paths, map(_secret, found)
    if first is not None and second is not None and first != second:
        raise CannotStart(
            f"{mirror} holds the keys of another service than {path}. Nothing was changed. Name "
            f"another file as the mirror (--keys-mirror FILE); if {mirror} is the right one, move "
            f"the other away: {_moved(path)}"
        )
    heads = [newest_head(heads_in(data)) for data in found]
    newer = second is not None and (first is None or heads[1].batch > heads[0].batch)
    if newer and heads[0] != Head():  # without a head it is a copy that was not finished
        raise CannotStart(
            f"the mirror {mirror} is newer than {path}, which is an old copy. Nothing was changed. "
            f"Put the mirror in its place: {_moved(path)} && cp {quote(str(mirror))} "
            f"{quote(str(path))}. Delete {path}.old when all is well: it holds keys that were "
            f"destroyed since."
        )
    return int(newer)


def check_files(path: Path, mirror: Path | None) -> None:
    """Refuse files of keys that `KeySlots` would refuse, before a ledger is opened for them."""
    paths = [one for one in (path, mirror) if one is not None]
    check_copies(paths, [contents(one) for one in paths])


def _secret(data: bytes) -> bytes | None:
    slot = data[:SLOT]
    whole = len(slot) == SLOT and slot != FREE and check(0, slot[:40], CHECK) == slot[40:]
    return slot[8:40] if whole and id_of(slot) == SECRET else None


def _unfinished(data: bytes) -> bool:
    """Whether a file is empty, or its set-up was killed: nothing needs what is in it."""
    beyond = data[SLOT : SLOT * FIRST] + data[SLOT * SET_UP :]
    return len(data) % SLOT == 0 and not any(beyond)


def _no_keys(path: Path, mirror: bool) -> str:
    text = f"{path} does not hold the server's secret: it is no file of keys, or was changed or cut"
    if mirror:
        return (
            f"{text}. Nothing was changed. Name the right file. If it was the mirror and {FILE} is "
            f"whole, move it away ({_moved(path)}), and the next start writes a new one."
        )
    return (
        f"{text}. Nothing was changed. Put the right file back (a copy of --keys-mirror), or move "
        f"it away to start with new keys: then nothing that was lent can be opened. {_moved(path)}"
    )


def _moved(path: Path) -> str:
    return f"mv {quote(str(path))} {quote(str(path) + '.old')}"
