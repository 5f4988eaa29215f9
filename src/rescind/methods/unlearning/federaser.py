"""FedEraser: old lengths, new directions, on every second round (Liu et al., IWQoS 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.params import Params
from rescind.core.state import Memory, ServerState, Snapshot
from rescind.core.update import Update
from rescind.errors import ConfigError
from rescind.methods.unlearning.fedaccum import FedAccum, length, mean_of

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.request import Request


@dataclass(frozen=True, kw_only=True)
class FedEraser(FedAccum):
    """Remaining clients train a little from the new table; U' = |U| U^ / |U^|.

    The first retained round needs no calibration: its updates were made from V_0, which is clean.

    DEPARTS the printed aggregation: its weight 1 / ((K - 1) sum w) divides by K - 1 twice. Here it
    is the plain mean over the remaining clients, which the baselines' check of no target needs.
    """

    paper: ClassVar[str] = "Liu et al., IWQoS 2021"
    unlearning: ClassVar[str] = "FedEraser"
    relogs: ClassVar[bool] = True

    interval: int = 2
    """Delta t: updates of every so many rounds are kept, from the first."""
    effort: float = 0.5
    """r: the share of the local epochs that a replay takes, at least one."""
    calibrate: Literal["clients", "mean"] = "clients"
    """Each client's update as in the paper, or their mean as in its public code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval < 1 or not 0 < self.effort <= 1:
            raise ConfigError(
                f"FedEraser.interval is 1 or more and effort above 0 and up to 1; "
                f"got {self.interval} and {self.effort}."
            )

    def server_logged(
        self, state: ServerState, sent: tuple[Tensor, Update] | None, round_: int
    ) -> ServerState:
        """Only every `interval`-th round is kept; a replay takes the retained ones in turn."""
        if state.memory.named("history"):
            round_ = 1 + (round_ - 1) * self.interval
        if (round_ - 1) % self.interval:
            return state
        return super().server_logged(state, sent, round_)

    def server_asked(self, ids: Tensor, clock: Clock) -> Tensor:
        """Everybody who took part then, but in the first round."""
        return ids[:0] if clock.round == 1 else ids

    def server_replayed(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        """The mean of fresh updates, each (or as a whole) at the length of the stored."""
        if fresh is None or not len(fresh[0]):
            return mean_of(stored), stored
        ids, update = fresh
        far, near = stored[1].norms(), update.norms()
        if self.calibrate == "mean":
            old, new = mean_of(stored), mean_of(fresh)
            by = torch.full((len(ids),), float(length(old) / length(new).clamp(min=1e-30)))
        else:
            order = torch.argsort(stored[0])
            place = order[torch.searchsorted(stored[0][order], ids)]
            by = torch.where(near > 0, far[place] / near.clamp(min=1e-30), 0.0)
        sent = (ids, update.scale(by))
        return mean_of(sent), sent

    def server_history(self, memory: Memory, rounds: int) -> list[Snapshot] | None:
        """The retained rounds, oldest first; None where one is missing."""
        found = sorted(memory.named("updates"), key=lambda s: s.round)
        wanted = list(range(0, rounds, self.interval))
        return found if [s.round for s in found] == wanted else None

    def replayed(
        self, fed: Federation, request: Request, history: tuple[Snapshot, ...]
    ) -> Federation:
        """The replay, with fewer local epochs."""
        fewer = max(1, round(self.effort * self.epochs))
        return super(FedEraser, replace(self, epochs=fewer)).replayed(fed, request, history)
