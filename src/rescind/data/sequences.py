"""Sequences: each user's items in their order, the last one to be predicted.

The protocol of the sequential literature (SASRec, BERT4Rec): the last item of a user is test, the
one before it valid, the rest train. Every item is ranked, except those the user already has.

Items of one second have no order of their own. In MovieLens this concerns 42 % of the last items,
and an order by ids would tell which of them comes last. A hash of (seed, pair) decides instead
(`blocks.by_time`): it cannot know the answer.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from rescind.data.arrays import Ints
from rescind.data.blocks import MANY_TIES, by_time, share_tied
from rescind.data.catalogue import ENTRIES
from rescind.data.dataset import Dataset
from rescind.data.split import by_rank, rank_in_owner
from rescind.errors import DataError

log = logging.getLogger(__name__)

LEAST = 3
"""Shorter sequences are train only: there would be no history to predict from."""


def in_order(dataset: Dataset, seed: int = 0) -> Dataset:
    """Return each user's distinct items from first to last; `time` becomes the place, from 1.

    Of several rows of a pair the earliest counts. Without times the order of rows is taken where
    it is that of the users' histories. A warning names the share of equal times if it is large.
    """
    entry = ENTRIES.get(dataset.name)
    if dataset.has_time:
        _warn_of_ties(dataset)
        order = by_time(dataset, seed)
    elif entry is not None and entry.in_order:
        order = np.arange(len(dataset))
    else:
        raise DataError(f"dataset '{dataset.name}' has no times, so no item is the last.")
    order = order[np.argsort(dataset.user[order], kind="stable")]
    pair = dataset.user[order] * len(dataset.items) + dataset.item[order]
    _, first = np.unique(pair, return_index=True)
    rows = dataset.select(order[np.sort(first)])
    return replace(rows, time=rank_in_owner(rows.user) + 1)


def _warn_of_ties(dataset: Dataset) -> None:
    """Say so if time decides little about which item is the last."""
    if (share := share_tied(dataset)) > MANY_TIES:
        log.warning(
            "dataset '%s': %.0f %% of the rows have the time of another item of their user. A hash "
            "orders them, so the last item may be drawn, not the newest. Give exact times if you "
            "have them.",
            dataset.name, 100 * share,
        )  # fmt: skip


def next_item(dataset: Dataset, seed: int = 0) -> Dataset:
    """Return the sequences with the last item as test, the one before as valid, the rest train."""
    rows = in_order(dataset, seed)
    newest_first: Ints = np.lexsort((-rows.time, rows.user))
    one = (np.bincount(rows.user, minlength=len(rows.users)) >= LEAST).astype(np.int64)
    split = by_rank(rows.user, newest_first, test=one, valid=one)
    return replace(rows, split=split, block=None, task="next_item")
