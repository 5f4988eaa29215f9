"""Small graphs for tests, made from the clock: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.params import Params
from rescind.data import GraphDataset
from rescind.data.partition import subgraphs

CLASSES, FEATURES = 3, 8


def tiny_graph(
    nodes: int = 90, clients: int = 9, seed: int = 0, classes: int = CLASSES
) -> tuple[GraphDataset, np.ndarray]:
    """A graph whose classes show in features and edges, and the client of each node.

    Two nodes have no label, one no edge at all; edges also cross between clients.
    """
    clock, number = Clock(seed), torch.arange(nodes)
    y = clock.integers("tiny class", number, 0, classes).numpy()
    part = (number % clients).numpy()
    two = number.unsqueeze(1), number.unsqueeze(0)
    alike = torch.from_numpy(y[:, None] == y[None, :])
    near = clock.uniform("tiny edge", *two) < torch.where(alike, 0.25, 0.03)
    near = torch.triu(near, 1)
    near[4] = near[:, 4] = False
    one, other = near.nonzero(as_tuple=True)
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    column = torch.arange(FEATURES)
    often = torch.where(column.unsqueeze(0) % classes == torch.from_numpy(y)[:, None], 0.7, 0.15)
    features = clock.uniform("tiny feature", number.unsqueeze(1), column) < often
    y[[2, 3]] = -1
    mask = np.zeros(nodes, dtype=np.bool_)
    graph = GraphDataset(
        "tiny", edges.numpy(), features.float().numpy(), y, mask, mask, mask, classes
    )
    return graph, part


def tiny_subgraphs(clients: int = 6, nodes: int | None = None, seed: int = 0) -> Holdings:
    """A tiny graph on devices, half of it to train on."""
    graph, part = tiny_graph(nodes or 10 * clients, clients, seed)
    return subgraphs(graph, part, seed=seed, ratio=(60, 20, 20))


@dataclass
class Dense:
    """One client's subgraph as dense matrices: the slow oracle."""

    near: Tensor
    features: Tensor
    label: Tensor
    index: Tensor
    train: Tensor

    @classmethod
    def of(cls, held: Holdings, client: int) -> Dense:
        graph = held.graph
        mine = (graph.owner == client).nonzero().squeeze(1).tolist()
        near = torch.eye(len(mine), dtype=torch.float64)
        for a, b in graph.edge.T.tolist():
            if a in mine:
                near[mine.index(a), mine.index(b)] = 1.0
        features = torch.zeros(len(mine), graph.features, dtype=torch.float64)
        for node, column, value in zip(
            graph.node.tolist(), graph.feature.tolist(), graph.value.tolist(), strict=True
        ):
            if node in mine:
                features[mine.index(node), column] = value
        scale = near.sum(1).rsqrt().diag()
        trained = held.records.item[(held.split == TRAIN) & (held.records.client == client)]
        index = graph.index[mine]
        return cls(
            scale @ near @ scale, features, graph.label[mine], index, torch.isin(index, trained)
        )

    def logits(self, w: Params, drop: float = 0.0, clock: Clock | None = None) -> Tensor:
        hidden = torch.relu(self.near @ self.features @ w["one/weight"] + w["one/bias"])
        if clock is not None:
            k = torch.arange(hidden.shape[1])
            kept = torch.stack([clock.uniform("dropout", node, k) >= drop for node in self.index])
            hidden = hidden * kept / (1 - drop)
        return self.near @ hidden @ w["two/weight"] + w["two/bias"]

    def entropy(self, w: Params, drop: float = 0.0, clock: Clock | None = None) -> Tensor:
        """Cross-entropy of the training nodes. [n]"""
        log_p = torch.log_softmax(self.logits(w, drop, clock), 1)[self.train]
        label = self.label[self.train]
        return -log_p[torch.arange(len(label)), label]
