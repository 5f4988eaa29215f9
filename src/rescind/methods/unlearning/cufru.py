"""CUFRU-R: stored gradients mixed with new ones (after Li et al., TIST 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.update import Update
from rescind.methods.unlearning.fedaccum import FedAccum, joint_norm, mean_of


@dataclass(frozen=True, kw_only=True)
class CUFRUR(FedAccum):
    """Replay with a mixture of old and new directions, at the length of the old update.

    D = mu N / |N| + (1 - mu) H / |H| and V <- V + |H| D / |D|, with H the mean of stored updates of
    the remaining clients and N the mean of fresh ones (baselines.md 3.4).

    A reading: the paper's text was not available. Known: a gradient transfer station on the
    server, and old gradients calibrated by new ones of the remaining clients.
    """

    paper: ClassVar[str] = "Li et al., TIST 2025 (a reading)"
    unlearning: ClassVar[str] = "CUFRUR"
    relogs: ClassVar[bool] = True

    mixture: float = 0.5
    """Mu: 1 uses only new gradients, 0 is FedAccum."""
    online: float = 1.0
    """Rho: fraction of the remaining clients that take part. Below 1 use mu <= 0.25."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 1]", "mixture")
        must_lie(self, "(0, 1]", "online")

    def server_replay_clients(self, ids: Tensor, clock: Clock) -> Tensor:
        """Sample a fraction of the clients of the stored round; none if mixture is 0."""
        if self.mixture == 0:
            return ids[:0]
        count = math.ceil(self.online * len(ids))
        chosen = torch.argsort(clock.bits("asked again", ids), stable=True)[:count]
        return ids[chosen].sort().values

    def server_replay_mean(
        self, stored: tuple[Tensor, Update], fresh: tuple[Tensor, Update] | None
    ) -> tuple[Params, tuple[Tensor, Update] | None]:
        """Return |H| D / |D|, and the new updates scaled to |H| for the log."""
        old, new = mean_of(stored), mean_of(fresh)
        if not old or not new or self.mixture == 0 or not float(joint_norm(new)):
            return old, None
        old_norm, new_norm = joint_norm(old), joint_norm(new)
        step = new
        if self.mixture < 1 and float(old_norm):
            step = {
                n: self.mixture * v / new_norm + (1 - self.mixture) * old[n] / old_norm
                for n, v in new.items()
            }
        factor = old_norm / joint_norm(step).clamp(min=1e-30)
        assert fresh is not None
        ids, ratio = fresh[0], float(old_norm / new_norm)
        scaled = fresh[1].scale(torch.full((len(ids),), ratio, device=ids.device))
        return {n: v * factor.to(v) for n, v in step.items()}, (ids, scaled)
