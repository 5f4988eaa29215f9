"""PFedRec, dual personalisation: a private score function on public item rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.world import Sizes
from rescind.models.lightgcn import uniform
from rescind.models.mf import gaussian


@dataclass(frozen=True)
class PFedRec(RankingModel):
    """PFedRec (Zhang et al., IJCAI 2023, as F3CRec uses it): score = w_u . q_i + b_u.

    Each batch updates the score function first; then the loss is computed again and the items
    are updated. Users are scored with the broadcast table (f3crec.md section 2, number 7).
    """

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)
    kernel: ClassVar[str] = "linear"

    dim: int = 32
    """Length of a vector, d."""
    spread: float = 1.0
    """Standard deviation of the initial items: N(0, 1), f3crec.md section 1."""
    alike: bool = True
    """All devices start with the same score function, as copies of one model do. With one draw per
    device their mean is zero, so no update of a row can make an item popular with all users:
    validation N@20 of fine-tuning on ML-100K falls from .222, .109, .120, .142 in the four blocks
    to .209, .098, .103, .119 (rate .05, one seed)."""
    faster: float = 170.0
    """Learning rate of the items relative to the score function (F3CRec; PFedRec uses 80)."""

    def moves(self) -> tuple[Mapping[str, float], ...]:
        """Return two steps per batch: the score function, then the items."""
        return {"weight": 1.0, "bias": 1.0}, {"item": self.faster}

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Return the layout for the linear kernel: v = w_u, shift = b_u."""
        return ("weight", 0, self.dim), ("bias", 0, 1)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Return weight: [C, d]    bias: [C], U(+-1 / sqrt(d))"""
        bound, first = self.dim**-0.5, torch.zeros_like(ids) if self.alike else ids
        weight = uniform("weight", first, self.dim, bound, clock)
        return {"weight": weight, "bias": uniform("bias", first, 1, bound, clock).squeeze(1)}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        weight = own["weight"].index_select(0, owner)
        return torch.linalg.vecdot(weight, rows["item"]) + own["bias"].index_select(0, owner)

    def scores(self, public: Params, own: Params) -> Tensor:
        return own["weight"] @ public["item"].T + own["bias"].unsqueeze(1)
