"""Split rows into train, valid and test, and filter users and items.

A split is a hash of the seed and the original ids: it does not depend on other users, on the
order of the rows, or on how ids were renumbered.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np

from rescind.data.arrays import TEST, VALID, Interactions, Ints, Labels, Mask, Strings
from rescind.errors import ConfigError, DataError

Data = TypeVar("Data", bound=Interactions)


def random_split(
    dataset: Interactions, seed: int, ratio: tuple[int, int, int] = (8, 1, 1)
) -> Labels:
    """Label each row 0 train, 1 valid or 2 test, at random for each (user, item) pair.

    A pair's number in [0, 1) is a hash of (seed, user, item). With a ratio a:b:c the pair is train
    below a / (a + b + c), test above 1 - c / (a + b + c), and valid in between. So a user's split
    does not depend on other users, all copies of a pair get the same label, and the fraction held
    out varies between users, as in a random split of interactions (FedShare V-A).

    returns: [n]
    """
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) == 0:
        raise ConfigError(
            f"ratio is {tuple(ratio)}; it must be three numbers for train, valid and test, none "
            "negative and not all zero, for example (8, 1, 1)."
        )
    pair, copy_of = distinct_pairs(dataset)
    owner, item = pair // len(dataset.items), pair % len(dataset.items)
    draw = pair_hash(dataset, owner, item, seed, "split")
    ends = np.cumsum(ratio) / sum(ratio)
    labels = (draw >= ends[0]).astype(np.int8) + (draw >= ends[1]).astype(np.int8)
    return labels[copy_of]


def distinct_pairs(dataset: Interactions) -> tuple[Ints, Ints]:
    """Return the distinct pairs as sorted user * items + item, and the pair of each row."""
    key = dataset.user * len(dataset.items) + dataset.item
    pair, copy_of = np.unique(key, return_inverse=True)
    return pair, copy_of


def pair_hash(dataset: Interactions, user: Ints, item: Ints, seed: int, purpose: str) -> np.ndarray:
    """Return a number in [0, 1) for each pair, from the seed and the original ids only."""
    import torch

    from rescind.core.clock import Clock

    users, items = _id_keys(dataset.users), _id_keys(dataset.items)
    return (
        Clock(seed)
        .uniform(purpose, torch.from_numpy(users[user]), torch.from_numpy(items[item]))
        .numpy()
    )


def by_rank(owner: Ints, order: Ints, test: Ints, valid: Ints) -> Labels:
    """Label the first `test[u]` rows of each owner 2, the next `valid[u]` rows 1, the rest 0.

    owner: [n]    order: [n], row numbers grouped by owner    test, valid: [users]
    """
    rank = rank_in_owner(owner[order])
    held = test[owner[order]]
    kept = valid[owner[order]]
    labels = np.zeros(len(owner), dtype=np.int8)
    labels[order] = np.where(rank < held, TEST, np.where(rank < held + kept, VALID, 0))
    return labels


def rank_in_owner(owner: Ints) -> Ints:
    """Return the position of each row in its run of equal owners, counted from 0."""
    if len(owner) == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    lengths = np.diff(np.append(starts, len(owner)))
    return np.arange(len(owner)) - np.repeat(starts, lengths)


def k_core(dataset: Data, k: int, users: bool = True, items: bool = True) -> Data:
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
        raise DataError(
            f"nothing is left of '{dataset.name}' ({len(dataset)} rows) when users and items need "
            f"{k} rows each. Use a smaller k."
        )
    return dataset.select(keep).compact()


def min_user(dataset: Data, k: int) -> Data:
    """Keep the users with at least k rows; items are not filtered."""
    return k_core(dataset, k, users=True, items=False)


def _id_keys(ids: Strings) -> Ints:
    """Return a 64-bit number for each original id: the number itself, or a hash of the text."""
    return np.fromiter((_id_key(text) for text in ids.tolist()), dtype=np.int64, count=len(ids))


def _id_key(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19 and (text[0] != "0" or text == "0"):
        return int(text)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
