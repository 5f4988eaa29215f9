"""LightGCN on a device: the ego graph of one user, L = 1."""

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

TINY = 1e-24
"""Squared norms are at least this, so that a zero vector scores 0; as in torch's `normalize`."""


@dataclass(frozen=True)
class LightGCN(RankingModel):
    """Ego-graph LightGCN with cosine scores (FedShare Eq. 13-14).

    u = u_0 / 2 + (1 / 2) sum over the user's n items of v_i / sqrt(n); items are not propagated.

    DEPARTS Eq. (13): the item side is off. It adds the user's vector to training items only, but
    candidates are never training items (.615 HR@20 with it, .829 without, ML-1M).
    """

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)
    kernel: ClassVar[str] = "ego"

    dim: int = 32
    """Length of a vector, d; FedShare V-A."""
    spread: float = 0.04
    """Initial values are uniform in +- this.

    DEPARTS section V-A: Xavier's bound sqrt(6 / (I + d)) changes when items arrive, so
    existing rows would change when a table grows. 0.04 is that bound for ML-1M's 3,706 items.
    """

    user_spread: float = 0.0
    """Initial values of a user's vector are uniform in +- this.

    DEPARTS section V-A: zero instead of Xavier's bound. A user takes part only a few times in a
    run, and until then a random vector only adds noise to the items (docs/fedshare.md).
    """

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        return {"item": uniform("item", torch.arange(sizes.items), self.dim, self.spread, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        return {"user": uniform("user", ids, self.dim, self.user_spread, clock)}

    def infer(self, rows: Params, own: Params, lot: Lot) -> Params:
        scale = torch.rsqrt(lot.count.clamp(min=1).to(own["user"].dtype)).unsqueeze(1)
        near = summed_rows(rows, "item", lot) * scale
        return {**own, "user": (own["user"] + near) / 2}

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        user = functional.normalize(own["user"], dim=-1).index_select(0, owner)
        return along(user, rows["item"])

    def scores(self, public: Params, own: Params) -> Tensor:
        user = functional.normalize(own["user"], dim=-1)
        return user @ functional.normalize(public["item"], dim=-1).T


@dataclass(frozen=True)
class TwoSidedLightGCN(LightGCN):
    """Ego-graph LightGCN as in the paper: the user's vector also changes the items of the graph.

    Eq. (13-14) with L = 1: v_i becomes v_i / 2 + u_0 / (2 sqrt(n)) for the user's n items. An
    item outside the graph has no neighbour and becomes v_j / 2, which has the same cosine as v_j.
    """

    kernel: ClassVar[str] = ""

    user_spread: float = 0.04

    def infer(self, rows: Params, own: Params, lot: Lot) -> Params:
        scale = torch.rsqrt(lot.count.clamp(min=1).to(own["user"].dtype)).unsqueeze(1)
        return {**super().infer(rows, own, lot), "taken up": own["user"] * scale}

    def score_held(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        moved = rows["item"] + own["taken up"].index_select(0, owner)
        return self.score({**rows, "item": moved}, own, owner)


def along(unit: Tensor, item: Tensor) -> Tensor:
    """Compute the cosine of unit rows and item rows, without normalising the items. [n]"""
    size = torch.linalg.vecdot(item, item).clamp(min=TINY)
    return torch.linalg.vecdot(unit, item) * torch.rsqrt(size)


def uniform(purpose: str, rows: Tensor, dim: int, bound: float, clock: Clock) -> Tensor:
    """Draw from U(-bound, bound), each row from its own id. [rows, dim]"""
    k = torch.arange(dim, device=rows.device)
    return ((clock.uniform(purpose, rows.unsqueeze(1), k) * 2 - 1) * bound).float()
