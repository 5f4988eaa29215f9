"""Retrain: the reference for all other unlearners (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.request import Request


@dataclass(frozen=True, kw_only=True)
class Retrain(Unlearner):
    """Reruns all rounds without the records. Exact, for every method."""

    paper: ClassVar[str] = "reference"
    tasks: ClassVar[tuple[str, ...]] = ("ranking", "nodes")

    def forget(self, fed: Federation, request: Request) -> Federation:
        fed.method.check_retraining(fed)
        return fed.retrained(request.event)
