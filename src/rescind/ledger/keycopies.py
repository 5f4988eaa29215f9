"""Two copies of the keys: which one is newer, and what each has that the other lost.

A copy may be damaged: cut, or with blocks of zeros or noise. Every slot says whether it is whole,
so a lost key is taken from the other copy, and files are written only when that is decided. The id
of a key is never used again: a key that the ledger names is the right one, however old its copy.
Other keys are taken only from a copy of the same age, because an older one holds keys that were
destroyed since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rescind.ledger.errors import CannotStart
from rescind.ledger.keyfile import (
    CHECK,
    FILE,
    FIRST,
    RESERVED,
    SLOT,
    Head,
    check,
    contents,
    heads_in,
    keys_in,
    newest_head,
    secret_of,
)

SET_UP = 8
"""Slots of a disk's sector: what a set-up writes is in the first one, also if it began twice."""


@dataclass(frozen=True)
class Joined:
    """What all copies should hold."""

    data: bytes
    newest: int
    """The copy that it begins with: the others fill what this one lost."""

    @property
    def head(self) -> Head:
        """The newest head that is whole."""
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
            raise CannotStart(_no_keys(path, mirror=path != paths[0], another=bool(others)))
    if len(found) == 1:
        return 0
    (path, mirror), (first, second) = paths, map(secret_of, found)
    if first is not None and second is not None and first != second:
        raise CannotStart(
            f"{mirror} holds the keys of another service than {path}. Nothing was changed. Name "
            f"another file as the mirror (--keys-mirror FILE); if {mirror} is the right one, move "
            f"the other away: {_moved(path)}"
        )
    heads = [newest_head(heads_in(data)) for data in found]
    newer = second is not None and (first is None or heads[1].batch > heads[0].batch)
    if newer and first is not None and heads[0] != Head():  # without one: damaged or not finished
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


def _no_keys(path: Path, mirror: bool, another: bool) -> str:
    text = (
        f"{path} does not hold the server's secret: it is no file of keys, or was changed or cut. "
        f"Nothing was changed."
    )
    if mirror:
        return (
            f"{text} Name the right file. If it was the mirror and {FILE} is whole, move it away "
            f"({_moved(path)}), and the next start writes a new one."
        )
    if another:
        return f"{text} Move it away, and the next start makes it from the mirror: {_moved(path)}"
    return (
        f"{text} Put the right file back (a copy of --keys-mirror), or move it away to start with "
        f"new keys: then nothing that was lent can be opened. {_moved(path)}"
    )


def _moved(path: Path) -> str:
    return f"mv {quote(str(path))} {quote(str(path) + '.old')}"
