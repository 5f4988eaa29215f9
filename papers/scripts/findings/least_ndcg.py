"""Compute the least NDCG@20 that each printed HR@20 of FedShare allows.

    python papers/scripts/findings/least_ndcg.py    (a minute)

For every pair of numbers that FedShare's Tables III and IV print: the test items of each user under
the split of the recipe, and from them the least possible NDCG@20 (`rescind_papers.verdicts`), the
minimum over three seeds of the split. HR@20 is taken half a unit of its last digit lower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from writing import write

from rescind.core.holdings import TEST
from rescind.experiments.prepared_data import obtained
from rescind.experiments.tables import cells_by_name
from rescind_papers.index import Shelf, chosen
from rescind_papers.verdicts import least_ndcg

EXHIBITS = ("fedshare/table3", "fedshare/table4")
SEEDS = (0, 1, 2)
ROUNDED = 0.00005
"""Half a unit of the last printed digit."""


def held_items(data: Any, seed: int) -> Any:
    """Return the number of test items of each user that has any."""
    holdings = data.on_devices(seed)
    counts = np.bincount(holdings.records.client[holdings.split == TEST].numpy())
    return counts[counts > 0]


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the data and a row per printed pair."""
    shelf = Shelf(Path(__file__).parents[3] / "recipes")
    digests, held, rows = {}, {}, {}
    for part in [part for name in EXHIBITS for part in chosen(shelf.folder, name)[0].parts]:
        recipe = shelf.recipe(part.recipe)
        for cell, printed in recipe.paper.items():
            one = cells_by_name(recipe)[cell]
            name, hit, ndcg = one.data.name, printed["HR@20"], printed["NDCG@20"]
            if name not in held:
                data = obtained(one)
                digests[name] = data.digest
                held[name] = [held_items(data, seed) for seed in SEEDS]
            least = min(least_ndcg(counts, hit - ROUNDED) for counts in held[name])
            rows[name, hit, ndcg] = {
                "data": name,
                "users": len(held[name][0]),
                "test items of a user": round(float(np.mean(held[name][0])), 2),
                "printed HR@20": hit,
                "printed NDCG@20": ndcg,
                "least possible NDCG@20": round(least, 4),
            }
    return digests, list(rows.values())


if __name__ == "__main__":
    write("least_ndcg", *found())
