"""The state of a run, the result of a round for callbacks, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rescind.core.executor import Vault
from rescind.core.history import History, RestorePoint
from rescind.core.state import ServerState
from rescind.core.tasks import Metric
from rescind.core.tasks.metrics import Ranking
from rescind.core.update import Sum
from rescind.errors import ConfigError, suggest


@dataclass(frozen=True)
class RunState:
    """The state of a run on server and devices: what a checkpoint holds."""

    state: ServerState
    """The server's side: `fed.now.state.public["item"]` is a table of the model."""
    vault: Vault
    """The devices' side: their data, and `vault.private` by name, [clients, ...]."""
    hosted: tuple[Vault, ...] = ()
    """The private side of clients that the server hosts, in the order of the world."""

    @property
    def point(self) -> RestorePoint:
        """Return the model without any data, to restore later."""
        hosted = tuple((v.private, v.log) for v in self.hosted)
        return RestorePoint(self.state, self.vault.private, self.vault.log, hosted)

    def restore(self, point: RestorePoint) -> RunState:
        """Return the same devices with the model of a restore point."""
        vault = replace(self.vault, private=point.private, log=point.log)
        pairs = zip(self.hosted, point.hosted, strict=True)
        hosted = tuple(replace(mine, private=p, log=log) for mine, (p, log) in pairs)
        return RunState(point.state, vault, hosted)


@dataclass(frozen=True)
class RoundResult:
    """What a progress callback gets after a round. Read only."""

    now: RunState
    sums: Mapping[str, Sum]
    until: EarlyStop | None
    past: History | None = None


Measure = Callable[[RunState, Metric], dict[str, float]]


@dataclass(frozen=True)
class EarlyStop:
    """Stops when a metric has not improved for `patience` rounds; keeps the best round.

    While nothing could be measured (the value is NaN: no held-out rows), it neither keeps a round
    nor stops: the latest round counts.
    """

    metric: Metric = field(default_factory=lambda: Ranking(split="valid"))
    value: str = "NDCG@20"
    """The metric value to compare; higher is better."""
    every: int = 10
    """Measure once in this number of rounds."""
    patience: int | None = 30
    """Rounds without improvement before stopping; None: measure, never stop."""
    restore: bool = True
    """Restore the best round at the end; False: keep the last."""
    users: int | None = None
    """Measure on a fixed sample of this many members; None: on all."""
    best: RunState | None = None
    """The best round that was measured; None: the latest round counts."""
    best_score: float = float("-inf")
    history: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """(round, values) of every measurement."""
    done: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"EarlyStop.every must be at least 1, got {self.every}.")

    def update(self, now: RunState, measure: Measure) -> EarlyStop:
        """Return the stopping rule after one more round."""
        if now.state.round % self.every:
            return self
        values = measure(now, self.metric)
        if self.value not in values:
            options = suggest(self.value, values)
            raise ConfigError(f"the metric has no value '{self.value}'; {options}")
        score = values[self.value]
        history = (*self.history, (now.state.round, values))
        if math.isnan(score) and self.best_score == float("-inf"):  # nothing was measured so far
            return replace(self, best=None, history=history)
        if score > self.best_score or self.best is None:
            return replace(self, best=now, best_score=score, history=history)
        waited = now.state.round - self.best.state.round
        done = self.patience is not None and waited >= self.patience
        return replace(self, history=history, done=done)
