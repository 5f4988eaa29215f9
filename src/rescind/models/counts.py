"""One number per item, for baselines that do not learn."""

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
class Counts(RankingModel):
    """One number per item and nothing private."""

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return zeros for item: [I, 1], the fraction of clients that own the item."""
        return {"item": torch.zeros(sizes.items, 1)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        return rows["item"].squeeze(-1)

    def scores(self, public: Params, own: Params) -> Tensor:
        """Return one ranking, for the caller to expand to all clients. [1, I]"""
        return public["item"].T
