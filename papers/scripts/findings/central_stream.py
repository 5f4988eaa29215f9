"""Measure a centralised learner of a stream: `python papers/scripts/findings/central_stream.py`.

On ML-100K, EASE is fitted again for every block on all training records so far, which devices of a
stream have deleted. Validation (mean of the later blocks) chooses the ridge; test is the mean of D1
to D3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from writing import write

from rescind.core.holdings import TRAIN
from rescind.core.records import Records
from rescind.data import Dataset, load
from rescind.experiments.streams import Blocks, Stream, mean, run_stream
from rescind.methods.baselines.ease import EASE

RIDGES = (30.0, 100.0, 300.0, 1000.0)


def growing(dataset: Dataset) -> Iterator[tuple[Records, Tensor]]:
    """Yield the blocks, each with the training records of all earlier ones."""
    assert dataset.block is not None
    assert dataset.split is not None
    records = Records.of(*map(torch.tensor, (dataset.user, dataset.item, dataset.time)))
    block, kind = torch.tensor(dataset.block).long(), torch.tensor(dataset.split)
    for number in range(int(block.max()) + 1):
        mine = (block == number) | ((block < number) & (kind == TRAIN))
        yield records[mine], kind[mine]


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digest of the data and a row per ridge; the first is chosen on validation."""
    dataset, rows = load("ml-100k", variant="f3crec"), []
    assert isinstance(dataset, Dataset)
    for ridge in RIDGES:
        done = run_stream(Stream.arriving(growing(dataset)), EASE(ridge=ridge), 0, Blocks(rounds=1))
        valid = mean([block.history[-1][1]["NDCG@20"] for block in done.blocks[1:]])
        rows.append(
            {
                "learner": f"EASE on all records so far, ridge {ridge:g}",
                "valid NDCG@20": round(valid, 4),
                "NDCG@20": round(done.summary("NDCG@20")["new"], 4),
            }
        )
    rows.sort(key=lambda row: -row["valid NDCG@20"])
    return {"ml-100k, f3crec": dataset.digest}, rows


if __name__ == "__main__":
    write("central_stream", *found())
