"""Forgetting by going on: a few rounds more on what remains (baselines.md 3.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rescind.core.records import Event
from rescind.errors import ConfigError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.purge_only import cleared, no_way_back

if TYPE_CHECKING:
    from rescind.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class FineTuneUnlearn(FedAvg):
    """Hope that rounds without the records wash them out. A cheap control."""

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FineTuneUnlearn"

    rounds: int = 10
    """Rounds on what remains, by the federation's own method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ConfigError(f"FineTuneUnlearn.rounds must be 1 or more, got {self.rounds}.")

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Purge, then go on training."""
        return no_way_back(fed, cleared(fed, event).run(self.rounds), event)
