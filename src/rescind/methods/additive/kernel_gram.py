"""KernelGram: Gram with time, ratings and public facts about items. Forgets exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core.about import alike
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import Private
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods.additive._counted_gram import CountedGram
from rescind.methods.additive._notes import RATED, Notes
from rescind.methods.additive._ordered import PairKernel
from rescind.methods.additive._pairs import halved, items_of, mirrored
from rescind.methods.additive._solve import WEIGHTS, inverse_of, weights_of
from rescind.methods.additive._solving import Ridge, Temper, half


@dataclass(frozen=True, kw_only=True)
class KernelGram(CountedGram):
    """Gram in which near pairs count more, and public facts tie items together.

    Two sums over users, in integers: all pairs, F_ij = sum of w_u r_ij, and near pairs, N_ij = sum
    of w_u r_ij exp(-places between i and j in time / reach), with w_u = 4096 / n_u^power and r_ij =
    unlike + (1 - unlike) exp(-|difference of the user's ratings|). Each is solved like Gram,

        C = (F / 4096 + ridge + ties S)^-1,    B = I - C / diag(C),

    S_ij = cosine of the items' genres times exp(-|years apart| / years); an item that nobody has
    ties nothing. Both weights are tempered and added: B = B_far + near_share B_near. The score is x
    B with x_i = 1 + liking (rating - usual_rating).

    S is public and no person's data, so forgetting does not touch it. A device must be online to
    forget (`cross`). It notes the order and the rating of the items it has counted, four bytes per
    item and block; times are not kept.
    """

    paper: ClassVar[str] = "ours; EASE (Steck, WWW 2019) with time, on sums that can be taken back"
    presets: ClassVar[tuple[str, ...]] = ("films",)

    ridge: float = 60.0
    ridge_per_item: float = 0.5
    own_power: float = 0.2
    shown_power: float = 0.1
    sharpen: float = 1.1
    power: float = 0.5
    """Users with n items weigh n^-power per pair."""
    reach: float = 4.0
    """Places in time at which a near pair counts 1 / e."""
    near_share: float = 0.07
    """What the weights of near pairs count. 0: no time."""
    near_ridge: float = 20.0
    near_per_item: float = 0.3
    near_sharpen: float = 0.8
    unlike: float = 1.0
    """What a pair of very different ratings counts. 1: ratings of pairs do not matter."""
    liking: float = 0.0
    """What one star above the usual rating adds to an own item, in a recommendation."""
    usual_rating: float = 3.6
    """The mean of ML-1M."""
    ties: float = 0.0
    """What public facts count, on the scale of G / 4096. Above 0, the data must have genres."""
    years: float = 5.0
    """Years apart at which facts tie 1 / e of what they tie in one year."""
    max_items: int = 20_000
    """Largest catalogue allowed (8 bytes per pair, and 24 while solving)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 1]", "power", "unlike", "liking")
        must_lie(self, "(0, 10000)", "reach")
        must_lie(self, "[0, 10]", "near_share")
        must_lie(self, "(0, 2]", "near_sharpen")
        must_lie(self, "(0, inf)", "near_ridge", "years")
        must_lie(self, "[0, inf)", "near_per_item", "ties")
        must_lie(self, "(-inf, inf)", "usual_rating")
        self.check_plain()

    @classmethod
    def tuned(cls, **fields: Any) -> KernelGram:
        return cls(**fields)  # the defaults are tuned

    @classmethod
    def films(cls, **fields: Any) -> KernelGram:
        """Return KernelGram for data with ratings and genres, as tuned on ML-1M validation."""
        return cls(**{"unlike": 0.7, "liking": 0.05, "ties": 2.0, **fields})

    @property
    def counting(self) -> PairKernel:
        return PairKernel(self.reach, self.unlike, self.power)

    @property
    def notes(self) -> Notes:
        return RATED

    def server_empty(self, world: World) -> tuple[dict[str, Tensor], Params]:
        if self.ties and not world.about:
            raise ConfigError("KernelGram.ties needs genres of the items. Set ties = 0.")
        return super().server_empty(world)

    def server_weights(self, own: Params, about: Params | None = None) -> Tensor:
        """Solve for B = B_far + near_share B_near. [I, I] float32"""
        ties = self.server_ties(own, about) if self.ties and about else None
        weights = self.server_solve(own, 0, self.ridges, self.temper, ties)
        if self.near_share:
            ridge = Ridge(self.near_ridge, self.near_per_item, self.ridge_power)
            temper = replace(self.temper, sharp=self.near_sharpen)
            near = self.server_solve(own, 1, ridge, temper, ties)
            weights.add_(near, alpha=self.near_share)
        return weights

    def server_solve(
        self, own: Params, column: int, ridge: Ridge, temper: Temper, ties: Tensor | None
    ) -> Tensor:
        """Solve for the tempered weights of one of the two sums. [I, I] float32"""
        grams = [(total[:, column], factor) for total, factor in self.server_grams(own)]
        inverse = inverse_of(grams, items_of(grams[-1][0]), ridge, ties)
        return weights_of(mirrored(inverse), temper)

    def server_ties(self, own: Params, about: Params) -> Tensor:
        """Return the lower half of ties S, zero at items that nobody has. [I (I + 1) / 2]"""
        grams = [total[:, 0] for total, _ in self.server_grams(own)]
        items = items_of(grams[-1])
        each = half(torch.arange(1, items + 1, device=grams[0].device)) - 1
        owned = torch.stack([gram[each] for gram in grams]).sum(0) > 0
        tied = alike(about, items, self.years).to(grams[0].device).double()
        return halved(tied * (owned[:, None] & owned)).mul_(self.ties)

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        lot, each = cohort.own, None
        if self.liking and lot.rating is not None:
            above = torch.where(lot.rating > 0, lot.rating / 2 - self.usual_rating, 0.0)
            each = 1 + self.liking * above
        return self.model.of_lot({WEIGHTS: public[WEIGHTS]}, lot, each)
