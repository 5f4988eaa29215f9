"""`keys.bin`: the keys of everything personal on disk, in slots of 64 bytes.

    slot 0         the server's own secret
    slots 1, 2     the log's size and root and the batch's number, written in turn
    slot n         id (8 bytes), key (32), check (24); all zero: free

Erasing is overwriting a slot in place and then syncing; nothing else counts as deletion. A slot
that was written only in part fails its check: it was a key that nothing needs yet, or one that was
being destroyed, so it is destroyed. The head has two places, so that a torn write leaves the older.

Ids are random and never used again. Ids below `RESERVED` are the server's own keys.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from functools import cache
from pathlib import Path
from typing import Any

from rescind.core.files import sync_folder
from rescind.errors import ConfigError, DataError
from rescind.ledger.errors import CannotStart, DiskFull

FILE = "keys.bin"
SLOT, KEY, CHECK, NONCE = 64, 32, 24, 12
FREE = bytes(SLOT)
FIRST = 3
"""Slots before it: the secret and the two places of the head."""
GROW = 1024
"""Slots that a full file grows by: 64 KB, so that it rarely grows."""
RESERVED = 1 << 32
SECRET, SIGNER, LOG_KEY = 1, 2, 3
"""Ids of the server's own keys: its secret, the key of receipts, the key of the log."""


@dataclass(frozen=True)
class Slot:
    """A key and the id under which tables name it."""

    id: int
    key: bytes

    def __repr__(self) -> str:
        return f"Slot({self.id})"  # a key never gets into a message


@dataclass(frozen=True)
class Head:
    """How far the ledger was when keys were last destroyed: an older ledger does not fit."""

    size: int = 0
    batch: int = 0
    root: bytes = bytes(32)


def about(person: bytes | str | None, table: str, column: str) -> bytes:
    """Return what a box is bound to. A box in another row or column does not open."""
    whose = person.encode() if isinstance(person, str) else person or b""
    return b"\0".join((b"rescind", table.encode(), column.encode(), whose))


