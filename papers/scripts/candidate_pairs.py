"""Measure the cost and the quality of a sum over selected item pairs on a large catalogue.

    python papers/scripts/candidate_pairs.py [--write]

Gowalla has 840 million pairs of items, too many for a masked sum. But the server knows which items
were lent together. If it publishes these pairs, every device can add its own to one masked sum (or
to two shares): the server learns only the sum, and G is exact on these pairs and zero elsewhere.
Measured are validation quality (seed 0) and bytes. The upper bound is `LocalGram`, where devices
send their items in the clear; the lower bound uses loans alone.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rescind.core.federation import Federation
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import prepare
from rescind.experiments.recipe import read
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind_papers.pages import write_block

PAGE = Path("docs/results/additive-details.md")
RECIPE = Path("recipes/additive/gowalla.toml")
POPULAR = (0, 1000, 3000)
"""Also request all pairs among this number of most lent items."""


def keys(gram: SparseGram) -> np.ndarray:
    """Return row * items + column of every entry, in order."""
    row = np.repeat(np.arange(gram.items), np.diff(gram.first.numpy()))
    return row * gram.items + gram.other.numpy()


def requested(lent: SparseGram, popular: int) -> np.ndarray:
    """Return the requested pairs in both orders, and the diagonal. [n] sorted"""
    items = lent.items
    top = np.sort(np.argsort(-lent.diagonal.numpy(), kind="stable")[:popular])
    grid = (top[:, None] * items + top).ravel()
    return np.unique(np.concatenate([keys(lent), grid, np.arange(items) * (items + 1)]))


def cut(gram: SparseGram, pairs: np.ndarray) -> SparseGram:
    """Return G at these pairs, zero elsewhere."""
    mine = keys(gram)
    place = np.minimum(np.searchsorted(pairs, mine), len(pairs) - 1)
    kept = torch.from_numpy(pairs[place] == mine)
    row = torch.from_numpy(mine // gram.items)[kept]
    count = torch.bincount(row, minlength=gram.items)
    first = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return SparseGram(first, gram.other[kept], gram.value[kept])


def quality(fed: Federation, gram: SparseGram) -> tuple[float, float]:
    """Evaluate the weights of this sum on validation: HR@20 and NDCG@20."""
    size = fed.method.model.many
    near = Near.none(gram.items, size).solved(
        gram, torch.arange(gram.items), fed.method.ridges, fed.method.temper
    )
    state = fed.now.state
    public = {**state.public, "neighbour": near.item, "weight": near.weight}
    found = fed.with_(state=replace(state, public=public)).evaluate("valid")
    return found["HR@20"], found["NDCG@20"]


def main() -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    cells = {c.name: c for c in read(RECIPE).cells if c.run.seed == 0}
    data = prepare(cells["LocalGram"].data)
    loans_only = start(cells["LocalGram, shared alone"], data).run(1)
    whole = start(cells["LocalGram"], data).run(1)
    lent, every = (SparseGram.of(fed.now.state.own) for fed in (loans_only, whole))
    rows = [("loans alone", 0, *(loans_only.evaluate("valid")[k] for k in ("HR@20", "NDCG@20")))]
    for popular in POPULAR:
        pairs = requested(lent, popular)
        count = (len(pairs) + lent.items) // 2
        name = "pairs lent together" + (f", and all of {popular:,} items" if popular else "")
        rows.append((name, count, *quality(whole, cut(every, pairs))))
        print(rows[-1], flush=True)
    count = lent.items * (lent.items + 1) // 2
    rows.append(("every pair", count, *(whole.evaluate("valid")[k] for k in ("HR@20", "NDCG@20"))))
    lines = [
        "| devices are asked for | numbers | MB a device sends once | HR@20 | NDCG@20 |",
        "|---|---|---|---|---|",
        *(f"| {n} | {m:,} | {4e-6 * m:,.1f} | {h:.4f} | {g:.4f} |" for n, m, h, g in rows),
    ]
    print("\n".join(lines))
    if "--write" in sys.argv[1:]:
        write_block(PAGE, "papers/scripts/candidate_pairs.py", "\n".join(lines))


if __name__ == "__main__":
    main()
