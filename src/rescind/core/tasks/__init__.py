"""The tasks, one module each: what a record means, the loss, the default metric.

A task is a module with the functions of `Task`; `named` finds it by the name a model gives.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, Literal, Protocol, cast

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.errors import ConfigError, suggest

Question = Literal["score", "loss", "open"]
"""What to compute per record: its score, its loss, or for lists that people see its score, with all
that the user has, held-out items too, at -inf."""


class Metric(Protocol):
    """A metric computed where the data is; only totals are returned.

    `totals` gets the scores as a tensor. A metric that reads them through `metrics.top_k` alone can
    say `only_lists = True`, and gets `metrics.InParts` where that is faster.
    """

    @property
    def split(self) -> str: ...
    @property
    def mask(self) -> tuple[str, ...]: ...
    @property
    def block(self) -> int | None: ...
    def totals(self, scores: Any, cohort: Cohort, masked: Lot) -> tuple[Params, int]: ...
    def finish(self, totals: Params, weight: float) -> dict[str, float]: ...


class Task(Protocol):
    """The functions of a module under `tasks/`."""

    def plan(self, settings: Any, cohort: Cohort, clock: Clock) -> Plan:
        """Return the samples of one local epoch."""
        ...

    def loss(self, settings: Any, model: Any, work: Work, batch: Batch, cohort: Cohort) -> Tensor:
        """Compute the loss of each client. [C]"""
        ...

    def scores(self, model: Any, public: Params, own: Params, cohort: Cohort) -> Tensor:
        """Compute all scores of a cohort: [C, I] for items, [N, classes] for nodes."""
        ...

    def answer(
        self, scores: Tensor, cohort: Cohort, owner: Tensor, item: Tensor, ask: Question
    ) -> Tensor:
        """Return the score or loss of single records. [n]"""
        ...

    def metric(self, split: str, k: tuple[int, ...]) -> Metric:
        """Return the default metric."""
        ...


@cache
def named(name: str) -> Task:
    """Return the task with this name."""
    known = [info.name for info in pkgutil.iter_modules(__path__) if info.name != "metrics"]
    if name not in known:
        raise ConfigError(f"there is no task '{name}': {suggest(name, known)}")
    return cast(Task, importlib.import_module(f"{__name__}.{name}"))
