"""FedOSD: a bounded ascent, orthogonal to the gradients of all other clients."""

from __future__ import annotations

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
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.update import Rows, Sum
from rescind.core.world import World
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET, KEEP
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class FedOSD(GraphFedAvg):
    """Orthogonal steepest descent (Pan et al., AAAI 2025).

    The leaving client minimises -log(1 - p / 2), which is bounded below. Its step is projected off
    the span of the others' gradients, so the server sees single updates. Recovery steps lose the
    part that points back to the start.
    """

    paper: ClassVar[str] = "Pan et al., AAAI 2025 (FedOSD)"
    exact: ClassVar[bool] = False
    individual: ClassVar[bool] = True

    forget_rate: float = 0.1
    """Step length as a multiple of the gradient norm."""
    forget_rounds: int = 30
    repair_rounds: int = 5

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Run orthogonal steps, then recovery rounds that do not move back to the start."""
        if not isinstance(request.event, Withdraw):
            return super().forget(fed, request)
        start = removal.weights(fed.now.state.public)

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            one = removal.one_step(self, dropout=0.0)
            fed = fed.with_(state=replace(fed.now.state, own={}))
            return fed.run(self.forget_rounds, method=one, roles=roles)

        after = removal.remove_client(fed, request, steps, 0)
        if removal.had_no_influence(fed, request):
            return after
        for _ in range(self.repair_rounds):
            after = _without_return(after, after.run(1, method=fed.method), start)
        return after

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Return -log(1 - p / 2) for the leaving client, cross-entropy for the others. [C]"""
        if cohort.role != FORGET:
            return super().client_objective(own, batch, public, cohort, clock)
        p = torch.exp(-self.client_entropy(own, batch, cohort, clock))
        return jagged.segment_mean(-torch.log1p(-p / 2), batch.owner, batch.clients)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Take the leaving client's step without its part in the span of the others' gradients."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        step = sums[FORGET].mean()
        for other in orthonormal(_single_updates(sums[KEEP])) if KEEP in sums else []:
            step = add(step, other, -dot(step, other))
        return state.next(add(state.public, step, self.forget_rate), state.own)


def _single_updates(total: Sum) -> list[dict[str, Tensor]]:
    return [
        {n: v[place] for n, v in update.entries.items() if not isinstance(v, Rows)}
        for _, update in total.parts
        for place in range(update.clients)
    ]


def orthonormal(vectors: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return an orthonormal basis of the span (Gram-Schmidt, twice)."""
    if not vectors:
        return []
    flat = torch.stack([torch.cat([v.reshape(-1) for v in one.values()]) for one in vectors])
    found = flat.new_zeros(0, flat.shape[1], dtype=torch.float64)
    for vector in flat.double():
        rest = vector
        for _ in range(2):  # once leaves rounding errors of nearly parallel gradients
            rest = rest - found.T @ (found @ rest)
        square = float(rest @ rest)
        if square > 1e-12 * max(float(vector @ vector), 1e-30):
            found = torch.cat([found, rest.unsqueeze(0) / square**0.5])
    sizes = [value.numel() for value in vectors[0].values()]
    return [
        {
            name: part.view(like.shape).to(like.dtype)
            for (name, like), part in zip(vectors[0].items(), one.split(sizes), strict=True)
        }
        for one in found
    ]


def _without_return(before: Federation, after: Federation, start: Params) -> Federation:
    """Remove the part of a recovery step that points back to the start."""
    now = before.now.state.public
    away = {n: v - start[n] for n, v in removal.weights(now).items()}
    step = {n: v - now[n] for n, v in removal.weights(after.now.state.public).items()}
    back, square = dot(step, away), dot(away, away)
    if back < 0 and square:
        step = add(step, away, -back / square)
    state = replace(after.now.state, public={**after.now.state.public, **add(now, step)})
    return after.with_(state=state)
