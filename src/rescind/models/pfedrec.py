"""Dual personalisation: a private score function on public item rows."""

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

    Each batch moves the score function first; then the loss is taken anew and the items move.
    People are scored with the broadcast table (f3crec.md section 2, number 7).
    """

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)
    kernel: ClassVar[str] = "linear"

    dim: int = 32
    """Length of a vector, d."""
    spread: float = 1.0
    """Standard deviation of the items' first values: N(0, 1), f3crec.md section 1."""
    alike: bool = True
    """Every device begins with the same score function, as copies of one model do. Drawn for each
    device, their mean is nothing, so that no move of a row makes an item popular with everybody:
    validation N@20 of fine-tuning on ML-100K falls from .222, .109, .120, .142 in the four blocks
    to .209, .098, .103, .119 (rate .05, one seed)."""
    faster: float = 170.0
    """How much faster items move than the score function (F3CRec's default; PFedRec's is 80)."""

    def moves(self) -> tuple[Mapping[str, float], ...]:
        """Two steps a batch: the score function, then the items."""
        return {"weight": 1.0, "bias": 1.0}, {"item": self.faster}

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """v = w_u, shift = b_u (`linear`)."""
        return ("weight", 0, self.dim), ("bias", 0, 1)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """item: [I, d]"""
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """weight: [C, d]    bias: [C], U(+-1 / sqrt(d))"""
        bound, first = self.dim**-0.5, torch.zeros_like(ids) if self.alike else ids
        return {
            "weight": uniform("weight", first, self.dim, bound, clock),
            "bias": uniform("bias", first, 1, bound, clock).squeeze(1),
        }

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """w_u . q_i + b_u for flat samples."""
        towards = own["weight"].index_select(0, owner)
        return torch.linalg.vecdot(towards, rows["item"]) + own["bias"].index_select(0, owner)

    def scores(self, public: Params, own: Params) -> Tensor:
        """[C, I]"""
        return own["weight"] @ public["item"].T + own["bias"].unsqueeze(1)