class KeySlots:
    """The slots of one state folder. One process has them; one thread writes them."""

    def __init__(self, path: Path, mirror: Path | None = None) -> None:
        """Open or make the file, and lock it. mirror: a second copy on another disk"""
        self.path, self.torn = path, 0
        self.fresh = not path.exists()
        """Whether the file was not there: then only a mirror opens boxes of an older ledger."""
        self.copied = False
        """Whether the keys of the mirror were taken, because the first copy had none."""
        self._files = [_opened(one) for one in (path, mirror) if one is not None]
        self._places: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}
        self._free: list[int] = []
        self._heads: list[Head | None] = [None, None]
        self._dirty = False
        try:
            if mirror is not None:
                self._make_equal(mirror)
            self._load()
            if SECRET not in self._keys:
                self._set_up()
            self._under_secret: Any = hmac.new(self._keys[SECRET], digestmod="sha256")
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> set[int]:
        """Ids of all keys of boxes; the server's own are not among them."""
        return {slot_id for slot_id in self._keys if slot_id >= RESERVED}

    @property
    def head(self) -> Head:
        """The newest head that is whole."""
        return _newest(self._heads)

    def new(self) -> Slot:
        """Make a key; `sync` makes it durable. Raise `DiskFull` if the file cannot grow."""
        slot_id, key = 0, b""
        while slot_id < RESERVED or slot_id in self._keys:
            drawn = secrets.token_bytes(8 + KEY)
            slot_id, key = int.from_bytes(drawn[:8]) >> 1, drawn[8:]  # 63 bits: signed in tables
        return self._put(slot_id, key)

    def get(self, slot_id: int) -> Slot:
        """Return a key, or raise `DataError` if it was destroyed."""
        try:
            return Slot(slot_id, self._keys[slot_id])
        except KeyError:
            raise DataError("the key of this box was destroyed: it cannot be opened.") from None

    def own(self, slot_id: int) -> bytes:
        """Return one of the server's own keys."""
        return self._keys[slot_id]

    def destroy(self, slot_id: int) -> None:
        """Overwrite a slot in place; `sync` makes it final. A key that is gone stays gone."""
        place = self._places.pop(slot_id, None)
        if place is None:
            return
        del self._keys[slot_id]
        self._write(place, FREE)
        self._free.append(place)

    def write_head(self, head: Head) -> None:
        """Write how far the ledger is, over the older of two places."""
        place = 0 if self._heads[0] != self.head else 1
        self._heads[place] = head
        body = struct.pack("<QQ", head.size, head.batch) + head.root
        self._write(1 + place, body + _check(1 + place, body, SLOT - len(body)))

    def restart_head(self, head: Head) -> None:
        """Write both places: after a restore the ledger is older than it was."""
        self._heads = [None, None]
        for _ in range(2):
            self.write_head(head)
        self._heads = [head, head]
        self.sync()

    def sync(self) -> None:
        """Make everything durable. An error here is fatal to the caller: it is not tried again."""
        if self._dirty:
            for file in self._files:
                os.fdatasync(file)
            self._dirty = False

    def seal(self, slot: Slot, plain: bytes, bound_to: bytes) -> bytes:
        """Return a box: nonce and ciphertext."""
        return seal(slot.key, plain, bound_to)

    def unseal(self, slot_id: int, box: bytes, bound_to: bytes) -> bytes:
        """Open a box, or raise `DataError`."""
        return unseal(self.get(slot_id).key, box, bound_to)

    def keyed(self, purpose: bytes, data: bytes) -> bytes:
        """Return a digest under the server's secret."""
        digest = self._under_secret.copy()  # half the time of a new one
        digest.update(purpose + b"\0" + data)
        found: bytes = digest.digest()
        return found

    def without_box(self, named: Collection[int]) -> list[int]:
        """Return the ids of keys that nothing in the ledger names."""
        return sorted(self.ids - set(named))

    def close(self) -> None:
        """Close the files, which ends the locks."""
        for file in self._files:
            with suppress(OSError):
                os.close(file)
        self._files = []
        self._keys = {}
        self._under_secret = None

    def _set_up(self) -> None:
        if not self._free:
            self._grow()
        for slot_id in (SIGNER, LOG_KEY):
            self._put(slot_id, secrets.token_bytes(KEY))
        self._put(SECRET, secrets.token_bytes(KEY), 0)  # last: it says that the rest is there
        self.sync()
        sync_folder(self.path.parent)

    def _put(self, slot_id: int, key: bytes, place: int | None = None) -> Slot:
        if place is None:
            if not self._free:
                self._grow()
            place = self._free.pop()
        body = struct.pack("<Q", slot_id) + key
        try:
            self._write(place, body + _check(place, body, CHECK))
        except DiskFull:
            self._free.append(place)
            raise
        self._places[slot_id], self._keys[slot_id] = place, key
        return Slot(slot_id, key)

    def _write(self, place: int, data: bytes) -> None:
        self._dirty = True
        try:
            for file in self._files:
                os.pwrite(file, data, SLOT * place)
        except OSError as error:
            raise _full(error, self.path) from None

    def _grow(self) -> None:
        size = os.fstat(self._files[0]).st_size // SLOT
        try:
            for file in self._files:
                os.posix_fallocate(file, SLOT * size, SLOT * GROW)
        except OSError as error:
            raise _full(error, self.path) from None
        self._dirty = True
        self._free += range(size + GROW - 1, max(size, FIRST) - 1, -1)

    def _load(self) -> None:
        data = _contents(self._files[0])
        for place, slot in enumerate(_slots(data)):
            if place in (1, 2):
                self._heads[place - 1] = _head(place, slot)
            elif slot == FREE:
                self._free += [place] * (place >= FIRST)
            elif _check(place, slot[:40], CHECK) != slot[40:]:
                self._mend(place)
            else:
                slot_id = _id_of(slot)
                self._places[slot_id], self._keys[slot_id] = place, slot[8:40]
        self._free.reverse()
        if SECRET not in self._keys and any(data[SLOT * FIRST :]) and self.head != Head():
            raise CannotStart(
                f"{self.path} does not hold the server's secret: it was changed or cut. "
                f"Put the right file back (a copy of --keys-mirror), or move it away to start with "
                f"new keys: then nothing that was lent can be opened."
            )

    def _mend(self, place: int) -> None:
        """Finish a write that a crash tore: whichever it was, the key must not be there."""
        if place == 0:
            return
        self.torn += 1
        self._write(place, FREE)
        self._free.append(place)

    def _make_equal(self, mirror: Path) -> None:
        """Bring both copies to the same bytes: the first one is written first, so it is newer."""
        first, second = (_contents(file) for file in self._files)
        batches = [max((h.batch for h in _heads(one) if h), default=-1) for one in (first, second)]
        if any(first) and batches[1] > batches[0]:
            raise CannotStart(
                f"the mirror {mirror} is newer than {self.path}, which is an old copy. "
                f"Put the mirror in its place: cp {mirror} {self.path}"
            )
        self.copied = any(second) and not any(first)
        whole = second if self.copied else first
        for file, found in zip(self._files, (first, second), strict=True):
            if found != whole:
                os.pwrite(file, whole, 0)
                os.ftruncate(file, len(whole))
                self._dirty = True
        self.sync()


