"""SeqGram: Gram of ordered pairs, for streams and sequences. Knows what comes after what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core.cohort import Cohort, Lot
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import Private
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive._counted_gram import CountedGram
from rescind.methods.additive._exchange import BLOCK
from rescind.methods.additive._notes import ORDER, Notes, ranks
from rescind.methods.additive._ordered import Nearness
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive._solving import UNIT, Ridge, Temper


@dataclass(frozen=True, kw_only=True)
class SeqGram(CountedGram):
    """Gram of ordered pairs: what a user has next, learnt from what came after what.

    Two sums over users, in integers: near and far, F_ij = sum of w_u exp(-places between i and j /
    reach) if i came before j, half of w_u if at one time; F_ii = sum of w_u = round(4096 /
    n_u^power). With N and F the sums without their diagonal, all divided by 4096:

        A = N + N^T + diag(F) + ridge,    M = F + back F^T,    B = A^-1 M

    B_ij is multiplied by D_i^own_power D_j^shown_power, D_i = 1 / (F_ii + ridge). The score is x B,
    where x_i = floor + (1 - floor) exp(-places since i / recent).

    The next item (`far_share` above 0, preset `sequences`) has two time scales, each with its own A
    = P + P^T + diag + ridge and M = P + back P^T from its own pairs P, ridge, power of |B| and
    decay of the history; both scores are added: x_near B_near + far_share x_far B_far.

    A device must be online to forget (`cross`). It notes the order of the items it has counted, two
    bytes per item and block; times are not kept.
    """

    paper: ClassVar[str] = "ours; ridge regression of what follows, on sums that can be taken back"
    presets: ClassVar[tuple[str, ...]] = ("sequences",)
    in_order: ClassVar[bool] = True

    ridge: float = 30.0
    ridge_per_item: float = 0.3
    shown_power: float = 0.5
    """These and the next five: best mean over the validation of ML-100K and ML-Latest-Small, at
    block boundaries of the stream and inside its first block (docs/results/additive-details.md)."""
    near: float = 10.0
    """Places in time at which a pair counts 1 / e of a pair of neighbours: items that are alike."""
    far: float = 160.0
    """The same for what follows. Long, since the next recommendation may come much later."""
    back: float = 0.5
    """What a pair counts against its order: 0 only what follows, 1 no order."""
    recent: float = 8.0
    """Places in time at which an own item counts 1 / e of the last one, in a recommendation."""
    floor: float = 0.1
    """What the oldest own items of the block count at least."""
    earlier: float = 0.0
    """What own items of earlier blocks count, from the device's notes; .05 on Last.fm, where people
    return with few items."""
    again: float = 0.0
    """Added to the scores of own items of earlier blocks, as a share of the range of all scores: -1
    where nobody takes an item twice (films), 1 where people return to what they had (music)."""
    power: float = 0.25
    """Users with n items weigh n^-power per pair."""
    far_share: float = 0.0
    """0: one solution, in which near pairs explain what follows far. Above 0: each reach is solved
    by itself, and what the far one says is added, times this."""
    far_ridge: float = 30.0
    """Ridge of the far solution, if it is solved by itself; so are the next two."""
    far_sharpen: float = 0.7
    far_recent: float = 20.0
    max_items: int = 20_000
    """Largest catalogue allowed (8 bytes per ordered pair, and 32 while solving)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "(0, 10000)", "near", "far")
        must_lie(self, "[0, 1]", "back", "floor", "earlier", "power")
        must_lie(self, "[-1, 1]", "again")
        must_lie(self, "[0, 10]", "far_share")
        must_lie(self, "(0, 2]", "far_sharpen")
        must_lie(self, "(0, inf)", "far_ridge")
        must_lie(self, "(0, inf]", "recent", "far_recent")
        self.check_plain()

    @classmethod
    def tuned(cls, **fields: Any) -> SeqGram:
        return cls(**fields)  # the defaults are tuned

    @classmethod
    def sequences(cls, **fields: Any) -> SeqGram:
        """Return SeqGram for the next item, as tuned on validation of ML-1M (docs/sequences.md)."""
        return cls(**{**SEQUENCES, **fields})

    @property
    def nearness(self) -> Nearness:
        return Nearness((self.near, self.far), self.power)

    @property
    def counting(self) -> Nearness:
        return self.nearness

    @property
    def scales(self) -> tuple[Scale, Scale]:
        """Return how the near and the far pairs are solved, if each is solved by itself."""
        far = replace(self.ridges, same=self.far_ridge)
        return Scale(self.ridges, self.temper), Scale(
            far, replace(self.temper, sharp=self.far_sharpen)
        )

    @property
    def notes(self) -> Notes:
        return ORDER

    def server_weights(self, own: Params, about: Params | None = None) -> Tensor:
        """Solve for B. [I, I] float32, or [2, I, I] for two time scales"""
        if self.far_share:
            grams = self.server_grams(own)
            scales = zip(range(2), self.scales, strict=True)
            parts = [(ordered.directed(grams, at, torch.float32), scale) for at, scale in scales]
            near_far = [ordered.next_weights(p, s.ridge, s.temper, self.back) for p, s in parts]
            return torch.stack([near_far[0], near_far[1].mul_(self.far_share)])
        items = self.server_items(own)
        grams = self.server_grams(own)
        size = (2, items, items)
        near, far = torch.zeros(size, dtype=torch.float64, device=grams[0][0].device)
        for total, factor in grams:
            near.add_(ordered.square(total[:, 0], items), alpha=factor / UNIT)
            far.add_(ordered.square(total[:, 1], items), alpha=factor / UNIT)
        each = near.diagonal().clone()
        far.fill_diagonal_(0.0)
        both = near + near.T
        both.diagonal().copy_(each + self.ridges.of(each))
        follows = far + self.back * far.T
        solved = torch.cholesky_solve(follows, torch.linalg.cholesky(both))
        weights = solved.float().contiguous()  # LAPACK's columns; scores add rows
        rare = 1 / (each + self.ridge)
        return self.temper.rescale(weights, rare.unsqueeze(1), rare)

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        items, lot = cohort.items, cohort.own
        scales = public[WEIGHTS].reshape(-1, items, items)  # one or two
        recent = (self.recent, self.far_recent)
        scores = torch.zeros(len(cohort), items, device=lot.item.device)
        for weights, places in zip(scales, recent, strict=False):
            scores += _added(weights, lot, self.client_recency(lot, places))
        if not self.earlier and not self.again:
            return scores
        old = self.client_earlier(public, private, len(cohort))
        if self.earlier:
            scores += self.earlier * _added(scales.sum(0), old, torch.ones_like(old.item))
        most, least = scores.amax(1), scores.amin(1)
        scores[old.owner, old.item] += self.again * (most - least)[old.owner]
        return scores

    def client_earlier(self, public: Params, private: Private, clients: int) -> Lot:
        """Return the items that devices have counted in earlier blocks, from their notes."""
        pairs = []
        for name, note in private.values.items():
            if name.startswith("sent/") and int(name[-4:]) < int(public[BLOCK]):
                late = private.values.get(f"late/{name[-4:]}")
                lot = self.notes.read(note if late is None else note ^ late)
                pairs.append(torch.stack([lot.owner, lot.item]))
        none = torch.zeros(2, 0, dtype=torch.int64, device=public[BLOCK].device)
        owner, item = torch.unique(torch.cat([none, *pairs], 1), dim=1)
        return Lot(owner, item, clients)

    def client_recency(self, lot: Lot, recent: float) -> Tensor:
        """Return x: what each own item counts, by the places since it came. [n]"""
        since = (lot.count[lot.owner] - 1) - ranks(lot) / 2
        return self.floor + (1 - self.floor) * torch.exp(-since.double() / recent)


SEQUENCES: dict[str, Any] = {
    "near": 4.0, "ridge": 10.0, "sharpen": 0.6, "recent": 2.0,
    "far": 20.0, "far_ridge": 25.0, "far_sharpen": 0.7, "far_recent": 50.0, "far_share": 0.18,
    "ridge_per_item": 0.1, "shown_power": 0.1, "back": 0.1, "floor": 0.0, "power": 0.35,
}  # fmt: skip
"""Best HR@10 and NDCG@10 on validation of ML-1M, the last item left out."""
LEAST = 1e-5
"""Own items that count less than this are left out: long histories are then as fast as short."""


@dataclass(frozen=True)
class Scale:
    """How the pairs of one reach become weights."""

    ridge: Ridge
    temper: Temper


def _added(weights: Tensor, lot: Lot, each: Tensor) -> Tensor:
    """Add the weighted rows of each client's items. [C, I]"""
    some = each > LEAST
    lot, each = Lot(lot.owner[some], lot.item[some], lot.clients), each[some]
    if not len(lot):
        return weights.new_zeros(lot.clients, len(weights))
    return functional.embedding_bag(
        lot.item, weights, lot.first, mode="sum", per_sample_weights=each.to(weights)
    )
