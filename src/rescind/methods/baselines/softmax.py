"""A federated softmax over the whole catalogue: the strongest gradient method here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.fast.softmax import summed
from rescind.core.gradient import RankingMethod, weights
from rescind.core.jagged import take
from rescind.core.model import Model
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import graph_of
from rescind.models.bag import Bag


@dataclass(frozen=True, kw_only=True)
class Softmax(RankingMethod):
    """Each device sends one gradient of -log softmax over all items; the server steps with Adam.

    The server trains on shared items as if their owners were more clients. With strict sharing a
    device trains only on the items it kept, so no one sees pairs of a kept and a shared item.
    """

    model: Model = Bag()
    clients_per_round: int | None = 256
    loss: Literal["bpr", "bce", "softmax"] = "softmax"
    aggregate: Literal["clients", "records", "roots", "rows"] = "roots"
    rate: float = 1.0
    server_optimiser: Literal["plain", "momentum", "adam"] = "adam"
    server_rate: float = 0.003
    server_decay: int | None = 1000
    local_includes_shared: bool = False

    loans_per_round: int = 85
    """Users whose shared items the server trains on in a round. With 256 devices of ML-1M a round,
    devices and shared items are sampled with equal probability. Constant, so that a user who never
    took part has no influence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        private = self.model.private(torch.zeros(0, dtype=torch.int64), Clock(0))
        if private and not self.local_includes_shared:
            raise ConfigError(
                f"{type(self.model).__name__} keeps {', '.join(private)} on each device, so the "
                f"server cannot train on shared items. Set local_includes_shared, or use Bag."
            )

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        shared = None if self.local_includes_shared else self.server_loans(state, world, clock)
        if shared is not None:
            sums = {**sums, "lent": shared}
        return super().server_step(state, sums, world, clock)

    def server_loans(self, state: ServerState, world: World, clock: Clock) -> Sum | None:
        """Compute what the devices of some users would send for their shared items."""
        if not len(world.shared):
            return None
        graph = graph_of(world)
        order = torch.argsort(clock.bits("sample loans", graph.sharers), stable=True)
        chosen = order[: self.loans_per_round].sort().values
        owner, place = take(graph.lot.first, graph.lot.count, chosen)
        lot = Lot(owner, graph.item[place], len(chosen))
        weight = weights(self.aggregate, lot.count)
        cohort = Cohort(graph.sharers[chosen], graph.items, lot, lot, weight=weight)
        rates = dict.fromkeys(state.public, self.rate)
        # Use other random draws than the same user's device.
        total, _ = summed(self, state.public, {}, rates, cohort, clock.step(2**20))
        return total
