"""FedOSD: a bounded ascent that is orthogonal to every other client's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.params import Params, add, dot
from rescind.core.plan import Batch
from rescind.core.records import Withdraw
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.core.update import Rows, Sum
from rescind.core.world import World
from rescind.methods._client_removal import (
    FORGET,
    KEEP,
    forgotten,
    had_no_influence,
    one_step,
    weights,
)
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class FedOSD(GraphFedAvg):
    """Orthogonal steepest descent (Pan et al., AAAI 2025).

    The leaver minimises -log(1 - p / 2), which has a lower end; its step loses whatever lies in
    the span of the others' gradients, so the server sees single updates. In the recovery, moves
    lose what points back to where forgetting began.
    """

    paper: ClassVar[str] = "Pan et al., AAAI 2025 (FedOSD)"
    exact: ClassVar[bool] = False
    individual: ClassVar[bool] = True

    forget_rate: float = 0.1
    """Length of a step, times that of the leaver's gradient."""
    forget_rounds: int = 30
    repair_rounds: int = 5

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Orthogonal steps, then a recovery that does not go back."""
        if not isinstance(request.event, Withdraw):
            return super().forget(fed, request)
        began = weights(fed.now.state.public)

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            fed = fed.with_(state=replace(fed.now.state, own={}))
            return fed.run(self.forget_rounds, method=one_step(self, dropout=0.0), roles=roles)

        after = forgotten(fed, request, steps, 0)
        if had_no_influence(fed, request):
            return after
        for _ in range(self.repair_rounds):
            after = recovered(after, after.run(1, method=fed.method), began)
        return after

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """-log(1 - p / 2) of the leaver's nodes; cross-entropy of the others'. [C]"""
        if cohort.role != FORGET:
            return super().client_objective(own, batch, public, cohort, clock)
        p = torch.exp(-self.client_entropy(own, batch, cohort, clock))
        return jagged.segment_mean(-torch.log1p(-p / 2), batch.owner, batch.clients)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The leaver's step, less its part in the span of the others' gradients."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        step = sums[FORGET].mean()
        for other in orthonormal(single(sums[KEEP])) if KEEP in sums else []:
            step = add(step, other, -dot(step, other))
        return state.next(add(state.public, step, self.forget_rate), state.own)


def single(total: Sum) -> list[dict[str, Tensor]]:
    """The updates in a sum, client by client."""
    return [
        {
            name: value[place]
            for name, value in update.entries.items()
            if not isinstance(value, Rows)
        }
        for _, update in total.parts
        for place in range(update.clients)
    ]


def orthonormal(vectors: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Directions of length 1 at right angles with the same span (Gram and Schmidt, twice)."""
    if not vectors:
        return []
    flat = torch.stack([torch.cat([v.reshape(-1) for v in one.values()]) for one in vectors])
    found = flat.new_zeros(0, flat.shape[1], dtype=torch.float64)
    for vector in flat.double():
        left, size = vector, float(vector @ vector)
        for _ in range(2):  # once leaves rounding errors of nearly parallel gradients
            left = left - found.T @ (found @ left)
        rest = float(left @ left)
        if rest > 1e-12 * max(size, 1e-30):
            found = torch.cat([found, left.unsqueeze(0) / rest**0.5])
    sizes = [value.numel() for value in vectors[0].values()]
    return [
        {
            name: part.view(like.shape).to(like.dtype)
            for (name, like), part in zip(vectors[0].items(), one.split(sizes), strict=True)
        }
        for one in found
    ]


def recovered(before: Federation, after: Federation, began: Params) -> Federation:
    """A round of recovery without the part of its move that points back to where one began."""
    now = before.now.state.public
    away = {n: v - began[n] for n, v in weights(now).items()}
    move = {n: v - now[n] for n, v in weights(after.now.state.public).items()}
    back, size = dot(move, away), dot(away, away)
    if back < 0 and size:
        move = add(move, away, -back / size)
    state = replace(after.now.state, public={**after.now.state.public, **add(now, move)})
    return after.with_(state=state)
