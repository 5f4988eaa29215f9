"""The sums of node rows: what one client adds, and the weights that solve any sum of parts."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.cohort import Graph
from rescind.data.arrays import both_directions
from rescind.errors import DataError
from rescind.methods.additive._pairs import halved, items_of, mirrored
from rescind.models.hops import UNIT, Hops


def graph_from(features: Tensor, edges: Tensor, label: Tensor, classes: int) -> Graph:
    """Return one contributor's graph. features: [N, F]    edges: [2, E]    label: [N], -1 unknown

    Edges count in both directions, once; an edge from a node to itself is dropped.
    """
    nodes, many = features.shape
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(f"edges must join nodes 0 to {nodes - 1}; got up to {int(edges.max())}.")
    if len(label) != nodes or (nodes and int(label.max()) >= classes):
        raise DataError(f"give one label below {classes} for each of {nodes} nodes, -1 if unknown.")
    one, other = edges.numpy()
    node, column = features.nonzero(as_tuple=True)
    return Graph(
        owner=torch.zeros(nodes, dtype=torch.int64),
        index=torch.arange(nodes),
        edge=torch.from_numpy(both_directions(one, other, nodes)),
        node=node,
        feature=column,
        value=features[node, column],
        label=label,
        features=many,
        classes=classes,
    )


def part_of(model: Hops, graph: Graph, train: Tensor) -> Tensor:
    """Return P and R of these nodes as one lower half, Z^T Z with Z = [H, Y] in units of 1 / 1024.

    train: [n] positions of labelled nodes    -> [(d + K) (d + K + 1) / 2] int64
    """
    rows, label = model.rows(graph)[train], graph.label[train]
    known = torch.nn.functional.one_hot(label, graph.classes).to(rows) * UNIT
    both = torch.cat([rows, known], 1)
    # Products of whole numbers below 2^53 are exact in float64, in any order of addition.
    return halved(both.T @ both).long()


def weights_of(total: Tensor, classes: int, ridge: float) -> Tensor:
    """Solve (P + ridge) W = R. total: a sum of parts    -> [d, K] float64"""
    both = mirrored(total).div_(UNIT * UNIT)
    width = items_of(total) - classes
    gram, known = both[:width, :width].contiguous(), both[:width, width:]
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(known, torch.linalg.cholesky(gram))
