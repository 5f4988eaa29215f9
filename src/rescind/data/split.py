"""Split rows into train, valid and test.

A split is a hash of the seed and the original ids: it does not depend on other users, on the
order of the rows, or on how ids were renumbered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rescind.data.arrays import TEST, TRAIN, VALID, Interactions, Ints, Labels, Strings
from rescind.errors import ConfigError


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
        raise ConfigError(f"ratio is {tuple(ratio)}; give three numbers, such as (8, 1, 1).")
    key = dataset.user * len(dataset.items) + dataset.item
    pair, copy_of = np.unique(key, return_inverse=True)
    owner, item = pair // len(dataset.items), pair % len(dataset.items)
    draw = pair_hash(dataset, owner, item, seed, "split")
    ends = np.cumsum(ratio) / sum(ratio)
    labels = (draw >= ends[0]).astype(np.int8) + (draw >= ends[1]).astype(np.int8)
    return labels[copy_of]


def pair_hash(dataset: Interactions, user: Ints, item: Ints, seed: int, purpose: str) -> np.ndarray:
    """Return a number in [0, 1) for each pair, from the seed and the original ids only."""
    import torch

    from rescind.core.clock import Clock

    users, items = _id_keys(dataset.users)[user], _id_keys(dataset.items)[item]
    draw = Clock(seed).uniform(purpose, torch.from_numpy(users), torch.from_numpy(items))
    return draw.numpy()


def by_rank(owner: Ints, order: Ints, test: Ints, valid: Ints) -> Labels:
    """Label the first `test[u]` rows of each owner 2, the next `valid[u]` rows 1, the rest 0.

    owner: [n]    order: [n], row numbers grouped by owner    test, valid: [users]
    """
    rank = rank_in_owner(owner[order])
    held, kept = test[owner[order]], valid[owner[order]]
    labels = np.zeros(len(owner), dtype=np.int8)
    labels[order] = np.where(rank < held, TEST, np.where(rank < held + kept, VALID, 0))
    return labels


def known_pairs(dataset: Any) -> dict[str, dict[str, int]]:
    """Count the pairs of valid and test by part, and those of them that are in train, too.

    No list can have these, because known items are hidden. Empty where this package splits, and of
    blocks, each of which is measured by itself. dataset: a `Dataset`
    """
    if dataset.split is None or dataset.block is not None or dataset.task == "next_item":
        return {}
    pair = dataset.user * len(dataset.items) + dataset.item
    train = np.unique(pair[dataset.split == TRAIN])
    counts = {}
    for name, part in {"valid": VALID, "test": TEST}.items():
        held = np.unique(pair[dataset.split == part])
        again = np.isin(held, train, assume_unique=True)
        counts[name] = {"pairs": len(held), "in_train": int(again.sum())}
    return counts


def misses(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return what follows from such pairs; empty if there are none."""
    some = [
        f"{c['in_train']:,} of {c['pairs']:,} {name} pairs"
        for name, c in counts.items()
        if c["in_train"]
    ]
    why = "are also in train: known items are not recommended, so every method misses them"
    return f"{' and '.join(some)} {why}" if some else ""


def rank_in_owner(owner: Ints) -> Ints:
    """Return the position of each row in its run of equal owners, counted from 0."""
    if len(owner) == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    lengths = np.diff(np.append(starts, len(owner)))
    return np.arange(len(owner)) - np.repeat(starts, lengths)


def _id_keys(ids: Strings) -> Ints:
    """Return a 64-bit number for each original id: the number itself, or a hash of the text."""
    return np.fromiter((_id_key(text) for text in ids.tolist()), dtype=np.int64, count=len(ids))


def _id_key(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19 and (text[0] != "0" or text == "0"):
        return int(text)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
