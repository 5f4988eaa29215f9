"""FedEraser: replay rounds with old lengths and new directions (Liu et al., IWQoS 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.state import Memory, ServerState, Snapshot
from rescind.core.update import Update
from rescind.methods.unlearning.fedaccum import FedAccum, joint_norm, mean_of


@dataclass(frozen=True, kw_only=True)
class FedEraser(FedAccum):
    """Remaining clients train a few epochs from the new table; U' = |U| U^ / |U^|.

    The first stored round needs no calibration: its updates were computed from V_0.

    DEPARTS the printed aggregation: its weight 1 / ((K - 1) sum w) divides by K - 1 twice. Here it
    is the plain mean, so that a full replay with all clients reproduces the run.
    """

    paper: ClassVar[str] = "Liu et al., IWQoS 2021"
    unlearning: ClassVar[str] = "FedEraser"
    relogs: ClassVar[bool] = True

    interval: int = 2
    """Delta t: the server stores the updates of every `interval`-th round, from the first."""
    effort: float = 0.5
    """r: fraction of the local epochs in a replay, at least one epoch."""
    calibrate: Literal["clients", "mean"] = "clients"
    """Calibrate each client's update as in the paper, or their mean as in its public code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[1, inf)", "interval")
        must_lie(self, "(0, 1]", "effort")

    def server_log_round(
        self, state: ServerState, sent: tuple[Tensor, Update] | None, round_: int
    ) -> ServerState:
        """Log every `interval`-th round. In a replay, every round is one of these."""
        if state.memory.named("history"):
            round_ = 1 + (round_ - 1) * self.interval
        if (round_ - 1) % self.interval:
            return state
        return super().server_log_round(state, sent, round_)

    def server_replay_clients(self, ids: Tensor, clock: Clock) -> Tensor:
        """Return all clients of the stored round; none in the first round."""
        return ids[:0] if clock.round == 1 else ids

    def server_replay_mean(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        """Scale the fresh updates (each, or their mean) to the stored length; return their mean."""
        if fresh is None or not len(fresh[0]):
            return mean_of(stored), stored
        ids, update = fresh
        old_norm, new_norm = stored[1].norms(), update.norms()
        if self.calibrate == "mean":
            old, new = mean_of(stored), mean_of(fresh)
            ratio = float(joint_norm(old) / joint_norm(new).clamp(min=1e-30))
            factor = torch.full((len(ids),), ratio)
        else:
            order = torch.argsort(stored[0])
            place = order[torch.searchsorted(stored[0][order], ids)]
            factor = torch.where(new_norm > 0, old_norm[place] / new_norm.clamp(min=1e-30), 0.0)
        sent = (ids, update.scale(factor))
        return mean_of(sent), sent

    def server_history(self, memory: Memory, rounds: int) -> list[Snapshot] | None:
        found = sorted(memory.named("updates"), key=lambda s: s.round)
        wanted = list(range(0, rounds, self.interval))
        return found if [s.round for s in found] == wanted else None

    def replay(
        self, fed: Federation, request: Request, history: tuple[Snapshot, ...]
    ) -> Federation:
        fewer = max(1, round(self.effort * self.epochs))
        return super(FedEraser, replace(self, epochs=fewer)).replay(fed, request, history)
