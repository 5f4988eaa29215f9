"""A transparency log: a tree of hashes that only grows, its proofs and its tiles.

Follows RFC 6962 and the C2SP text tlog-tiles. Needs hashlib only. What is signed is in
`proof.notes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from threading import Lock

from rescind.errors import DataError

TILE = 256  # hashes in a full tile
EMPTY = sha256(b"").digest()  # the root of a log without entries
_TILE = re.compile(r"tile/(0|[1-9]\d?|entries)/((?:x\d{3}/)*\d{3})(?:\.p/([1-9]\d{0,2}))?")


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry."""
    return sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two subtrees side by side."""
    return sha256(b"\1" + left + right).digest()


class Tree:
    """All hashes of complete subtrees. Appending writes leaves; a question makes the rest."""

    def __init__(self, leaves: bytes = b"") -> None:
        """leaves: the leaf hashes so far, one after the other"""
        self._levels, self._made, self._lock = [bytearray(leaves)], 0, Lock()

    def __len__(self) -> int:
        return len(self._levels[0]) // 32

    def append(self, entry: bytes) -> int:
        """Append an entry and return its number. Only one thread may append."""
        leaves = self._levels[0]
        leaves += sha256(b"\0" + entry).digest()
        return len(leaves) // 32 - 1

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves, all by default."""
        size = self._ready(size)
        return self._over(0, size) if size else EMPTY

    def inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the proof that a leaf is in the tree of this size (RFC 6962, 2.1.1)."""
        size = self._ready(size)
        if not 0 <= index < size:
            raise DataError(f"there is no leaf {index} in a log of {size} leaves.")
        return self._path(index, 0, size)

    def consistency(self, old: int, size: int | None = None) -> list[bytes]:
        """Return the proof that the tree of this size begins with the old one (RFC 6962, 2.1.2)."""
        size = self._ready(size)
        if not 0 <= old <= size:
            raise DataError(f"a log of {size} leaves was never one of {old}.")
        return self._since(old, 0, size, True) if old else []

    def tile(self, level: int, index: int, width: int = TILE) -> bytes:
        """Return the hashes of a tile, or raise `DataError` if they are not there yet."""
        self._ready(None)
        first, deep = 32 * TILE * index, 8 * level
        row = self._levels[deep] if deep < len(self._levels) else b""
        if not 0 < width <= TILE or len(row) < first + 32 * width:
            raise DataError(f"there is no tile of {width} hashes at {tile_path(level, index)}.")
        return bytes(row[first : first + 32 * width])

    def _ready(self, size: int | None) -> int:
        size = len(self) if size is None else size
        if not 0 <= size <= len(self):
            raise DataError(f"the log has {len(self)} leaves, not {size}.")
        if self._made < size:
            with self._lock:  # readers may ask while the one writer appends
                made, low = len(self), 0
                while (len(self._levels[low]) >= 64) or low + 1 < len(self._levels):
                    if low + 1 == len(self._levels):
                        self._levels.append(bytearray())
                    row, above = self._levels[low], self._levels[low + 1]
                    new = bytes(row[2 * len(above) : 64 * (made >> (low + 1))])
                    pairs = [b"\1" + new[at : at + 64] for at in range(0, len(new), 64)]
                    above += b"".join([sha256(pair).digest() for pair in pairs])
                    low += 1
                self._made = made
        return size

    def _over(self, start: int, end: int) -> bytes:
        """Return the hash over leaves start to end, where start is a multiple of what it covers."""
        if (count := end - start) & (count - 1) == 0:
            at = 32 * (start // count)
            return bytes(self._levels[count.bit_length() - 1][at : at + 32])
        middle = start + _left(count)
        return node_hash(self._over(start, middle), self._over(middle, end))

    def _path(self, index: int, start: int, end: int) -> list[bytes]:
        if end - start == 1:
            return []
        middle = start + _left(end - start)
        if index < middle:
            return [*self._path(index, start, middle), self._over(middle, end)]
        return [*self._path(index, middle, end), self._over(start, middle)]

    def _since(self, old: int, start: int, end: int, known: bool) -> list[bytes]:
        if old == end:
            return [] if known else [self._over(start, end)]
        middle = start + _left(end - start)
        if old <= middle:
            return [*self._since(old, start, middle, known), self._over(middle, end)]
        return [*self._since(old, middle, end, False), self._over(start, middle)]


def _left(count: int) -> int:
    return 1 << ((count - 1).bit_length() - 1)  # the largest power of two below count


def root_of(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that a proof of inclusion gives, None if it has the wrong length."""
    if not 0 <= index < size:
        return None
    here, last, root = index, size - 1, leaf
    for one in path:
        if not last:
            return None
        if here & 1 or here == last:
            root = node_hash(one, root)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            root = node_hash(root, one)
        here, last = here >> 1, last >> 1
    return None if last else root


def extends(old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether a log of `new` leaves begins with the `old` ones (RFC 9162, 2.1.4.2)."""
    if not 0 < old < new:
        return not path and (old == 0 or (old == new and old_root == new_root))
    proof = list(path) if old & (old - 1) else [old_root, *path]
    if not proof:
        return False
    here, last = old - 1, new - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    first = second = proof[0]
    for one in proof[1:]:
        if not last:
            return False
        if here & 1 or here == last:
            first, second = node_hash(one, first), node_hash(one, second)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            second = node_hash(second, one)
        here, last = here >> 1, last >> 1
    return not last and first == old_root and second == new_root


def tile_path(level: int | str, index: int, width: int = TILE) -> str:
    """Return where a tile is served; level "entries" is the bundle of entries."""
    digits = f"{index:03d}".zfill(3 * -(-len(str(index)) // 3))
    parts = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    name = "/".join([f"x{part}" for part in parts[:-1]] + parts[-1:])
    return f"tile/{level}/{name}" + (f".p/{width}" if width < TILE else "")


def read_tile_path(path: str) -> tuple[int | None, int, int]:
    """Return level (None: entries), index and width of a tile, or raise `DataError`."""
    if found := _TILE.fullmatch(path):
        level = None if found[1] == "entries" else int(found[1])
        index, width = int(found[2].replace("/", "").replace("x", "")), int(found[3] or TILE)
        shown = "entries" if level is None else level
        if path == tile_path(shown, index, width) and (level or 0) < 64:
            return level, index, width
    raise DataError(f"'{path[:80]}' is no tile: expected tile/LEVEL/NNN or tile/entries/NNN.")


def bundle(entries: Iterable[bytes]) -> bytes:
    """Return entries as tlog-tiles serves them: each after its length in two bytes."""
    return b"".join(len(one).to_bytes(2) + one for one in entries)
