"""Matrix factorisation: a private vector per person, a public table of items."""

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
    """Standard deviation of the first values: N(0, .01^2), f3crec.md section 1."""

    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """v = p_u, and no shift (`linear`)."""
        return (("user", 0, self.dim),)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """item: [I, d]"""
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """user: [C, d]"""
        return {"user": gaussian("user", ids, self.dim, self.spread, clock)}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """p_u . q_i for flat samples."""
        return torch.linalg.vecdot(own["user"].index_select(0, owner), rows["item"])

    def scores(self, public: Params, own: Params) -> Tensor:
        """[C, I]"""
        return own["user"] @ public["item"].T


def gaussian(purpose: str, rows: Tensor, dim: int, spread: float, clock: Clock) -> Tensor:
    """N(0, spread^2), each row from its own number. [rows, dim]"""
    k = torch.arange(dim, device=rows.device)
    return (clock.normal(purpose, rows.unsqueeze(1), k) * spread).float()
