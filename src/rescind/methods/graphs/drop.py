"""The null method of unlearning: the leaver is gone, and the others go on from the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.request import Request
from rescind.methods._client_removal import forgotten
from rescind.methods.graphs.fedavg import GraphFedAvg


@dataclass(frozen=True, kw_only=True)
class Drop(GraphFedAvg):
    """Nothing is undone; whatever forgets less than this does not forget."""

    paper: ClassVar[str] = "none: the null method"
    exact: ClassVar[bool] = False

    repair_rounds: int = 5
    """Rounds of the others after the leaver is gone."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Go on without the leaver."""
        return forgotten(fed, request, lambda same, _: same, self.repair_rounds)
