"""Held-out pairs that are in train, too: no list can have them, because known items are hidden.

Logs of plays repeat pairs, so a split column of somebody's own may have one pair in two parts.
"""

from __future__ import annotations

import numpy as np

from rescind.data.arrays import TEST, TRAIN, VALID, Ints
from rescind.data.dataset import Dataset

_PARTS = {"valid": VALID, "test": TEST}


Counts = dict[str, dict[str, int]]
"""By part: `pairs`, the different (user, item) pairs of it; `in_train`, how many are there, too."""


def known_pairs(dataset: Dataset) -> Counts:
    """Count the pairs of valid and test, and those of them that are in train as well.

    Empty where this package splits: there all rows of a pair are in one part. And of blocks, each
    of which is measured by itself.
    """
    if dataset.split is None or dataset.block is not None or dataset.task == "next_item":
        return {}
    pair = dataset.user * len(dataset.items) + dataset.item
    train, found = _in_order(pair[dataset.split == TRAIN]), Counts()
    for name, part in _PARTS.items():
        held = _in_order(pair[dataset.split == part])
        held = held[np.diff(held, prepend=-1) > 0]  # each pair once
        before, behind = (np.searchsorted(train, held, side) for side in ("left", "right"))
        found[name] = {"pairs": len(held), "in_train": int((before < behind).sum())}
    return found


def known_pairs_told(found: Counts) -> str:
    """Return how many such pairs there are and what follows; empty if there are none."""
    some = {name: counts for name, counts in found.items() if counts["in_train"]}
    if not some:
        return ""
    counted = " and ".join(
        f"{counts['in_train']:,} of {counts['pairs']:,} {name}" for name, counts in some.items()
    )
    are = "is" if sum(counts["in_train"] for counts in some.values()) == 1 else "are"
    return (
        f"{counted} pairs {are} also in train: known items are not recommended, so they count as "
        f"misses for every method; leave them out of the {' and '.join(some)} rows if you do not "
        f"want that"
    )


def _in_order(pair: Ints) -> Ints:
    pair.sort()  # in place: `unique` of a large array takes five times as long
    return pair
