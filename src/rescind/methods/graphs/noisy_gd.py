"""Noisy gradient descent on what remains: noise drowns what the leaver left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.params import Params, add
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.methods._client_removal import (
    KEEP,
    asked,
    clipped,
    forgotten,
    one_step,
    referring,
    weights,
)
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class NoisyGD(GraphFedAvg):
    """Clipped steps on the others' loss with Gaussian noise on the weights; the leaver is offline.

    The noise comes from the clock, so that runs repeat: a baseline, not a privacy mechanism.
    """

    paper: ClassVar[str] = "Noisy-GD, a baseline of Ma et al., arXiv 2605.02297"
    exact: ClassVar[bool] = False

    forget_rate: float = 0.05
    clip: float = 1.0
    """The longest gradient."""
    noise: float = 0.02
    """Standard deviation of what each step adds to every weight."""
    forget_rounds: int = 30
    repair_rounds: int = 0

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Noisy steps of the others."""

        def steps(fed: Federation, roles: dict[int, str]) -> Federation:
            now = referring(fed, {}, roles, only=KEEP)
            return now.run(self.forget_rounds, method=one_step(self, dropout=0.0), roles=roles)

        return forgotten(fed, request, steps, self.repair_rounds)

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """While a client is forgotten, the others."""
        return asked(super().server_sample(state, world, clock), state.own)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """A clipped step, and noise."""
        if KEEP not in sums:
            return super().server_step(state, sums, world, clock)
        step = clipped(sums[KEEP].mean(), self.clip)
        after = add(state.public, step, self.forget_rate)
        return state.next(add(after, drawn(weights(state.public), clock), self.noise), state.own)


def drawn(like: Params, clock: Clock) -> dict[str, Tensor]:
    """Standard normal numbers of these shapes."""
    return {
        name: clock.normal(f"noise {name}", torch.arange(v.numel(), device=v.device))
        .view(v.shape)
        .to(v.dtype)
        for name, v in like.items()
    }
