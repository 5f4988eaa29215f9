"""The null method of unlearning: the leaver is gone, and the others go on from the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.federation import Federation
from rescind.methods.graph_fedavg import GraphFedAvg
from rescind.methods.leaving import forgotten
from rescind.records import Event


@dataclass(frozen=True, kw_only=True)
class Drop(GraphFedAvg):
    """Nothing is undone; whatever forgets less than this does not forget."""

    paper: ClassVar[str] = "none: the null method"
    exact: ClassVar[bool] = False

    repair_rounds: int = 5
    """Rounds of the others after the leaver is gone."""

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Go on without the leaver."""
        return forgotten(fed, event, lambda same, _: same, self.repair_rounds)
