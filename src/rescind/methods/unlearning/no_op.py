"""Nothing: the model is not changed (baselines.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.request import Request


@dataclass(frozen=True, kw_only=True)
class Nothing(Unlearner):
    """No-op baseline: data is deleted, the model is not changed.

    On a platform, which purges after every unlearner, it is PurgeOnly plus optimiser moments.
    """

    paper: ClassVar[str] = "control"
    exact: ClassVar[bool] = False
    answers: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Nothing"
    tasks: ClassVar[tuple[str, ...]] = ("ranking", "nodes")

    def forget(self, fed: Federation, request: Request) -> Federation:
        return fed.apply(request.event)
