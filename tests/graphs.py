"""Small graphs for tests, made from the clock: the same on every machine."""

from __future__ import annotations

import numpy as np
import torch

from rescind.clock import Clock
from rescind.data import GraphDataset
from rescind.data.partition import subgraphs
from rescind.holdings import Holdings

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
