"""A private stand-in for a client's subgraph: noisy counts by class, and a graph sampled from them.

The alternative to FedGCV's virtual client (`_vgae.py`). No node in it is a real node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.core.guards import Gaussian, Laplace
from rescind.core.ranges import must_lie
from rescind.core.update import Sum
from rescind.privacy.gaussian import epsilon_of


@dataclass(frozen=True)
class Release:
    """Everything a client reveals about its subgraph."""

    classes: Tensor
    """[K] nodes per class, with noise."""
    features: Tensor
    """[K, F] sum of the clipped node features per class, with noise."""
    edges: Tensor
    """[K, K] edges between classes, each counted once above the diagonal, with noise."""


@dataclass(frozen=True)
class BlockGraph:
    """A graph sampled from a release."""

    label: Tensor
    """[n]"""
    edge: Tensor
    """[2, e] both directions."""
    features: Tensor
    """[n, F]"""
    likely: Tensor
    """[n, n] probability of each edge."""


@dataclass(frozen=True)
class BlockModel:
    """Class counts and clipped feature sums with Gaussian noise, edge counts with Laplace noise.

    Adding or removing one node changes the histogram by 1 and one row of the sums by at most
    `clip`, so both by sqrt(1 + clip^2): (epsilon, delta) for node labels and features.
    An edge changes one count by 1: epsilon = 1 / `edge_noise` for edges, not for nodes.
    """

    clip: float = 5.0
    """Maximum norm of a node's features; a bag of 25 words has norm 5."""
    noise: float = 2.0
    """Noise multiplier of the histogram and the sums."""
    edge_noise: float = 2.0
    """Scale of the noise on edge counts."""

    def __post_init__(self) -> None:
        must_lie(self, "(0, inf)", "clip", "noise", "edge_noise")

    def epsilon(self, delta: float = 1e-5) -> dict[str, float]:
        """Return the privacy cost: per node for labels and features, per edge for edges."""
        return {"nodes": epsilon_of(self.noise, delta), "edges": 1 / self.edge_noise}

    def release(self, graph: Graph) -> Release:
        """Compute what the client sends, once. Noise comes from the operating system."""
        exact = self.counted(graph)
        sensitivity = (1 + self.clip**2) ** 0.5
        sums = {"classes": exact.classes, "features": exact.features}
        nodes = Gaussian(self.noise, sensitivity).total(Sum(sums, 1.0, 1)).totals
        # With one client in the sum, this is ordinary Laplace noise.
        edges = Laplace(self.edge_noise).total(Sum({"edges": exact.edges}, 1.0, 1)).totals
        return Release(nodes["classes"], nodes["features"], torch.triu(edges["edges"]))

    def counted(self, graph: Graph) -> Release:
        """Compute the sums without noise; never sent."""
        labelled = graph.label >= 0
        n, classes = len(graph.index), graph.classes
        features = torch.zeros(n, graph.features, dtype=torch.float64)
        features[graph.node, graph.feature] = graph.value.double()
        norm = features.norm(dim=1, keepdim=True).clamp(min=1e-12)
        features = features * (self.clip / norm).clamp(max=1.0)
        label = graph.label[labelled]
        one, other = graph.edge
        inside = labelled[one] & labelled[other] & (one < other)
        low, high = torch.sort(graph.label[graph.edge[:, inside]], dim=0).values
        edges = jagged.counts(low * classes + high, classes**2).view(classes, classes)
        return Release(
            jagged.counts(label, classes).double(),
            jagged.segment_sum(features[labelled], label, classes),
            edges.double(),
        )

    def sample(self, release: Release, max_nodes: int, clock: Clock) -> BlockGraph:
        """Sample a graph: labels by class counts, edges by class pairs, features by class means."""
        count = release.classes.round().clamp(min=0).long()
        label = jagged.owners_of(count)
        if len(label) > max_nodes:  # remove the same fraction of each class
            label = label[torch.linspace(0, len(label) - 1, max_nodes).long()]
            count = jagged.counts(label, len(count))
        pairs = count.unsqueeze(0) * count.unsqueeze(1) - torch.diag(count * (count + 1) // 2)
        upper = torch.triu(release.edges) / pairs.clamp(min=1)
        density = (upper + torch.triu(upper, 1).T).clamp(0, 1)
        likely = density[label.unsqueeze(1), label.unsqueeze(0)]
        node = torch.arange(len(label))
        linked = clock.uniform("block edges", node.unsqueeze(1), node) < likely
        one, other = torch.triu(linked, 1).nonzero(as_tuple=True)
        edge = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
        mean = (release.features / release.classes.clamp(min=1).unsqueeze(1)).clamp(0, 1)
        k = torch.arange(mean.shape[1])
        features = (clock.uniform("block words", node.unsqueeze(1), k) < mean[label]).float()
        return BlockGraph(label, edge, features, likely)
