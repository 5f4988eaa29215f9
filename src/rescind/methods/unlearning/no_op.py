"""Nothing: the model is kept as it was (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rescind.core.records import Event
from rescind.methods.baselines.fedavg import FedAvg

if TYPE_CHECKING:
    from rescind.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Nothing(FedAvg):
    """The no-op: records leave the world, as the law of events demands, and nothing is unlearnt.

    The model and all that a server made of the records stay. Where a platform answers a request,
    its purge acts after any method, so there Nothing is PurgeOnly with the optimiser's moments.
    """

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Nothing"

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Only the world changes."""
        return fed.apply(event)
