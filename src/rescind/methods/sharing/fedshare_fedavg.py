"""FedShare-FedAvg: the server takes part as one more client that owns all lent records.

The simplest baseline of Qu et al. (arXiv 2603.11610), as read in baselines.md section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rescind.core.clock import Clock
from rescind.core.gradient import RankingMethod
from rescind.core.model import Model
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import GraphSteps, prefixed, server_rows, under
from rescind.models.lightgcn import LightGCN


@dataclass(frozen=True, kw_only=True)
class FedShareFedAvg(RankingMethod):
    """FedAvg over the devices and a server that trains LightGCN on the shared graph.

    V <- V + sum over k of w_k (V_k - V), k the participants and the server s, with
    w_s = |D_s| / (|D_s| + sum |D_j|). The last w_s is kept as `own["server weight"]`, because the
    server dominates if few clients are sampled. Losses are means, so |D| counts once.
    """

    paper: ClassVar[str] = "Qu et al., arXiv 2603.11610, baseline"

    model: Model = LightGCN()
    clients_per_round: int | None = 256
    reduce: Literal["mean", "sum"] = "mean"
    aggregate: Literal["clients", "records", "rows"] = "records"
    temperature: float = 0.2
    negatives: int = 4
    rate: float = 1000.0
    private_rate: float = 0.0
    local_includes_shared: bool = False

    layers: int = 3
    """Propagation steps on the shared graph, L in V-A."""
    graph_steps: int = 1
    """Server steps per round before averaging, E_s."""
    graph_pairs: int | None = 8192
    """Shared pairs drawn per step, as in FedShare; None: all."""
    graph_optimiser: Literal["plain", "adam"] = "adam"
    """The server's optimiser, as in FedShare."""
    graph_rate: float = 0.001
    """Its learning rate; fedshare.md section 3."""

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """Return the item table, and a server row per client (only sharers' are used)."""
        state = super().server_init(world, clock)
        dim = state.public["item"].shape[1]
        return replace(state, own={"user": server_rows({}, world, dim, 0.04, clock)})

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        if not len(world.shared):
            return super().server_step(state, sums, world, clock)
        mine, own = self.server_train(state, world, clock)
        others = sum(total.weight for total in sums.values())
        fraction = torch.tensor(mine.weight / (mine.weight + others), dtype=torch.float64)
        state = replace(state, own={**own, "server weight": fraction})
        return super().server_step(state, {**sums, "server": mine}, world, clock)

    def server_train(
        self, state: ServerState, world: World, clock: Clock
    ) -> tuple[Sum, dict[str, torch.Tensor]]:
        """Train the server as a client. Return (its sum, its own values)."""
        graph, item = graph_of(world), state.public["item"]
        user = server_rows(state.own, world, item.shape[1], 0.04, clock)
        moments = under("graph/", state.own)
        user, moved, moments = GraphSteps.of(self).run(graph, user, item, moments, clock)
        weight = float(len(graph.user)) if self.aggregate == "records" else 1.0
        delta = moved - item
        touched = (delta != 0).any(1).to(delta.dtype) * weight
        total = Sum({"item": delta * weight}, weight, 1, {"item": touched})
        return total, {**state.own, "user": user, **prefixed("graph/", moments)}
