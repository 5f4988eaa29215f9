"""Filter users and items, and cut rows into time blocks: a base block, then later ones.

The recipe is that of F3CRec (Lim et al., CIKM 2025, section 5.1 and Table 1): iterated k-core, a
sort by time, 60 % of the rows as base block, the rest in three equal parts. Blocks count rows.
Last.fm has some pairs more than once, because of the paper's filter; training and evaluation use
the distinct pairs of a block (`first_copies`).

Equal times have no order of their own, and the order of rows or ids must not stand in for it: the
last items of a day would be those with the highest ids. A hash of (seed, pair) decides instead
(`by_time`). Where blocks begin belongs to the data and has a fixed seed, so every run sees the
same blocks; the split inside a block has the seed of the run.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from rescind.data.arrays import Ints, Labels, Mask
from rescind.data.dataset import Dataset
from rescind.data.split import by_rank, pair_hash
from rescind.errors import ConfigError, DataError

log = logging.getLogger(__name__)

MANY_TIES = 0.2
"""A warning says so if more than this share of a split's pairs has no order in time."""


def k_core(dataset: Dataset, k: int, users: bool = True, items: bool = True) -> Dataset:
    """Keep users and items with at least k rows each, repeated until nothing changes.

    With `items=False` only users are filtered (one pass is enough), and vice versa. Rows are
    counted, not distinct pairs. Ids are renumbered in their current order (`Dataset.compact`).
    """
    if k < 1 or not (users or items):
        raise ConfigError(f"k must be at least 1, got {k}; filter users, items or both.")
    keep: Mask = np.ones(len(dataset), dtype=np.bool_)
    while True:
        before = int(keep.sum())
        for column, counted in ((dataset.user, users), (dataset.item, items)):
            if counted and before:
                keep &= np.bincount(column[keep], minlength=int(column.max()) + 1)[column] >= k
        if int(keep.sum()) == before:
            break
    if before == 0:
        raise DataError(f"nothing is left of '{dataset.name}'. Use a smaller k than {k}.")
    return dataset.select(keep).compact()


def min_user(dataset: Dataset, k: int) -> Dataset:
    """Keep the users with at least k rows; items are not filtered."""
    return k_core(dataset, k, users=True, items=False)


def by_time(dataset: Dataset, seed: int = 0) -> Ints:
    """Return the row numbers from old to new; a hash of (seed, pair) orders equal times.

    Copies of a pair at one time differ in nothing but the rating; they keep their order.
    """
    draw = pair_hash(dataset, dataset.user, dataset.item, seed, "ties in time")
    return np.lexsort((draw, dataset.time))


def tied(dataset: Dataset, block: Labels) -> Mask:
    """Mark the rows that share user, block and time with a row of another item.

    returns: [n]
    """
    order = np.lexsort((dataset.item, dataset.time, block, dataset.user))
    item = dataset.item[order]
    new = np.ones(len(order), dtype=np.bool_)  # the first row of its moment
    of_order = (column[order] for column in (dataset.user, block, dataset.time))
    new[1:] = np.any([column[1:] != column[:-1] for column in of_order], axis=0)
    other = new.copy()  # the first row of an item in its moment
    other[1:] |= item[1:] != item[:-1]
    moment = np.cumsum(new) - 1
    mask = np.empty(len(order), dtype=np.bool_)
    mask[order] = np.bincount(moment[other])[moment] > 1
    return mask


def share_tied(dataset: Dataset) -> float:
    """Return the share of rows that have the time of another item of their user."""
    if not len(dataset):
        return 0.0
    return float(tied(dataset, np.zeros(len(dataset), dtype=np.int8)).mean())


