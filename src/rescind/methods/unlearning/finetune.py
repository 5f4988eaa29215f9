"""Forget by fine-tuning: a few more rounds on the remaining records (baselines.md 3.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.methods.unlearning.purge_only import cleared, without_restore_points


@dataclass(frozen=True, kw_only=True)
class FineTuneUnlearn(Unlearner):
    """A few rounds without the records. A cheap control."""

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "FineTuneUnlearn"
    tasks: ClassVar[tuple[str, ...]] = ("ranking", "nodes")

    rounds: int = 10
    """Rounds of the federation's own method on the remaining records."""

    def __post_init__(self) -> None:
        must_lie(self, "[1, inf)", "rounds")

    def forget(self, fed: Federation, request: Request) -> Federation:
        return without_restore_points(cleared(fed, request).run(self.rounds), request)
