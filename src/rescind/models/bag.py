"""Models without private parameters: a user is the sum of their items, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.model import RankingModel, summed_rows
from rescind.core.params import Params
from rescind.core.world import Sizes
from rescind.models.lightgcn import along
from rescind.models.mf import gaussian


@dataclass(frozen=True)
class Bag(RankingModel):
    """u = sum over own items of v_i; score = cos(u, v_j) / temperature + b_j (additive.md 2)."""

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item", "bias")

    dim: int = 64
    """Length of a vector, d."""
    temperature: float = 0.2
    """Cosines are divided by it; the bias is on the scale of the logit."""
    spread: float = 0.05
    """Standard deviation of the initial values."""

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return the initial tables. item: [I, d]    bias: [I, 1]"""
        item = gaussian("item", torch.arange(sizes.items), self.dim, self.spread, clock)
        return {"item": item, "bias": torch.zeros(sizes.items, 1)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {}

    def infer(self, rows: Params, own: Params, lot: Lot) -> Params:
        return {**own, "user": summed_rows(rows, "item", lot)}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        user = functional.normalize(own["user"], dim=-1).index_select(0, owner)
        return along(user, rows["item"]) / self.temperature + rows["bias"].squeeze(-1)

    def scores(self, public: Params, own: Params) -> Tensor:
        """Score all items for each client; without own items only the bias counts. [C, I]"""
        user = functional.normalize(own["user"], dim=-1)
        cosine = user @ functional.normalize(public["item"], dim=-1).T
        return cosine / self.temperature + public["bias"].squeeze(-1)


@dataclass(frozen=True)
class TwoBags(Bag):
    """Bag with two vectors per item: one as an owned item, one as a candidate.

    score = cos(sum of own v_i, t_j) / temperature + b_j; twice as much to send.
    """

    tables: ClassVar[tuple[str, ...]] = ("item", "shown", "bias")

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """Return the initial tables. item: [I, d]    shown: [I, d]    bias: [I, 1]"""
        shown = gaussian("shown", torch.arange(sizes.items), self.dim, self.spread, clock)
        return {**super().public(sizes, clock), "shown": shown}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        return super().score({**rows, "item": rows["shown"]}, own, owner)

    def scores(self, public: Params, own: Params) -> Tensor:
        return super().scores({**public, "item": public["shown"]}, own)


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
