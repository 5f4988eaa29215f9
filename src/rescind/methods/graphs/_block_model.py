"""A private stand-in for a client's subgraph: noisy counts by class, and a graph drawn from them.

The alternative to the virtual client of FedGCV (`vgae.py`): what leaves the device are sums with
noise, given while the client is enrolled; the graph is the server's own draw from a stochastic
block model. No node of it is anybody's node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.guards import Gaussian, Laplace
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.privacy.accountant import epsilon_of


@dataclass(frozen=True)
class Release:
    """All that a client tells of its subgraph."""

    classes: Tensor
    """[K] nodes of each class, with noise."""
    features: Tensor
    """[K, F] the sum of each class's features, every node's clipped, with noise."""
    edges: Tensor
    """[K, K] edges between classes, each counted once above the diagonal, with noise."""


@dataclass(frozen=True)
class BlockGraph:
    """What a server draws from a release."""

    label: Tensor
    """[n]"""
    edge: Tensor
    """[2, e] both directions."""
    features: Tensor
    """[n, F]"""
    likely: Tensor
    """[n, n] how likely each edge was."""


@dataclass(frozen=True)
class BlockModel:
    """Counts and clipped sums under Gaussian noise, class pairs of edges under Laplace noise.

    Adding or removing one node changes the histogram by 1 and one row of the sums by at most
    `clip`, so by sqrt(1 + clip^2) together: (epsilon, delta) for nodes' labels and features.
    An edge changes one count by 1: epsilon = 1 / `edge_noise` for edges, not for nodes.
    """

    clip: float = 5.0
    """The largest norm of a node's features; a bag of 25 words has 5."""
    noise: float = 2.0
    """Noise multiplier of the histogram and the sums."""
    edge_noise: float = 2.0
    """Scale of the noise on counts of edges."""

    def __post_init__(self) -> None:
        for field in ("clip", "noise", "edge_noise"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ConfigError(
                    f"BlockModel.{field} must be above 0 and finite, got {getattr(self, field)}."
                )

    def epsilon(self, delta: float = 1e-5) -> dict[str, float]:
        """What the release costs: of labels and features by node, of edges by edge."""
        return {"nodes": epsilon_of(self.noise, delta), "edges": 1 / self.edge_noise}

    def release(self, graph: Graph) -> Release:
        """What the client sends, once. Noise comes from the operating system."""
        plain = self.counted(graph)
        reach = (1 + self.clip**2) ** 0.5
        told = {"classes": plain.classes, "features": plain.features}
        nodes = Gaussian(self.noise, reach).total(Sum(told, 1.0, 1)).totals
        # One client's noise on a sum of one is Laplace's own.
        edges = Laplace(self.edge_noise).total(Sum({"edges": plain.edges}, 1.0, 1)).totals
        return Release(nodes["classes"], nodes["features"], torch.triu(edges["edges"]))

    def counted(self, graph: Graph) -> Release:
        """The same sums without noise; never sent."""
        labelled = graph.label >= 0
        many, kinds = len(graph.index), graph.classes
        features = torch.zeros(many, graph.features, dtype=torch.float64)
        features[graph.node, graph.feature] = graph.value.double()
        long = features.norm(dim=1, keepdim=True).clamp(min=1e-12)
        features = features * (self.clip / long).clamp(max=1.0)
        label = graph.label[labelled]
        one, other = graph.edge
        inside = labelled[one] & labelled[other] & (one < other)
        low, high = torch.sort(graph.label[graph.edge[:, inside]], dim=0).values
        edges = jagged.counts(low * kinds + high, kinds * kinds).view(kinds, kinds)
        return Release(
            jagged.counts(label, kinds).double(),
            jagged.segment_sum(features[labelled], label, kinds),
            edges.double(),
        )

    def drawn(self, told: Release, most: int, clock: Clock) -> BlockGraph:
        """A graph of the told sizes: classes, edges by pairs of classes, features about the mean.

        most: nodes at most, so that noise cannot make a graph of any size
        """
        count = told.classes.round().clamp(min=0).long()
        label = jagged.owners_of(count)
        if len(label) > most:  # thin out all classes alike
            label = label[torch.linspace(0, len(label) - 1, most).long()]
            count = jagged.counts(label, len(count))
        pairs = count.unsqueeze(0) * count.unsqueeze(1) - torch.diag(count * (count + 1) // 2)
        both = torch.triu(told.edges) / pairs.clamp(min=1)
        chance = (both + torch.triu(both, 1).T).clamp(0, 1)
        likely = chance[label.unsqueeze(1), label.unsqueeze(0)]
        number = torch.arange(len(label))
        hit = clock.uniform("block edges", number.unsqueeze(1), number) < likely
        one, other = torch.triu(hit, 1).nonzero(as_tuple=True)
        edge = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
        mean = (told.features / told.classes.clamp(min=1).unsqueeze(1)).clamp(0, 1)
        k = torch.arange(mean.shape[1])
        features = (clock.uniform("block words", number.unsqueeze(1), k) < mean[label]).float()
        return BlockGraph(label, edge, features, likely)
