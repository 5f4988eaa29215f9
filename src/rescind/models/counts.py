"""One number per item: what is left of a model when nothing is learnt."""

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
        """item: [I, 1], the share of clients that own the item."""
        return {"item": torch.zeros(sizes.items, 1)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """Nothing."""
        return {}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """The item's share, whoever asks."""
        return rows["item"].squeeze(-1)

    def scores(self, public: Params, own: Params) -> Tensor:
        """One ranking; a row per client is made where it is known how many there are. [1, I]"""
        return public["item"].T
