"""The null baseline: the client leaves, and the others continue from the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.request import Request
from rescind.methods._client_removal import remove_client
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class Drop(GraphFedAvg):
    """No unlearning: the lower bound for every other unlearner."""

    paper: ClassVar[str] = "none: the null method"
    exact: ClassVar[bool] = False

    repair_rounds: int = 5
    """Rounds of the other clients afterwards."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return remove_client(fed, request, lambda unchanged, _: unchanged, self.repair_rounds)
