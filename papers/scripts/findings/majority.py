"""What answering the larger class always reaches.

    python papers/scripts/findings/majority.py    (seconds)

For each graph: the share of the largest class among the test nodes of all clients, and the least
that it is among the others when one of them leaves, means over seeds of the split. No learning: a
method must be above it to have learnt anything.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor
from writing import write

from rescind.core.holdings import TEST
from rescind.data import GraphDataset, load
from rescind.data.partition import subgraphs

SEEDS = (2025, 2026, 2027)


def majority(graph: GraphDataset, seed: int) -> tuple[float, float]:
    """The share of the largest class among test nodes: of all, and the least without one client."""
    held = subgraphs(graph, seed=seed)
    test = held.graph.find(held.records.item[held.split == TEST])
    label, owner = held.graph.label[test], held.graph.owner[test]
    others = [label[owner != client] for client in owner.unique()]
    return share(label), min(map(share, others))


def share(label: Tensor) -> float:
    """Of the largest class."""
    return float(torch.bincount(label).max()) / len(label)


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The digests of the graphs; a row for each."""
    digests, rows = {}, []
    for name in ("cora", "citeseer", "pubmed", "tolokers"):
        graph = load(name)
        digests[name] = graph.digest
        every, least = zip(*(majority(graph, seed) for seed in SEEDS), strict=True)
        row = {"accuracy": statistics.fmean(every), "when one leaves": statistics.fmean(least)}
        rows.append({"graph": name, **{key: round(value, 4) for key, value in row.items()}})
    return digests, rows


if __name__ == "__main__":
    write("majority", *found())
