"""Matrix factorisation: a private vector per user, a public item table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.world import Sizes


@dataclass(frozen=True)
class MF(RankingModel):
    """FedMF (Chai et al. 2021, as F3CRec uses it): score = p_u . q_i."""

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)
    kernel: ClassVar[str] = "linear"

    dim: int = 32
    """Length of a vector, d."""
    spread: float = 0.01
    """Standard deviation of the initial values: N(0, .01^2), f3crec.md section 1."""

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Return the layout for the linear kernel: v = p_u, no shift."""
        return (("user", 0, self.dim),)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {"user": gaussian("user", ids, self.dim, self.spread, clock)}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        return torch.linalg.vecdot(own["user"].index_select(0, owner), rows["item"])

    def scores(self, public: Params, own: Params) -> Tensor:
        return own["user"] @ public["item"].T


def gaussian(purpose: str, rows: Tensor, dim: int, spread: float, clock: Clock) -> Tensor:
    """Draw from N(0, spread^2), each row from its own id. [rows, dim]"""
    k = torch.arange(dim, device=rows.device)
    return (clock.normal(purpose, rows.unsqueeze(1), k) * spread).float()
