"""Shared base of the graph unlearners with gradient ascent by the leaving client alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.plan import Batch
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.methods._client_removal import FORGET, clipped, only_online
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class Climbing(GraphFedAvg, ABC):
    """Rounds of the leaving client alone: the server takes clipped ascent steps on its loss."""

    exact: ClassVar[bool] = False

    forget_rate: float = 0.01
    clip: float = 5.0
    """Maximum norm of the gradient."""

    @abstractmethod
    def server_ascend(self, state: ServerState, step: Params) -> ServerState:
        """Return the state after one clipped ascent step."""

    def client_objective(
        self, own: Params, batch: Batch, public: Params, cohort: Cohort, clock: Clock
    ) -> Tensor:
        loss = super().client_objective(own, batch, public, cohort, clock)
        return -loss if cohort.role == FORGET else loss

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        return only_online(super().server_sample(state, world, clock), state.own)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        if FORGET not in sums:
            return super().server_step(state, sums, world, clock)
        return self.server_ascend(state, clipped(sums[FORGET].mean(), self.clip))
