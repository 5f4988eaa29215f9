"""A synthetic stand-in for a client's subgraph: the virtual client of FedGCV, Eq. (3.7)-(3.12).

Dense matrices of one client's size: a few hundred nodes. It gives the leaver away
(`audits/stand_in.py` measures how much), so nothing uses it unless asked to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Graph
from rescind.errors import DataError
from rescind.models.gcn import adjacency
from rescind.models.lightgcn import uniform

MOST = 4000
"""Nodes whose dense matrices are made without asking: 128 MB of float64 each."""


@dataclass(frozen=True)
class VGAE:
    """A variational graph auto-encoder (Kipf and Welling 2016) with a spectral projection."""

    hidden: int = 32
    latent: int = 16
    spectrum: int = 64
    """k in Eq. (3.9): eigenvectors of the smallest eigenvalues that latent values may use."""
    threshold: float = 0.7
    """Gamma in Eq. (3.11)."""
    steps: int = 200
    rate: float = 0.01

    def stand_in(self, graph: Graph, clock: Clock) -> StandIn:
        """Fit one client's subgraph and draw its double."""
        nodes = len(graph.index)
        if not 2 <= nodes <= MOST:
            raise DataError(f"a stand-in needs 2 to {MOST} nodes; this client has {nodes}.")
        near, linked = _dense(graph)
        features = torch.zeros(nodes, graph.features, dtype=torch.float64)
        features[graph.node, graph.feature] = graph.value.double()
        latent = self._encoded(near, linked, features, clock)
        basis = low_frequencies(linked, self.spectrum)
        latent = basis @ (basis.T @ latent)  # Eq. (3.9)
        likely = torch.sigmoid(latent @ latent.T)  # Eq. (3.10)
        above = torch.triu(likely > self.threshold, 1)  # Eq. (3.11)
        one, other = above.nonzero(as_tuple=True)
        edge = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
        mean, spread = features.mean(0), features.std(0)
        k = torch.arange(graph.features)
        noise = clock.normal("stand-in", torch.arange(nodes).unsqueeze(1), k)
        return StandIn(likely, edge, mean + spread * noise)  # Eq. (3.12)

    def _encoded(self, near: Tensor, linked: Tensor, features: Tensor, clock: Clock) -> Tensor:
        """Latent means after training: two convolutions, decoded by inner products. [n, latent]"""
        nodes = len(near)
        shapes = {
            "in": (features.shape[1], self.hidden),
            "mean": (self.hidden, self.latent),
            "spread": (self.hidden, self.latent),
        }
        weights = {
            name: uniform(f"vgae {name}", torch.arange(a), b, math.sqrt(6 / (a + b)), clock)
            .double()
            .requires_grad_()
            for name, (a, b) in shapes.items()
        }
        adam = torch.optim.Adam(weights.values(), lr=self.rate)
        target = linked + torch.eye(nodes, dtype=linked.dtype)
        rare = (target.numel() - target.sum()) / target.sum()
        inputs = near @ features
        for step in range(self.steps):
            hidden = near @ torch.relu(inputs @ weights["in"])
            mean, log_spread = hidden @ weights["mean"], hidden @ weights["spread"]
            k = torch.arange(self.latent)
            drawn = clock.step(step).normal("vgae", torch.arange(nodes).unsqueeze(1), k)
            latent = mean + drawn * torch.exp(log_spread)
            told = functional.binary_cross_entropy_with_logits(
                latent @ latent.T, target, pos_weight=rare
            )
            prior = 1 + 2 * log_spread - mean**2 - torch.exp(2 * log_spread)
            loss = told - 0.5 * prior.sum(1).mean() / nodes
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        with torch.no_grad():
            return near @ torch.relu(inputs @ weights["in"]) @ weights["mean"]


@dataclass(frozen=True)
class StandIn:
    """What would be handed to the server in a leaver's place."""

    likely: Tensor
    """[n, n] how likely each edge is."""
    edge: Tensor
    """[2, e] the edges above the threshold, both directions."""
    features: Tensor
    """[n, F]"""


def low_frequencies(linked: Tensor, many: int) -> Tensor:
    """Eigenvectors of the normalised Laplacian (Eq. 3.8) with the smallest eigenvalues. [n, k]"""
    scale = torch.where(linked.sum(1) > 0, linked.sum(1).clamp(min=1).rsqrt(), 0.0)
    laplacian = torch.eye(len(linked), dtype=linked.dtype) - scale[:, None] * linked * scale
    return torch.linalg.eigh(laplacian).eigenvectors[:, :many]


def _dense(graph: Graph) -> tuple[Tensor, Tensor]:
    """The normalised adjacency with self-loops (Eq. 3.7), and the plain one. [n, n] each"""
    nodes = len(graph.index)
    come, go, weight = adjacency(graph, torch.float64)
    near = torch.zeros(nodes, nodes, dtype=torch.float64)
    near[go, come] = weight
    linked = torch.zeros_like(near)
    linked[graph.edge[1], graph.edge[0]] = 1.0
    return near, linked
