"""Gowalla as NGCF and LightGCN distribute it: `train.txt` and `test.txt`, one user per line."""

from __future__ import annotations

import numpy as np

from rescind.data.arrays import Ints
from rescind.data.canonical import Canonical
from rescind.data.sources.archive import Files
from rescind.data.sources.text_columns import decode, whole


def read(files: Files) -> Canonical:
    """Read both files; `split` is 0 for train and 1 for test, as published."""
    parts = [_pairs(files, name) for name in ("train.txt", "test.txt")]
    user = np.concatenate([part[0] for part in parts])
    item = np.concatenate([part[1] for part in parts])
    split = np.repeat(np.asarray([0, 1], dtype=np.int8), [len(part[0]) for part in parts])
    order = np.lexsort((item, user))
    columns = {"user": user[order], "item": item[order], "rating": None, "timestamp": None}
    return Canonical(columns | {"split": split[order]})


def _pairs(files: Files, name: str) -> tuple[Ints, Ints]:
    """Read users and items from lines `user item item ...`; a user without items has no pairs."""
    label = files.label(name)
    lines = [line.split() for line in decode(files.read(name), label, "utf-8").split("\n")]
    lines = [line for line in lines if line]
    count = [len(line) - 1 for line in lines]
    user = whole([line[0] for line in lines], label, "user")
    cells = [cell for line in lines for cell in line[1:]]
    at = np.repeat(np.arange(len(lines)) + 1, count)
    return np.repeat(user, count), whole(cells, label, "item", lines=at)