def chronological(dataset: Dataset, base: float = 0.6, parts: int = 3) -> Labels:
    """Label each row with its block: 0 for the oldest `base` of the rows, then `parts` blocks.

    With n rows: block 0 has int(base n), each later one int((1 - base) n / parts), and the
    last one also the rest. Equal times are in the order of `by_time`.

    returns: [n]
    """
    if not 0 < base <= 1 or not 0 <= parts < 127 or (parts == 0 and base < 1):
        raise ConfigError(
            f"base is {base} and parts {parts}; base must lie in (0, 1] and parts in 1..126."
        )
    if not dataset.has_time:
        raise DataError(
            f"dataset '{dataset.name}' has no times to cut it into blocks by. Use one with times."
        )
    rows = len(dataset)
    first, later = int(base * rows), int((1 - base) * rows / max(parts, 1))
    ends = [first + later * part for part in range(parts)]
    labels = np.empty(rows, dtype=np.int8)
    numbers = np.searchsorted(np.asarray(ends), np.arange(rows), side="right")
    labels[by_time(dataset)] = numbers
    return labels


def arrange(dataset: Dataset, block: Labels | None = None) -> Dataset:
    """Sort the rows by block and `by_time`, and renumber users and items by first appearance.

    So the users and items seen up to any block are a prefix of all of them. Default for `block`:
    `chronological`.
    """
    labels = chronological(dataset) if block is None else block
    order = by_time(dataset)
    order = order[np.argsort(labels[order], kind="stable")]
    return replace(dataset, block=labels).select(order).compact("appearance")


def block_split(dataset: Dataset, block: Labels, seed: int) -> Labels:
    """Label each row 0 train, 1 valid or 2 test, inside each user's part of each block.

    Of a user's n distinct pairs in a block: fewer than 3 are all train; otherwise ceil(n / 10) are
    test and ceil of a ninth of the rest valid. Block 0 is divided at random (by a hash of seed and
    pair), later blocks by time: the last are test, those before them valid. The same hash decides
    between equal times; a warning names the share of such pairs if it is large.

    DEPARTS F3CRec section 5.1: the paper divides every block at random; the authors' published
    task files divide the later ones by time, and so do we.

    block: [n]    returns: [n]
    """
    labels = np.zeros(len(dataset), dtype=np.int8)
    _, first, copy_of = np.unique(_key(dataset, block), return_index=True, return_inverse=True)
    draw = pair_hash(dataset, dataset.user, dataset.item, seed, "block split")
    for number in np.unique(block).tolist():
        rows = first[block[first] == number]
        user = dataset.user[rows]
        newest_first = -dataset.time[rows] if number else np.zeros(len(rows))
        count = np.bincount(user, minlength=len(dataset.users))
        test = np.where(count < 3, 0, -(-count // 10))
        valid = np.where(count < 3, 0, -(-(count - test) // 9))
        order = np.lexsort((draw[rows], newest_first, user))
        labels[rows] = by_rank(user, order, test, valid)
    later = first[block[first] > 0]
    _warn_of_ties(dataset.select(later), block[later])
    return labels[first][copy_of]


def _warn_of_ties(later: Dataset, block: Labels) -> None:
    """Say so if time decides little about the split of later blocks."""
    share = tied(later, block).mean() if len(later) else 0.0
    if share > MANY_TIES:
        log.warning(
            "dataset '%s': %.0f %% of the pairs of later blocks have the same time as another pair "
            "of their user. A hash orders them, so the test set is partly drawn, not the newest. "
            "Give exact times if you have them.",
            later.name, 100 * share,
        )  # fmt: skip


def first_copies(dataset: Dataset, block: Labels) -> Mask:
    """Mark the first row of each distinct (block, user, item).

    returns: [n]
    """
    _, first = np.unique(_key(dataset, block), return_index=True)
    mask = np.zeros(len(dataset), dtype=np.bool_)
    mask[first] = True
    return mask


def _key(dataset: Dataset, block: Labels) -> Ints:
    pair = dataset.user * len(dataset.items) + dataset.item
    return pair * (int(block.max(initial=0)) + 1) + block
