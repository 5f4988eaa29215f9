"""Measure the accuracy of always predicting the largest class.

    python papers/scripts/findings/majority.py    (seconds)

For each graph: the fraction of the largest class among the test nodes of all clients, and its
minimum over the remaining clients when one leaves, means over seeds of the split. A method that
learns must be better.
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
    """Compute the fraction of the largest class: over all clients, and the minimum without one."""
    held = subgraphs(graph, seed=seed)
    test = held.graph.find(held.records.item[held.split == TEST])
    label, owner = held.graph.label[test], held.graph.owner[test]
    others = [label[owner != client] for client in owner.unique()]
    return largest_fraction(label), min(map(largest_fraction, others))


def largest_fraction(label: Tensor) -> float:
    """Compute the fraction of the largest class."""
    return float(torch.bincount(label).max()) / len(label)


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the graphs and a row per graph."""
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
