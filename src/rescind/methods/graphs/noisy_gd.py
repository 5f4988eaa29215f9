"""Noisy gradient descent on the remaining data: noise hides the leaving client's influence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.params import Params, add
from rescind.core.request import Request
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import KEEP
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class NoisyGD(GraphFedAvg):
    """Clipped steps on the others' loss, with Gaussian noise on the weights. The client is offline.

    The noise comes from the clock, so runs are reproducible: a baseline, not a privacy mechanism.
    """

    paper: ClassVar[str] = "Noisy-GD, a baseline of Ma et al., arXiv 2605.02297"
    exact: ClassVar[bool] = False

    forget_rate: float = 0.05
    clip: float = 1.0
    """Maximum norm of the gradient."""
    noise: float = 0.02
    """Standard deviation of the noise each step adds to every weight."""
    forget_rounds: int = 30
    repair_rounds: int = 0

    def forget(self, fed: Federation, request: Request) -> Federation:
        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = removal.with_reference(fed, {}, roles, only=KEEP)
            one = removal.one_step(self, dropout=0.0)
            return now.run(self.forget_rounds, method=one, roles=roles)

        return removal.remove_client(fed, request, steps, self.repair_rounds)

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        return removal.only_online(super().server_sample(state, world, clock), state.own)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        if KEEP not in sums:
            return super().server_step(state, sums, world, clock)
        step = removal.clipped(sums[KEEP].mean(), self.clip)
        after = add(state.public, step, self.forget_rate)
        noise = _noise(removal.weights(state.public), clock)
        return state.next(add(after, noise, self.noise), state.own)


def _noise(like: Params, clock: Clock) -> dict[str, Tensor]:
    return {
        name: clock.normal(f"noise {name}", torch.arange(v.numel(), device=v.device))
        .view(v.shape)
        .to(v.dtype)
        for name, v in like.items()
    }
