"""Names of items in the log: which number of a sum is which item, the same for everybody.

A line is made of numbers, and people know names. So the operator states in the log which number has
which name: the root of a tree with a leaf for each item. Each leaf has secret random bytes in it,
so a stranger learns no name and can test no guess. A person gets the bytes of their own items, and
the hashes beside them, and finds the root in the log. Whoever is told another name for a number
than others finds it, because one root has one name for each number.

The statement can still be false for everybody alike. Whoever may rebuild compares it with the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rescind.errors import DataError
from rescind.proof.log_folder import LINE, NAMES, REVOKED, ROSTER, LogFolder, entry_of
from rescind.proof.tlog import Tree, leaf_hash, root_of

SALT = HASH = 32


class Catalogue:
    """The names of all items, by number, under a secret key."""

    def __init__(self, key: bytes, names: Sequence[str]) -> None:
        """key: a new one whenever a name changes, so that the old name cannot be tried out"""
        self._key, self._names = key, names

    @cached_property
    def _tree(self) -> Tree:
        tree = Tree()
        for number, name in enumerate(self._names):
            tree.append(_leaf(number, name, self._salt(number)))
        return tree

    def _salt(self, number: int) -> bytes:
        return hashlib.blake2b(number.to_bytes(8), key=self._key, digest_size=SALT).digest()

    def entry(self) -> bytes:
        """Return the entry of the log that states these names."""
        return _entry(len(self._names), self._tree.root())

    def proofs(self, items: Sequence[int]) -> dict[str, Any]:
        """Return the names of some items, and what shows that the log states them."""
        proofs = [b"".join([self._salt(n), *self._tree.inclusion(n)]).hex() for n in items]
        names = [self._names[n] for n in items]
        return {"ids": names, "catalogue": len(self._names), "proofs": proofs}


def _leaf(number: int, name: str, salt: bytes) -> bytes:
    return number.to_bytes(8) + salt + name.encode("utf-8", "surrogatepass")


def _entry(size: int, root: bytes) -> bytes:
    return entry_of(NAMES, size.to_bytes(8) + root)


def newest(entries: Sequence[bytes]) -> bytes | None:
    """Return the last entry of a log that states names, None if there is none."""
    return next((one for one in reversed(entries) if one[0] == NAMES), None)


def check_names(log: LogFolder, line: str, told: Mapping[str, Any]) -> str | None:
    """Return where the log states the names that a person was told; None if it never did.

    line: the digest of the line, which the log has added. Raises `DataError` if a name is another
    one than the log stated while it counted the line, or if the names or their proofs are missing.
    """
    items, names = told["items"], told.get("ids")
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise DataError("the names of its items (ids) are missing. Ask for the file again.")
    if len(names) != len(items):
        raise DataError(f"it has {len(items):,} items and {len(names):,} names (ids).")
    stated, first = _while_counted(log, line)
    if "proofs" not in told:
        if first is None:
            return None  # written before the log stated names
        raise DataError("this file does not show that its names are those of the log.")
    found = {_stated_by(told, at) for at in range(len(items))}
    if len(found) != 1 or (entry := found.pop()) not in stated:
        wrong = [n for n in range(len(items)) if _stated_by(told, n) not in stated]
        which = f"'{names[wrong[0]]}' for item {items[wrong[0]]}" if wrong else "several statements"
        raise DataError(
            f"its names are not those that the log stated while it counted this line: {which}."
        )
    place = stated[entry]
    return f"entry {place + 1:,} (index {place:,})"


def _stated_by(told: Mapping[str, Any], at: int) -> bytes | None:
    """Return the entry that states one name of a line, by its proof."""
    try:
        raw, size = bytes.fromhex(told["proofs"][at]), int(told["catalogue"])
        number = int(told["items"][at])
        leaf = leaf_hash(_leaf(number, told["ids"][at], raw[:SALT]))
        path = [raw[n : n + HASH] for n in range(SALT, len(raw), HASH)]
        root = root_of(leaf, number, size, path)
        return None if root is None else _entry(size, root)
    except (KeyError, IndexError, ValueError, TypeError, OverflowError):
        return None


def _while_counted(log: LogFolder, line: str) -> tuple[dict[bytes, int], int | None]:
    """Return the names that were stated in rosters that count a line, and those in the first one.

    The first are None if the line was published before the log stated any names.
    """
    raw, signed = bytes.fromhex(line), log.entries[: log.checkpoint.size]
    added = signed.index(bytes([LINE]) + raw)
    gone = bytes([REVOKED]) + raw
    end = signed.index(gone) if gone in signed else len(signed)
    last: int | None = None
    stands: list[int | None] = []
    for place, entry in enumerate(signed[:end]):
        last = place if entry[0] == NAMES else last
        if entry[0] == ROSTER and place > added:
            stands.append(last)
    stated = {signed[at]: at for at in stands if at is not None}
    return stated, stands[0] if stands else None
