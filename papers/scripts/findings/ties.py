"""Measure what equal times decide: `python papers/scripts/findings/ties.py` (seconds).

Last.fm-2K in blocks. Inside a user's part of a later block the newest tenth is test. Its times are
months, so something else than time orders most pairs: the order of rows (by artist id), or a draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from writing import write

from rescind.data import Dataset, load
from rescind.data.split import pair_hash


def found(seed: int = 0) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digest of the data and a row for each order of equal times."""
    data = load("lastfm-2k", variant="f3crec")
    orders = {
        "by artist id": np.asarray(data.items).astype(np.int64)[data.item].astype(float),
        "drawn": pair_hash(data, data.user, data.item, seed, "ties in time").astype(float),
    }
    rows = [{"equal times": name, **measured(data, order)} for name, order in orders.items()]
    return {"lastfm-2k, f3crec": data.digest}, rows


def measured(data: Dataset, order: Any) -> dict[str, float]:
    """Return the share of tied pairs, and what the order does to ids and popularity of test sets.

    order: the order of rows with equal times; [n]
    """
    ids = np.asarray(data.items).astype(np.int64)
    tied, pairs, above, sets, ratios = 0, 0, 0, 0, []
    popular = np.bincount(data.item, minlength=len(ids))
    parts = data.block.astype(np.int64) * len(data.users) + data.user
    for part in np.unique(parts[data.block > 0]):
        mine = np.flatnonzero(parts == part)
        mine = mine[np.unique(data.item[mine], return_index=True)[1]]  # distinct pairs
        time = data.time[mine]
        _, moment, many = np.unique(time, return_inverse=True, return_counts=True)
        tied, pairs = tied + int((many[moment] > 1).sum()), pairs + len(mine)
        if len(mine) < 3:
            continue
        newest = mine[np.lexsort((order[mine], time))]
        test = -(-len(mine) // 10)
        train, held = newest[:-test], newest[-test:]
        same = train[np.isin(data.time[train], data.time[held])]
        if len(same):
            sets += 1
            above += int(ids[data.item[held]].min() > ids[data.item[same]].max())
            ratios.append(popular[data.item[held]].mean() / popular[data.item[same]].mean())
    return {
        "pairs with an equal time": round(tied / pairs, 3),
        "test sets whose ids are all higher": round(above / sets, 3),
        "popularity, test / train of the same time": round(float(np.median(ratios)), 2),
    }


if __name__ == "__main__":
    write("ties", *found())
