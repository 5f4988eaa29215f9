"""`keys.bin` while it is open: making and destroying keys, and boxes under them.

How the file is laid out, and how two copies become one, is in `ledger.keyfile`. Erasing is
overwriting a slot in place and then syncing; nothing else counts as deletion. A slot that was
written only in part fails its check: it was a key that nothing needs yet, or one that was being
destroyed, so it is destroyed. Whether anything needs it is asked before (`ledger.ownership`).
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from functools import cache
from pathlib import Path
from typing import Any

from rescind.core.files import sync_folder
from rescind.errors import ConfigError, DataError
from rescind.ledger.errors import CannotStart, DiskFull
from rescind.ledger.keyfile import (
    CHECK,
    FIRST,
    FREE,
    KEY,
    LOG_KEY,
    RESERVED,
    SECRET,
    SIGNER,
    SLOT,
    Head,
    Joined,
    check,
    contents,
    head_at,
    id_of,
    identity,
    is_whole,
    joined,
    keys_in,
    newest_head,
    slots_in,
)

NONCE = 12
GROW = 1024
"""Slots that a full file grows by: 64 KB, so that it rarely grows."""


@dataclass(frozen=True)
class Slot:
    """A key and the id under which tables name it."""

    id: int
    key: bytes

    def __repr__(self) -> str:
        return f"Slot({self.id})"  # a key never gets into a message


def about(person: bytes | str | None, table: str, column: str) -> bytes:
    """Return what a box is bound to. A box in another row or column does not open."""
    whose = person.encode() if isinstance(person, str) else person or b""
    return b"\0".join((b"rescind", table.encode(), column.encode(), whose))


class KeySlots:
    """The slots of one state folder. One process has them; one thread writes them."""

    def __init__(
        self,
        path: Path,
        mirror: Path | None = None,
        *,
        reading: bool = False,
        needed: Collection[int] = (),
    ) -> None:
        """Open or make the file, and lock it.

        mirror: a second copy on another disk    reading: make no file and write into none
        needed: ids that the ledger names: a copy that lost one gets it from the other
        """
        self.path, self.torn = path, 0
        self.fresh = not path.exists()
        """Whether the file was not there: then only a mirror opens boxes of an older ledger."""
        paths = [one for one in (path, mirror) if one is not None]
        self._locked = [_opened(one, reading) for one in paths if one.exists() or not reading]
        self._files = [] if reading else self._locked
        self._places: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}
        self._free: list[int] = []
        self._heads: list[Head | None] = [None, None]
        self._dirty = False
        try:
            found = [contents(one) for one in paths]
            all_of = joined(paths, found, needed)
            self.copied = all_of.newest > 0 and not keys_in(found[0])
            """Whether the keys of the mirror were taken, because the first copy had none."""
            self.lacked = _lacked(paths, found, all_of, needed)
            """The copies that had lost keys, and how many of those that the ledger names."""
            self._make_equal(found, all_of)
            self._load(all_of.data)
            if not reading and not {SECRET, SIGNER, LOG_KEY} <= self._keys.keys():
                self._set_up()
            self._under_secret: Any = hmac.new(self._keys.get(SECRET, b""), digestmod="sha256")
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
    def identity(self) -> str | None:
        """What tells these keys from those of another service; None: there are none yet."""
        return identity(self._keys.get(SECRET))

    @property
    def head(self) -> Head:
        return newest_head(self._heads)

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
        self._write(1 + place, _packed(1 + place, head))

    def restart_head(self, head: Head) -> None:
        """Write both places: after a restore the ledger is older than it was.

        The mirror's first: killed meanwhile, it must not be newer than the keys.
        """
        for file in reversed(self._files):
            for place in (1, 2):
                os.pwrite(file, _packed(place, head), SLOT * place)
            os.fdatasync(file)
        self._heads = [head, head]

    def sync(self) -> None:
        """Make everything durable. An error here is fatal to the caller: it is not tried again."""
        if self._dirty:
            for file in self._files:
                os.fdatasync(file)
            self._dirty = False

    def seal(self, slot: Slot, plain: bytes, bound_to: bytes) -> bytes:
        return seal(slot.key, plain, bound_to)

    def unseal(self, slot_id: int, box: bytes, bound_to: bytes) -> bytes:
        return unseal(self.get(slot_id).key, box, bound_to)

    def keyed(self, purpose: bytes, data: bytes) -> bytes:
        digest = self._under_secret.copy()  # half the time of a new one
        digest.update(purpose + b"\0" + data)
        found: bytes = digest.digest()
        return found

    def without_box(self, named: Collection[int]) -> list[int]:
        return sorted(self.ids - set(named))

    def close(self) -> None:
        for file in self._locked:
            with suppress(OSError):
                os.close(file)
        self._locked = self._files = []
        self._keys = {}
        self._under_secret = None

    def _make_equal(self, found: list[bytes], all_of: Joined) -> None:
        """Write copies that differ. The newest first: it only gains keys, so none is ever lost."""
        copies = list(enumerate(zip(self._files, found, strict=False)))  # reading: no files
        for _, (file, data) in sorted(copies, key=lambda one: one[0] != all_of.newest):
            if data != all_of.data:
                _copy(all_of.data, file)

    def _set_up(self) -> None:
        if not self._free:
            self._grow()
        for slot_id, place in ((SIGNER, None), (LOG_KEY, None), (SECRET, 0)):
            if slot_id not in self._keys:  # the secret is last: it says that the rest is there
                self._put(slot_id, secrets.token_bytes(KEY), place)
        self.sync()
        sync_folder(self.path.parent)

    def _put(self, slot_id: int, key: bytes, place: int | None = None) -> Slot:
        if place is None:
            if not self._free:
                self._grow()
            place = self._free.pop()
        body = struct.pack("<Q", slot_id) + key
        try:
            self._write(place, body + check(place, body, CHECK))
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

    def _load(self, data: bytes) -> None:
        for place, slot in enumerate(slots_in(data)):
            if place in (1, 2):
                self._heads[place - 1] = head_at(place, slot)
            elif slot == FREE:
                self._free += [place] * (place >= FIRST)
            elif not is_whole(place, slot):
                self._mend(place)
            else:
                slot_id = id_of(slot)
                self._places[slot_id], self._keys[slot_id] = place, slot[8:40]
        self._free.reverse()

    def _mend(self, place: int) -> None:
        """Finish a write that a crash tore: whichever it was, the key must not be there."""
        if place == 0:
            return
        self.torn += 1
        self._write(place, FREE)
        self._free.append(place)


def seal(key: bytes, plain: bytes, bound_to: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE)
    return nonce + _cipher()(key).encrypt(nonce, plain, bound_to)


def unseal(key: bytes, box: bytes, bound_to: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher()(key).decrypt(box[:NONCE], box[NONCE:], bound_to)
    except (InvalidTag, ValueError):
        raise DataError("this box was changed, or belongs elsewhere: it does not open.") from None


@cache
def _cipher() -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305


def _packed(place: int, head: Head) -> bytes:
    body = struct.pack("<QQ", head.size, head.batch) + head.root
    return body + check(place, body, SLOT - len(body))


def _lacked(
    paths: list[Path], found: list[bytes], all_of: Joined, needed: Collection[int]
) -> dict[Path, int]:
    """Count what copies with keys in them had lost. One that was not there yet had none."""
    if all(data == all_of.data for data in found):
        return {}
    whole = keys_in(all_of.data).keys() & {*needed, SIGNER, LOG_KEY}
    lost = {
        path: len(whole - there.keys())
        for path, data in zip(paths, found, strict=True)
        if data != all_of.data and (there := keys_in(data))
    }
    return {path: count for path, count in lost.items() if count}


def _copy(data: bytes, file: int) -> None:
    """Write a copy of keys into a file. Killed meanwhile, the next opening does it again.

    The secret comes first, so that the file is known to be of this service, and the heads last: a
    copy without them is not newer than any.
    """
    os.ftruncate(file, len(data))
    for start, end in ((0, SLOT), (SLOT * FIRST, len(data)), (SLOT, SLOT * FIRST)):
        os.pwrite(file, data[start:end], start)
        os.fdatasync(file)


def _opened(path: Path, reading: bool) -> int:
    """Open a file of keys, mode 600, and lock it, so that no second process writes it."""
    make = 0 if reading else os.O_CREAT
    try:
        file = os.open(path, os.O_RDWR | make | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot open the keys {path}: {error.strerror}. Name a folder that you can write to."
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise CannotStart(
            f"{path} is in use by another process. End that one first, or name another folder."
        ) from None
    if mode := os.fstat(file).st_mode & 0o077:
        os.close(file)
        raise CannotStart(
            f"other users may read {path} (mode {mode:03o}). If none did: chmod 600 {path}"
        )
    return file


def _full(error: OSError, path: Path) -> Exception:
    if error.errno in (ENOSPC, EDQUOT):
        return DiskFull(f"the disk of {path.name} is full: nothing was written. Send it again.")
    return error
