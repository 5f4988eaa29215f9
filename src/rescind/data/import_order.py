"""Sort imported rows by user, time and item."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.data.split import rank_in_owner

_BITS = 63  # of a whole number that is not negative
_GROUP = 2**19  # rows that are sorted together, or fewer: their columns fit into a cache
_SMALL_GROUP = 2**16  # by compiled loops
_KINDS = {"user": np.int64, "item": np.int64, "rating": np.float32, "time": np.int64}
MANY = 2**22
"""Rows from which on a compiled loop is worth compiling."""


def sorted_rows(columns: dict[str, NDArray[Any]], in_order: bool = False) -> dict[str, Any]:
    """Sort the columns by user, time and item; rating and time are None if they are missing.

    columns: what was read; it may be returned as it is, or emptied    in_order: the order of rows
    is that of time
    """
    if in_order:
        user = columns["user"]
        order = _order_by([user])
        places = np.empty(len(user), dtype=np.int64)
        places[order] = rank_in_owner(user[order]) + 1
        columns["time"] = places
    keys = [columns[role] for role in ("user", "time", "item") if role in columns]
    in_place = _are_sorted(keys)
    del keys  # so that the columns can be freed
    ordered = columns if in_place else _sorted_by_loops(columns) or _sorted_in_groups(columns)
    out = {name: ordered.get(name) for name in ("user", "item", "rating")}
    out["timestamp"] = ordered.get("time")
    return out | ({"split": ordered["split"]} if "split" in ordered else {})


def has_loops(rows: int) -> bool:
    """Return whether compiled loops are worth it for so many rows, and can be had."""
    return rows >= MANY and find_spec("numba") is not None


def _sorted_by_loops(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
    """Sort by compiled loops, and empty `columns`; None if they cannot sort these.

    Rows are copied into groups of users that fit into a cache, as two numbers each: what they are
    sorted by, and the rest. User and item have the type of a dataset then, not of its file.
    """
    user = columns["user"]
    if not has_loops(len(user)) or "split" in columns:
        return None
    from rescind.data.import_kernels import pack, part, spread

    second = columns.get("time", columns["item"]).astype(np.int64, copy=False)
    people, least = int(user.max()) + 1, int(second.min())
    groups = (len(user) // _SMALL_GROUP).bit_length()
    shift = max(0, people.bit_length() - groups)
    sizes = np.bincount(user >> shift)
    bits, places = (int(second.max()) - least).bit_length(), int(sizes.max()).bit_length()
    if shift + bits + places > _BITS:
        return None
    rows, roles = len(user), list(columns)
    rating = columns.get("rating", np.zeros(rows, dtype=np.float32)).view(np.int32)
    records = np.empty((rows, 2), dtype=np.int64)
    ends = np.cumsum(sizes) - sizes
    part(user, second, columns["item"], rating, shift, bits, least, ends, records)
    columns.clear()
    del user, second, rating
    out = {role: np.empty(rows, dtype=kind) for role, kind in _KINDS.items()}
    keys = np.empty(int(sizes.max()), dtype=np.int64)
    for group, (begin, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        some, own = records[begin:end], keys[: end - begin]
        pack(some, places, own)
        own.sort()
        to = [out[role][begin:end] for role in _KINDS]
        to[2] = to[2].view(np.int32)
        if not spread(own, places, some, bits, group << shift, least, *to):
            _spread(own, places, some, bits, group << shift, least, *to)
    return {role: out[role] for role in roles}


def _spread(
    keys: Ints, places: int, records: Ints, bits: int, base: int, least: int,
    user: Ints, item: Ints, rating: NDArray[np.int32], time: Ints,
) -> None:  # fmt: skip
    """Write the columns of sorted records as `import_kernels.spread`, however many are equal."""
    record, load = keys >> places, records[keys & ((1 << places) - 1), 1]
    order = np.lexsort([load >> 32, record])
    record, load = record[order], load[order]
    user[:], time[:] = base + (record >> bits), least + (record & ((1 << bits) - 1))
    item[:], rating[:] = load >> 32, (load & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _sorted_in_groups(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Sort one group of users after the other, so that all columns of its rows are in cache."""
    user = columns["user"]
    groups = (len(user) // _GROUP).bit_length()
    group = user >> max(0, int(user.max()).bit_length() - groups)
    rows, ends = _order_by([group]), np.cumsum(np.bincount(group)).tolist()
    out = {role: np.empty_like(column) for role, column in columns.items()}
    for begin, end in zip([0, *ends], ends, strict=False):
        part = {role: column[rows[begin:end]] for role, column in columns.items()}
        order = _order_of(part) if begin < end else np.zeros(0, dtype=np.int64)
        for role, column in part.items():
            out[role][begin:end] = column[order]
    return out


def _order_of(columns: dict[str, NDArray[Any]]) -> Ints:
    """Return the order of rows by user, time and item."""
    user, item = columns["user"], columns["item"]
    if "time" not in columns:
        return _order_by([user, item])
    order = _order_by([user, columns["time"]])
    _order_equal(order, user[order], columns["time"][order], item)
    return order


def _order_by(keys: Sequence[Ints]) -> Ints:
    """Return the order of rows by the first key, then the next, then the row, as np.lexsort does.

    numpy sorts plain numbers many times faster than rows. So all keys become one number with the
    place of its row in the low bits; or, where that is too long, one key is sorted after the other.

    keys: [n] each, whole numbers from 0
    """
    places = np.arange(len(keys[0]))
    bits = len(places).bit_length()
    if _are_sorted(keys):
        return places
    least = [int(key.min()) for key in keys]
    sizes = [(int(key.max()) - low).bit_length() for key, low in zip(keys, least, strict=True)]
    if max(sizes) + bits > _BITS:
        return np.lexsort(keys[::-1])
    if sum(sizes) + bits <= _BITS:
        packed = np.zeros(len(places), dtype=np.int64)
        for key, low, size in zip(keys, least, sizes, strict=True):
            packed <<= size
            packed |= key - key.dtype.type(low)
        return _sorted_places(packed, places, bits)
    order: Ints | None = None
    for key, low in reversed(list(zip(keys, least, strict=True))):
        packed = (key if order is None else key[order]).astype(np.int64)
        packed -= low
        found = _sorted_places(packed, places, bits)
        order = found if order is None else order[found]
    assert order is not None
    return order


def _sorted_places(numbers: Ints, places: Ints, bits: int) -> Ints:
    """Return the places in the order of their numbers, which are overwritten."""
    numbers <<= bits
    numbers |= places
    numbers.sort()
    numbers &= (1 << bits) - 1
    return numbers


def _order_equal(order: Ints, user: Ints, time: Ints, item: Ints) -> None:
    """Order rows of the same user and time by item, in place. They are few in most files.

    user, time: [n], ordered    item: [n], in the order of the file
    """
    same = np.zeros(len(order) + 1, dtype=bool)
    same[1:-1] = (user[1:] == user[:-1]) & (time[1:] == time[:-1])
    rows = np.flatnonzero(same[1:] | same[:-1])
    if len(rows):
        group = np.cumsum(~same[rows])
        equal = order[rows]
        order[rows] = equal[_order_by([group, item[equal]])]


def _are_sorted(keys: Sequence[Ints]) -> bool:
    equal = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        before, after = key[:-1], key[1:]
        if (equal & (after < before)).any():
            return False
        equal &= after == before
    return True