def seal(key: bytes, plain: bytes, bound_to: bytes) -> bytes:
    """Encrypt and authenticate: nonce and ciphertext."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + _cipher()(key).encrypt(nonce, plain, bound_to)


def unseal(key: bytes, box: bytes, bound_to: bytes) -> bytes:
    """Decrypt, or raise `DataError` if the box was changed, moved or is under another key."""
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher()(key).decrypt(box[:NONCE], box[NONCE:], bound_to)
    except (InvalidTag, ValueError):
        raise DataError("this box was changed, or belongs elsewhere: it does not open.") from None


@cache
def _cipher() -> Any:
    """Load the cipher at its first use."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305


def _check(place: int, body: bytes, size: int) -> bytes:
    slot = place.to_bytes(8, "little")
    return hashlib.blake2b(slot + body, digest_size=size, person=b"rescind slot").digest()


def _head(place: int, slot: bytes) -> Head | None:
    body, check = slot[:48], slot[48:]
    if len(slot) < SLOT or slot == FREE or _check(place, body, SLOT - len(body)) != check:
        return None
    size, batch = struct.unpack("<QQ", body[:16])
    return Head(size, batch, body[16:])


def _heads(data: bytes) -> list[Head | None]:
    return [_head(place, data[SLOT * place : SLOT * (place + 1)]) for place in (1, 2)]


def head_of(path: Path) -> Head:
    """Return the newest head in a file of keys, also while a service has it; none: no file."""
    try:
        with open(path, "rb") as file:
            data = file.read(SLOT * FIRST)
    except FileNotFoundError:
        return Head()
    return _newest(_heads(data))


def ids_in(path: Path) -> set[int]:
    """Return the ids of the keys of boxes in a file, without opening it for writing."""
    data = path.read_bytes() if path.exists() else b""
    whole = (
        slot
        for place, slot in enumerate(_slots(data))
        if place >= FIRST and slot != FREE and _check(place, slot[:40], CHECK) == slot[40:]
    )
    return {slot_id for slot in whole if (slot_id := _id_of(slot)) >= RESERVED}


def _id_of(slot: bytes) -> int:
    return int.from_bytes(slot[:8], "little")


def _newest(heads: list[Head | None]) -> Head:
    return max((h for h in heads if h), key=lambda h: (h.batch, h.size), default=Head())


def _slots(data: bytes) -> Iterator[bytes]:
    return (data[at : at + SLOT] for at in range(0, len(data) - SLOT + 1, SLOT))


def _contents(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _opened(path: Path) -> int:
    """Open a file of keys, mode 600, and lock it, so that no second process writes it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot open the keys {path}: {error.strerror}. Name a folder that you can write to."
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise CannotStart(
            f"{path} is in use by another process: two services on one state would lose changes. "
            f"End the other one first, or give this one a folder of its own."
        ) from None
    if mode := os.fstat(file).st_mode & 0o077:
        os.close(file)
        raise CannotStart(
            f"other users may read or change {path} (mode {mode:03o}), so its keys are not secret. "
            f"If no one else has read it: chmod 600 {path}"
        )
    return file


def _full(error: OSError, path: Path) -> Exception:
    if error.errno in (ENOSPC, EDQUOT):
        return DiskFull(f"the disk of {path.name} is full: nothing was written. Send it again.")
    return error
