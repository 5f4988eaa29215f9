"""A transparency log: a tree of hashes that only grows, its proofs and its tiles.

Follows RFC 6962 and the C2SP text tlog-tiles. Needs hashlib only. What is signed is in
`proof.notes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from threading import Lock

from rescind.errors import DataError

TILE = 256  # hashes in a full tile


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two subtrees side by side."""
    return sha256(b"\1" + left + right).digest()


class Tree:
    """All hashes of complete subtrees. Appending writes leaves; a question makes the rest."""

    def __init__(self, leaves: bytes = b"") -> None:
        """leaves: the leaf hashes so far, one after the other"""
        self._levels, self._lock = [bytearray(leaves), *(bytearray() for _ in range(63))], Lock()

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
        return self._over(0, size) if size else sha256(b"").digest()

    def inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the proof that a leaf is in the tree of this size (RFC 6962, 2.1.1)."""
        return self._proof(index + 1, self._ready(size), one=True)

    def consistency(self, old: int, size: int | None = None) -> list[bytes]:
        """Return the proof that the tree of this size begins with the old one (RFC 6962, 2.1.2)."""
        return self._proof(old, self._ready(size), one=False)

    def tile(self, level: int, index: int, width: int = TILE) -> bytes:
        """Return the hashes of a tile, or raise `DataError` if they are not there yet."""
        first = TILE * index
        if not 0 < width <= TILE or (first + width) << 8 * level > self._ready(None):
            raise DataError(f"there is no tile of {width} hashes at {tile_path(level, index)}.")
        return bytes(self._levels[8 * level][32 * first : 32 * (first + width)])

    def _ready(self, size: int | None) -> int:
        """Return the size that is asked for, all by default, and make the hashes it needs."""
        size = len(self) if size is None else size
        if not 0 <= size <= len(self):
            raise DataError(f"the log has {len(self)} leaves, not {size}.")
        with self._lock:  # readers may ask while the one writer appends
            for level in range(1, size.bit_length()):
                row, below = self._levels[level], self._levels[level - 1]
                new = bytes(below[2 * len(row) : 64 * (len(below) // 64)])
                pairs = [b"\1" + new[at : at + 64] for at in range(0, len(new), 64)]
                row += b"".join([sha256(pair).digest() for pair in pairs])
        return size

    def _over(self, start: int, end: int) -> bytes:
        """Return the hash over leaves start to end, where start is a multiple of what it covers."""
        if (count := end - start) & (count - 1) == 0:
            at = 32 * (start // count)
            return bytes(self._levels[count.bit_length() - 1][at : at + 32])
        middle = start + _left(count)
        return node_hash(self._over(start, middle), self._over(middle, end))

    def _proof(self, stop: int, size: int, one: bool) -> list[bytes]:
        """Return the hashes beside the way from leaf stop - 1 to the root. one: of this leaf"""
        if not one <= stop <= size:
            raise DataError(f"there are no {stop} leaves in a log of {size}.")
        return self._beside(stop, 0, size, one) if stop else []

    def _beside(self, stop: int, start: int, end: int, one: bool) -> list[bytes]:
        """Return those below the root of leaves start to end.

        The way begins at this one leaf, or at the largest subtree that ends with it. Whoever reads
        knows the hash of that subtree if it is the whole old log; otherwise it comes first.
        """
        if (end - start == 1) if one else (end == stop):
            return [] if one or start == 0 else [self._over(start, end)]
        middle = start + _left(end - start)
        if stop <= middle:
            return [*self._beside(stop, start, middle, one), self._over(middle, end)]
        return [*self._beside(stop, middle, end, one), self._over(start, middle)]


def _left(count: int) -> int:
    return 1 << ((count - 1).bit_length() - 1)  # the largest power of two below count


def _climb(here: int, last: int, path: Sequence[bytes], low: bytes) -> tuple[bytes | None, ...]:
    """Return two roots: of the tree that ends with node `here` of a level, and with node `last`.

    None twice if the path has the wrong length. RFC 9162, 2.1.3.2 (one tree) and 2.1.4.2 (two).
    """
    old = new = low
    for one in path:
        if not last:
            return None, None
        if here & 1 or here == last:
            old, new = node_hash(one, old), node_hash(one, new)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            new = node_hash(new, one)
        here, last = here >> 1, last >> 1
    return (None, None) if last else (old, new)


def root_of(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that a proof of inclusion gives, None if it has the wrong length."""
    return _climb(index, size - 1, path, leaf)[1] if 0 <= index < size else None


def extends(old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether a log of `new` leaves begins with the `old` ones."""
    if not 0 < old < new:
        return not path and (old == 0 or (old == new and old_root == new_root))
    proof = list(path) if old & (old - 1) else [old_root, *path]
    whole = (old & -old).bit_length() - 1  # the level of the largest subtree that ends the old log
    roots = (old_root, new_root)
    return bool(proof) and _climb(old - 1 >> whole, new - 1 >> whole, proof[1:], proof[0]) == roots


def tile_path(level: int | str, index: int, width: int = TILE) -> str:
    """Return where a tile is served; level "entries" is the bundle of entries."""
    *above, last = (part.zfill(3) for part in f"{index:,}".split(","))
    name = "/".join([*(f"x{part}" for part in above), last])
    return f"tile/{level}/{name}" + (f".p/{width}" if width < TILE else "")


def bundle(entries: Iterable[bytes]) -> bytes:
    """Return entries as tlog-tiles serves them: each after its length in two bytes."""
    return b"".join(len(one).to_bytes(2) + one for one in entries)
