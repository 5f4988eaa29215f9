"""Sort imported rows by user, time and item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.data.split import rank_in_owner

_BITS = 63  # of a whole number that is not negative
_GROUP = 2**19  # rows that are sorted together, or fewer: their columns fit into a cache


def sorted_rows(columns: dict[str, NDArray[Any]], in_order: bool = False) -> dict[str, Any]:
    """Sort the columns by user, time and item; rating and time are None if they are missing.

    columns: what was read; it may be returned as it is    in_order: the order of rows is that of
    time
    """
    if in_order:
        user = columns["user"]
        order = _order_by([user])
        places = np.empty(len(user), dtype=np.int64)
        places[order] = rank_in_owner(user[order]) + 1
        columns["time"] = places
    keys = [columns[role] for role in ("user", "time", "item") if role in columns]
    ordered = columns if _are_sorted(keys) else _sorted_in_groups(columns)
    out = {name: ordered.get(name) for name in ("user", "item", "rating")}
    out["timestamp"] = ordered.get("time")
    return out | ({"split": ordered["split"]} if "split" in ordered else {})


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
