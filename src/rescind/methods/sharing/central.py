"""Central training on lent records: an upper bound if all users lend everything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.model import Model, TakenRows
from rescind.core.params import Params
from rescind.core.signatures import Sent, Sums
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.update import Update
from rescind.core.world import World
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods._lent_graph.steps import GraphSteps, prefixed, server_rows, under
from rescind.models.lightgcn import LightGCN

USER = f"{REFERENCE}user"
"""The server's vector of each client; zeros for clients that lend nothing."""


@dataclass(frozen=True, kw_only=True)
class Central(Method):
    """LightGCN (He et al., SIGIR 2020) on the shared graph; preset `bpr_mf`: no propagation.

    Devices send nothing. The items are broadcast after propagation; layer 0 is trained, in
    `own["item"]` and `own["user"]`. A sharer is scored with the server's vector, another user
    with the sum of their items over sqrt(n), on the device.

    DEPARTS He et al.: cosine scores with a temperature of 0.2, as everywhere here. The vectors of
    all users are broadcast: use it to measure an upper bound, do not deploy it.
    """

    paper: ClassVar[str] = "He et al., SIGIR 2020, centralised"
    presets: ClassVar[tuple[str, ...]] = ("bpr_mf",)

    model: Model = LightGCN()
    clients_per_round: int | None = 1
    """Unused: the server trains alone."""
    temperature: float = 0.2

    layers: int = 3
    """Propagation steps; 0 is matrix factorisation."""
    score: Literal["cosine", "dot"] = "cosine"
    """How a user and an item are compared."""
    graph_steps: int = 20
    """Steps of Adam in a round."""
    graph_pairs: int | None = 8192
    """Shared pairs drawn per step; None: all."""
    graph_optimiser: Literal["plain", "adam"] = "adam"
    """The server's optimiser."""
    graph_rate: float = 0.01
    """Its learning rate: the better of .003 and .01 on validation of ML-100K, for both models."""
    graph_decay: float = 0.0
    """L2 on the rows of the drawn pairs; .01 for BPR-MF, the best of .001, .01 and .03 there."""

    @classmethod
    def bpr_mf(cls, **fields: Any) -> Central:
        """Return BPR-MF (Rendle et al., UAI 2009): no propagation, inner products, L2."""
        plain = {"layers": 0, "score": "dot", "temperature": 1.0, "graph_decay": 0.01}
        return cls(**{**plain, **fields})

    def server_init(self, world: World, clock: Clock) -> ServerState:
        state = super().server_init(world, clock)
        item = state.public["item"]
        user = server_rows({}, world, item.shape[1], self._spread, clock)
        public = {"item": item, USER: torch.zeros_like(user)}
        return replace(state, public=public, own={"item": item, "user": user})

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        item = state.own["item"]
        user = server_rows(state.own, world, item.shape[1], self._spread, clock)
        if not len(world.shared):
            return state.next({"item": state.public["item"], USER: torch.zeros_like(user)})
        graph = graph_of(world)
        user, item, moments = self._steps.run(graph, user, item, under("graph/", state.own), clock)
        rows = user.index_select(0, graph.sharers)
        seen_user, seen_item = graph.propagate(rows, item, self.layers)
        views = torch.zeros_like(user).index_copy_(0, graph.sharers, seen_user)
        own = {"item": item, "user": user, **prefixed("graph/", moments)}
        return state.next({"item": seen_item, USER: views}, own)

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        after = super().server_turn(state, world, clock)
        new = after.public["item"][len(state.own["item"]) :]
        return replace(after, own={**after.own, "item": torch.cat([state.own["item"], new])})

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        return Update(len(cohort), {}), private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Score with the server's vector, or else the sum of own items over sqrt(n). [C, I]"""
        item, views = public["item"], public[USER]
        n = cohort.own.count.clamp(min=1).to(item.dtype).unsqueeze(1)
        pooled = TakenRows(public, ("item",), cohort.own).summed("item") * torch.rsqrt(n)
        known = cohort.ids < len(views)
        user = views[torch.where(known, cohort.ids, 0)]
        shares = (known & (user != 0).any(1)).unsqueeze(1)
        user = torch.where(shares, user, pooled)
        if self.score == "cosine":
            user, item = functional.normalize(user, dim=-1), functional.normalize(item, dim=-1)
        return user @ item.T

    @property
    def _spread(self) -> float:
        return float(getattr(self.model, "spread", 0.04))

    @property
    def _steps(self) -> GraphSteps:
        return GraphSteps.of(self, score=self.score, decay=self.graph_decay)
