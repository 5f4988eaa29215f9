"""What those unlearners of graphs have in common in which the leaver alone climbs its own loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.plan import Batch
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.methods._client_removal import FORGET, asked, clipped
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class Climbing(GraphFedAvg, ABC):
    """Rounds of the leaver alone: the server takes clipped steps up its loss."""

    exact: ClassVar[bool] = False

    forget_rate: float = 0.01
    clip: float = 5.0
    """The longest gradient."""

    @abstractmethod
    def server_climb(self, state: ServerState, step: Params) -> ServerState:
        """The state after a step uphill, whose length is bounded already."""

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        """Minus the cross-entropy, for the leaver. [C]"""
        loss = super().client_objective(own, batch, public, cohort, clock)
        return -loss if cohort.role == FORGET else loss

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """While it is forgotten, the leaver alone."""
        return asked(super().server_sample(state, world, clock), state.own)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """A clipped step uphill; plain averaging where nobody is forgotten."""
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        return self.server_climb(state, clipped(sums[FORGET].mean(), self.clip))
