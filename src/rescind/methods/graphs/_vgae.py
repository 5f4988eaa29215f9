"""A synthetic stand-in for a client's subgraph: the virtual client of FedGCV, Eq. (3.7)-(3.12).

It reveals the leaving client's edges (`audits/virtual_client.py`), so it is off by default.
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

MAX_NODES = 4000
"""Limit for dense matrices: 128 MB of float64 each."""


@dataclass(frozen=True)
class VGAE:
    """A variational graph auto-encoder (Kipf and Welling 2016) with a spectral projection."""

    hidden: int = 32
    latent: int = 16
    spectrum: int = 64
    """k in Eq. (3.9): number of eigenvectors (smallest eigenvalues) to project on."""
    threshold: float = 0.7
    """Gamma in Eq. (3.11)."""
    steps: int = 200
    rate: float = 0.01

    def stand_in(self, graph: Graph, clock: Clock) -> StandIn:
        nodes = len(graph.index)
        if not 2 <= nodes <= MAX_NODES:
            raise DataError(f"a stand-in needs 2 to {MAX_NODES} nodes; this client has {nodes}.")
        normalised, linked = _dense(graph)
        features = torch.zeros(nodes, graph.features, dtype=torch.float64)
        features[graph.node, graph.feature] = graph.value.double()
        latent = self._encode(normalised, linked, features, clock)
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

    def _encode(self, normalised: Tensor, linked: Tensor, features: Tensor, clock: Clock) -> Tensor:
        """Train two convolutions with an inner-product decoder; return latent means. [n, latent]"""
        nodes = len(normalised)
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
        pos_weight = (target.numel() - target.sum()) / target.sum()
        inputs = normalised @ features
        for step in range(self.steps):
            hidden = normalised @ torch.relu(inputs @ weights["in"])
            mean, log_spread = hidden @ weights["mean"], hidden @ weights["spread"]
            k = torch.arange(self.latent)
            drawn = clock.step(step).normal("vgae", torch.arange(nodes).unsqueeze(1), k)
            latent = mean + drawn * torch.exp(log_spread)
            entropy = functional.binary_cross_entropy_with_logits(
                latent @ latent.T, target, pos_weight=pos_weight
            )
            prior = 1 + 2 * log_spread - mean**2 - torch.exp(2 * log_spread)
            loss = entropy - 0.5 * prior.sum(1).mean() / nodes
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        with torch.no_grad():
            return normalised @ torch.relu(inputs @ weights["in"]) @ weights["mean"]


@dataclass(frozen=True)
class StandIn:
    """What the server would get in place of the leaving client."""

    likely: Tensor
    """[n, n] probability of each edge."""
    edge: Tensor
    """[2, e] the edges above the threshold, both directions."""
    features: Tensor
    """[n, F]"""


def low_frequencies(linked: Tensor, k: int) -> Tensor:
    """Return the k lowest eigenvectors of the normalised Laplacian (Eq. 3.8). [n, k]"""
    scale = torch.where(linked.sum(1) > 0, linked.sum(1).clamp(min=1).rsqrt(), 0.0)
    laplacian = torch.eye(len(linked), dtype=linked.dtype) - scale[:, None] * linked * scale
    return torch.linalg.eigh(laplacian).eigenvectors[:, :k]


def _dense(graph: Graph) -> tuple[Tensor, Tensor]:
    """Return the normalised adjacency with self-loops (Eq. 3.7) and the plain one. [n, n] each"""
    nodes = len(graph.index)
    source, target, weight = adjacency(graph, torch.float64)
    normalised = torch.zeros(nodes, nodes, dtype=torch.float64)
    normalised[target, source] = weight
    linked = torch.zeros_like(normalised)
    linked[graph.edge[1], graph.edge[0]] = 1.0
    return normalised, linked
