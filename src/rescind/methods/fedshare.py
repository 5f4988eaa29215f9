"""FedShare: federated recommendation with personal data sharing (Qu et al., arXiv 2603.11610).

Learning phase (Algorithm 1). Devices train on what they kept to themselves; the server averages
and then refines the item table on the graph of what people lent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.clock import Clock
from rescind.method import Method
from rescind.model import Model
from rescind.models.graph_steps import grown_rows
from rescind.models.lightgcn import LightGCN, cosine, uniform
from rescind.models.shared_graph import SharedGraph, graph_of
from rescind.optim import server_move
from rescind.state import ServerState
from rescind.update import Sum
from rescind.world import World


@dataclass(frozen=True, kw_only=True)
class FedShare(Method):
    """Devices and the shared graph learn one item table together (Eq. 10-18).

    DEPARTS Eq. (15): a temperature of 0.2 inside the BPR. As printed the loss stays at the level of
    item popularity at any learning rate.

    DEPARTS Eq. (16): the local loss is a sum over pairs and clients count alike. Weighting a summed
    loss by the number of records once more costs 4.5 points of HR@20.
    """

    paper: ClassVar[str] = "Qu et al., arXiv 2603.11610"

    model: Model = LightGCN()
    clients_per_round: int | None = 256
    reduce: Literal["mean", "sum"] = "sum"
    temperature: float = 0.2
    rate: float = 0.3
    private_rate: float = 0.01
    local_includes_shared: bool = False

    layers: int = 3
    """Propagation steps on the shared graph, L in V-A."""
    refine_rate: float = 0.001
    """Learning rate of the server's Adam."""
    refine_pairs: int = 8192
    """Shared pairs sampled for the server's BPR in a round."""
    refine_bpr: float = 1.0
    """Weight of the server's BPR; 0 is the ablation "w/o server BPR"."""
    contrast: float = 0.5
    """Weight of InfoNCE, lambda_1 in Eq. (18); 0 is the ablation "w/o CL"."""
    contrast_temperature: float = 0.2
    """Tau in Eq. (17)."""
    contrast_items: int = 1024
    """Items contrasted in a round."""
    view: Literal["graph", "self"] = "graph"
    """What the local view is contrasted with; "self" is the control that leaves the graph out."""
    snapshots: int = 3
    """Item tables kept for unlearning, M in IV-C."""

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """The item table, and a row of the server's own for everybody (only sharers' are used)."""
        state = super().server_init(world, clock)
        ids = torch.arange(world.sizes.clients, device=world.members.device)
        dim = state.public["item"].shape[1]
        return replace(state, own={"user": uniform("server user", ids, dim, 0.04, clock)})

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """FedAvg, then one step of refinement on the shared graph; the table is remembered."""
        state = replace(state, own=grown_rows(state.own, world, 0.04, clock))
        after = super().server_step(state, sums, world, clock)
        if len(world.shared) and (self.refine_bpr or self.contrast):
            after = self.server_refine(after, world, clock)
        memory = after.memory.keep(
            "item", after.round, {"item": after.public["item"]}, last=self.snapshots
        )
        return replace(after, memory=memory)

    def server_graph(self, state: ServerState, world: World) -> SharedGraph:
        """The graph that is learnt from: what people lend. A subclass may see more in it."""
        return graph_of(world)

    def server_refine(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """One Adam step on BPR + lambda_1 InfoNCE over the shared graph (Eq. 17-18)."""
        graph = self.server_graph(state, world)
        item = state.public["item"].detach().requires_grad_()
        user = state.own["user"].index_select(0, graph.sharers).requires_grad_()
        seen_user, seen_item = graph.propagate(user, item, self.layers)
        loss = item.new_zeros(())
        if self.refine_bpr:
            loss = loss + self.refine_bpr * self._bpr(graph, seen_user, seen_item, clock)
        if self.contrast:
            other = seen_item if self.view == "graph" else item
            loss = loss + self.contrast * self._contrast(graph, item, other, clock)
        down = torch.autograd.grad(loss, [item, user], allow_unused=True)
        names = {"item": item.detach(), "user": user.detach()}
        direction = {n: -g for n, g in zip(names, down, strict=True) if g is not None}
        moved, moments = server_move(
            names, _moments(state, graph.sharers), direction, "adam", self.refine_rate
        )
        own = dict(state.own)
        for name, value in {"user": moved["user"], **moments}.items():
            kept = name if name == "user" else f"refine/{name}"
            if name.endswith("user") and value.dim():  # rows of sharers, written back in place
                whole = own.get(kept)
                whole = torch.zeros_like(own["user"]) if whole is None else whole
                own[kept] = whole.index_copy(0, graph.sharers, value)
            else:
                own[kept] = value
        return replace(state, public={**state.public, "item": moved["item"]}, own=own)

    def _bpr(self, graph: SharedGraph, user: Tensor, item: Tensor, clock: Clock) -> Tensor:
        """Mean BPR with cosine scores over sampled shared pairs; negatives from what is not shared.

        The server must not know what people kept, so a negative may be something they have.
        """
        owner, positive, negative = graph.sample(self.refine_pairs, clock)
        one = user.index_select(0, owner)
        near = cosine(one, item.index_select(0, positive))
        far = cosine(one, item.index_select(0, negative))
        return functional.softplus((far - near) / self.temperature).mean()

    def _contrast(self, graph: SharedGraph, local: Tensor, seen: Tensor, clock: Clock) -> Tensor:
        """InfoNCE between an item's local and global view, in-batch negatives (Eq. 17)."""
        chosen = graph.some_items(self.contrast_items, clock)
        one = functional.normalize(local.index_select(0, chosen), dim=-1)
        two = functional.normalize(seen.index_select(0, chosen), dim=-1)
        logits = one @ two.T / self.contrast_temperature
        return functional.cross_entropy(logits, torch.arange(len(chosen), device=logits.device))


def _moments(state: ServerState, sharers: Tensor) -> dict[str, Tensor]:
    """What the server's Adam remembers, rows of sharers only."""
    out = {}
    for name, value in state.own.items():
        if name.startswith("refine/"):
            rows = name.endswith("/user") and value.dim()
            out[name.removeprefix("refine/")] = value.index_select(0, sharers) if rows else value
    return out
