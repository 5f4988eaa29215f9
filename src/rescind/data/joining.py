"""Join the rows of two datasets by original ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rescind.data.arrays import Ints, Strings
from rescind.data.dataset import Dataset


def joined(old: Dataset, new: Dataset) -> Dataset:
    """Return the rows of both, sorted by user, time and item; new ids come after the old ones."""
    users, user = _numbered(old.users, new.users)
    items, item = _numbered(old.items, new.items)
    columns: dict[str, Any] = {
        "user": np.concatenate([old.user, user[new.user]]),
        "item": np.concatenate([old.item, item[new.item]]),
        "time": np.concatenate([old.time, new.time]),
    }
    for name in ("rating", "split"):
        both = (getattr(old, name), getattr(new, name))
        columns[name] = None if both[0] is None else np.concatenate(both)
    order = np.lexsort([columns["item"], columns["time"], columns["user"]])
    columns = {n: None if c is None else c[order] for n, c in columns.items()}
    about: dict[str, Any] = {
        n: _texts(getattr(old, n), getattr(new, n), item, len(items)) for n in _ABOUT
    }
    return replace(old, users=users, items=items, **columns, **about)


_ABOUT = ("titles", "genres")


def _numbered(old: Strings, new: Strings) -> tuple[Strings, Ints]:
    """Return all ids, and the place of each new one among them."""
    places = {one: n for n, one in enumerate(old.tolist())}
    numbers = [places.setdefault(one, len(places)) for one in new.tolist()]
    return np.asarray(list(places)), np.asarray(numbers, dtype=np.int64)


def _texts(old: Strings | None, new: Strings | None, item: Ints, size: int) -> Strings | None:
    """Return a text for each item: the old one, unless it is empty."""
    if old is None and new is None:
        return None
    out = [*([] if old is None else old.tolist())]
    out += [""] * (size - len(out))
    for place, text in zip(item.tolist(), [] if new is None else new.tolist(), strict=False):
        out[place] = out[place] or text
    return np.asarray(out)
