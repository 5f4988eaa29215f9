"""Recommend from a saved federation without loading it, and without torch, which takes seconds.

Only where the answer is a short sum over what one user has: `Gram` and `LocalGram`. Everything else
(and everything unusual, such as a user without data) is answered by the federation itself, which
also says what is wrong with a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rescind.core.headers import FOREIGN
from rescind.core.labels import Recommendation
from rescind.storage.partly import Array, Saved


def open_saved(folder: Path) -> Saved | None:
    """Return a saved federation of which parts can be read; None if it has to be loaded."""
    try:
        return Saved(folder)
    except (OSError, *FOREIGN):
        return None


def recommend(
    saved: Saved, user: str | None, k: int, history: Sequence[str] | None
) -> list[Recommendation] | None:
    """Return what `Federation.recommend` does; None if that has to be asked."""
    try:
        return _recommend(saved, user, k, history)
    except FOREIGN:
        return None


def method_of(saved: Saved) -> str:
    """Return the name of the class that learnt it."""
    return str(saved.facts["method"]["name"])


def _recommend(
    saved: Saved, user: str | None, k: int, history: Sequence[str] | None
) -> list[Recommendation] | None:
    score = _SCORES.get((method_of(saved), saved.facts["method"]["model"]["name"]))
    if score is None or saved.facts["task"] != "ranking" or saved.facts["hosts"]:
        return None
    labels, sizes = saved.labels, saved.facts["sizes"]
    if history is not None:
        own = had = np.array(sorted({labels.item(i, sizes["items"]) for i in history}))
    else:
        client = labels.client(str(user), sizes["clients"])
        own, had = _own_and_had(saved, client)
        if not saved.server.value("flags|members")[client] or not len(own):
            return None
    scores = score(saved, own).astype(np.float64)
    scores[had] = -np.inf
    if not np.isfinite(np.delete(scores, had)).all():
        return None
    scores[list(labels.removed_items)] = -np.inf
    best = np.argsort(-scores, kind="stable")[:k]  # of equal scores the lower item comes first
    return [
        Recommendation(labels.item_id(i), labels.title(i), float(scores[i]), "taste")
        for i in best.tolist()
        if scores[i] > -np.inf
    ]


def _own_and_had(saved: Saved, client: int) -> tuple[Array, Array]:
    """Return the training items of a client and all its items, each once, sorted.

    These are the lots "own" and "had" of holdings: scores are from the first, lists are without
    the second.
    """
    rows = saved.devices.of_client("held", client)
    train = (rows["split"] == 0) & (rows["block"] == saved.device_facts["now"])
    return np.unique(rows["item"][train]), np.unique(rows["item"])


def _by_weights(saved: Saved, own: Array) -> Array:
    """Add the rows of the user's items, one after the other, as `ItemWeights.of_lot` does."""
    return saved.server.rows("public|weights", own).sum(0)


def _by_neighbours(saved: Saved, own: Array) -> Array:
    """Add the weights of neighbours that the user has, as `LocalWeights.of_lot` does."""
    near, weight = saved.server.value("public|neighbour"), saved.server.value("public|weight")
    has = np.zeros(len(near) + 1, np.bool_)
    has[own] = True  # the last entry stands for "no neighbour", which is -1
    there = has[near]
    item, order = there.nonzero()[0], np.argsort(near[there], kind="stable")
    out = np.zeros(len(near), weight.dtype)
    np.add.at(out, item[order], weight[there][order])  # in the order of the user's items
    return out


_SCORES: dict[tuple[str, str], Callable[[Saved, Array], Array]] = {
    ("Gram", "ItemWeights"): _by_weights,
    ("LocalGram", "LocalWeights"): _by_neighbours,
}
"""By method and model."""
