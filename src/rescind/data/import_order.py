"""Sort imported rows by user, time and item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.data.split import rank_in_owner


def sorted_rows(columns: dict[str, NDArray[Any]], in_order: bool = False) -> dict[str, Any]:
    """Sort the columns by user, time and item; rating and time are None if they are missing.

    columns: emptied on the way, so that no column is held twice    in_order: the order of rows is
    that of time
    """
    if in_order:
        user = columns["user"]
        order = _order_by([user])
        places = np.empty(len(user), dtype=np.int64)
        places[order] = rank_in_owner(user[order]) + 1
        columns["time"] = places
    if "time" in columns:
        order = _order_by([columns["user"], columns["time"]])
        ordered = {role: columns.pop(role)[order] for role in ("user", "time")}
        _order_equal(order, ordered["user"], ordered["time"], columns["item"])
    else:
        order, ordered = _order_by([columns["user"], columns["item"]]), {}
    ordered |= {role: columns.pop(role)[order] for role in list(columns)}
    out = {name: ordered.get(name) for name in ("user", "item", "rating")}
    out["timestamp"] = ordered.get("time")
    return out | ({"split": ordered["split"]} if "split" in ordered else {})


def _order_by(keys: Sequence[Ints]) -> Ints:
    """Return the order of rows by the first key, then the next, then the row, as np.lexsort does.

    numpy sorts plain numbers many times faster than rows. So each key, from the last to the first,
    is sorted as one number with the place of its row in the low bits.

    keys: [n] each, whole numbers from 0
    """
    places = np.arange(len(keys[0]))
    bits = len(places).bit_length()
    if _are_sorted(keys):
        return places
    if max(int(key.max()) for key in keys) >> (63 - bits):
        return np.lexsort(keys[::-1])
    order: Ints | None = None
    for key in reversed(keys):
        packed = (key if order is None else key[order]).astype(np.int64)
        packed <<= bits
        packed |= places
        packed.sort()
        packed &= (1 << bits) - 1
        order = packed if order is None else order[packed]
    assert order is not None
    return order


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
