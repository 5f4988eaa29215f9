"""What a virtual client gives away of the client it stands for: edges, and who is who."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.cohort import Graph


@dataclass(frozen=True)
class Leak:
    """.5 and 1 / n tell nothing; 1 tells all."""

    edge_auc: float
    """How often a real edge is given a higher likelihood than a pair that has none."""
    found_again: float
    """The share of nodes whose nearest synthetic features (by cosine) are their own."""


def leak(graph: Graph, likely: Tensor, features: Tensor) -> Leak:
    """Hold a stand-in against the subgraph it was made of. likely: [n, n]    features: [n, F]"""
    nodes = len(graph.index)
    linked = torch.zeros(nodes, nodes, dtype=torch.bool)
    linked[graph.edge[0], graph.edge[1]] = True
    above = torch.triu(torch.ones_like(linked), 1)
    real = torch.zeros(nodes, graph.features, dtype=features.dtype)
    real[graph.node, graph.feature] = graph.value.to(features.dtype)
    near = (
        torch.nn.functional.normalize(real, dim=1)
        @ torch.nn.functional.normalize(features, dim=1).T
    )
    again = (near.argmax(1) == torch.arange(nodes)).double().mean()
    return Leak(auc(likely[linked & above], likely[~linked & above]), float(again))


def auc(high: Tensor, low: Tensor) -> float:
    """How often one of the first is above one of the second; ties count half."""
    order = low.sort().values
    below = torch.searchsorted(order, high).double()
    tied = torch.searchsorted(order, high, right=True).double() - below
    return float((below + tied / 2).mean() / max(len(low), 1))
