"""CUFRU-R: a station of old gradients, mixed with new ones (after Li et al., TIST 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.params import Params
from rescind.core.update import Update
from rescind.errors import ConfigError
from rescind.methods.unlearning.fedaccum import FedAccum, length, mean_of


@dataclass(frozen=True, kw_only=True)
class CUFRUR(FedAccum):
    """Replay: the direction is a mixture of old and new, the length is that of the old.

    D = mu N / |N| + (1 - mu) H / |H| and V <- V + |H| D / |D|, with H the mean of stored updates of
    the remaining clients and N the mean of fresh ones (baselines.md 3.4).

    A reading: the paper's text could not be had. Known are its gradient transfer station on the
    server, and that old gradients are calibrated by new ones of the remaining clients.
    """

    paper: ClassVar[str] = "Li et al., TIST 2025 (a reading)"
    unlearning: ClassVar[str] = "CUFRUR"
    relogs: ClassVar[bool] = True

    mixture: float = 0.5
    """Mu: 1 is all new, 0 is FedAccum."""
    online: float = 1.0
    """Rho: the share of the remaining clients that are asked. Below 1 keep mu <= 0.25."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.mixture <= 1 and 0 < self.online <= 1):
            raise ConfigError(
                f"CUFRUR.mixture is 0 to 1 and online above 0 and up to 1; "
                f"got {self.mixture} and {self.online}."
            )

    def server_asked(self, ids: Tensor, clock: Clock) -> Tensor:
        """A share of those who took part then, at random; nobody where nothing new is wanted."""
        if self.mixture == 0:
            return ids[:0]
        many = math.ceil(self.online * len(ids))
        chosen = torch.argsort(clock.bits("asked again", ids), stable=True)[:many]
        return ids[chosen].sort().values

    def server_replayed(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        """|H| D / |D|; the log goes on with what was sent anew, at the length of the step."""
        old, new = mean_of(stored), mean_of(fresh)
        if not old or not new or self.mixture == 0 or not float(length(new)):
            return old, None
        far, fast = length(old), length(new)
        step = new
        if self.mixture < 1 and float(far):
            step = {
                n: self.mixture * v / fast + (1 - self.mixture) * old[n] / far
                for n, v in new.items()
            }
        by = far / length(step).clamp(min=1e-30)
        assert fresh is not None
        by_each = torch.full((len(fresh[0]),), float(far / fast), device=fresh[0].device)
        scaled = fresh[1].scale(by_each)
        return {n: v * by.to(v) for n, v in step.items()}, (fresh[0], scaled)
