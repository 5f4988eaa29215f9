"""Stability and plasticity proxies: two slow copies of the model select items for replay.

SPP of F3CRec's Table 2: the student's part of CCD (Lee et al., KDD 2024), with proxies of public
parameters on the server and of private ones on devices (baselines.md 5.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.loss_terms import LossTerms, Replay, ranks
from rescind.core.model import private_names
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.tasks.metrics import top_k
from rescind.core.world import World
from rescind.methods.continual.finetune import THIS_ROUND, FineTune

PROXIES = ("stable", "plastic")
BLOCK_START = REFERENCE + "begun"
"""The last round before the block, from which annealing counts."""


@dataclass(frozen=True, kw_only=True)
class SPP(FineTune):
    """Replays items that a proxy ranks high and the model now ranks low.

    DEPARTS CCD (Lee et al., KDD 2024): a device keeps lists of `reach` items it did not have in the
    ending block and later skips those it gets in the next; CCD removes both before it cuts the
    list. The model's ranks are taken at the start of a round, not of the block.
    """

    paper: ClassVar[str] = "Lee et al., KDD 2024, as in Lim et al., CIKM 2025"

    stability: float = 0.9
    """a_s: weight of the old stability proxy at the end of a block."""
    plasticity: float = 0.1
    """a_p: weight of the old plasticity proxy at the end of a block."""
    reach: int = 50
    """A: length of a proxy's list."""
    draws: int = 3
    """Items drawn per proxy and round."""
    gap_scale: float = 1e-4
    """Epsilon: how much a gap between ranks raises the probability of an item."""
    distil: float = 0.5
    """Lambda, times exp(-rounds / 10) within a block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, 1]", "stability", "plasticity")
        must_lie(self, "[0, inf]", "reach", "draws", "gap_scale", "distil")

    @property
    def inertia(self) -> Mapping[str, float]:
        return {"stable": self.stability, "plastic": self.plasticity}

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        proxies = {REFERENCE + p: self._table(state.public, p) for p in PROXIES}
        start = torch.tensor([state.round], device=state.public["item"].device)
        grown = super().server_turn(state, world, clock)
        return replace(grown, public={**grown.public, **proxies, BLOCK_START: start})

    def _table(self, public: Params, proxy: str) -> Tensor:
        return follow(public.get(REFERENCE + proxy), public["item"], self.inertia[proxy])

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        first = super().client_init(ids, clock)
        empty = torch.full((len(ids), self.reach), -1, device=ids.device)
        values: dict[str, Tensor] = {}
        for proxy in PROXIES:
            values |= {f"{proxy}/{n}": torch.zeros_like(first[n]) for n in first.values}
            values |= {f"{proxy}/list": empty, f"{proxy}/label": torch.zeros_like(empty).float()}
        return first.with_(**values)

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """End a block: update the proxies of private values, and store a list for each."""
        values: dict[str, Tensor] = {}
        for proxy in PROXIES:
            known = private[f"{proxy}/list"][:, :1] >= 0
            mine = {}
            for name in private_names(self.model):
                now, old = private[name], private[f"{proxy}/{name}"]
                follows = follow(old, now, self.inertia[proxy])
                mine[name] = torch.where(known.view(-1, *[1] * (now.dim() - 1)), follows, now)
            tables = {**public, "item": self._table(public, proxy)}
            scores = self.client_scores(tables, Private(mine), cohort)
            top = top_k(scores, cohort.own, self.reach)
            label = torch.sigmoid(scores.gather(1, top.clamp(min=0)))
            values |= {f"{proxy}/{name}": value for name, value in mine.items()}
            values |= {f"{proxy}/list": top, f"{proxy}/label": label}
        return private.with_(**values)

    @torch.no_grad()
    def client_draw(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> dict[str, Tensor]:
        """Draw replay items for this round. item: [C, 2 n], -1 for none    label: [C, 2 n]

        Pr(i) ~ exp(epsilon (r_M(i) - r_X(i))) over a proxy's list, without replacement. If
        both proxies draw an item, the larger label is kept.
        """
        scores = self.client_scores(public, private, cohort)
        scores[cohort.own.owner, cohort.own.item] = -torch.inf
        items, labels = [], []
        same = (private["stable/list"] == private["plastic/list"]).all(1, keepdim=True)
        for proxy in PROXIES:
            top = private[f"{proxy}/list"]
            there = (top >= 0) & (scores.gather(1, top.clamp(min=0)) > -torch.inf)
            there &= ~same if proxy == "plastic" else True  # equal after the first block
            gap = ranks(scores, top) - (torch.cumsum(there, 1) - 1)
            uniform = clock.uniform(f"draw {proxy}", cohort.ids.unsqueeze(1), top.clamp(min=0))
            key = self.gap_scale * gap - torch.log(-torch.log(uniform.clamp(min=1e-300)))
            key = torch.where(there, key, -torch.inf)
            value, at = key.topk(min(self.draws, top.shape[1]), dim=1)
            items.append(torch.where(value > -torch.inf, top.gather(1, at), -1))
            labels.append(private[f"{proxy}/label"].gather(1, at))
        item, label = torch.cat(items, 1), torch.cat(labels, 1)
        return {"item": torch.where(duplicates(item, label), -1, item), "label": label}

    def client_begin(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> Private:
        if BLOCK_START not in public or not bool((private["stable/list"] >= 0).any()):
            return private
        drawn = self.client_draw(public, private, cohort, clock)
        return private.with_(**{THIS_ROUND + name: value for name, value in drawn.items()})

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        """Return lambda exp(-rounds / 10) times the BCE of the drawn items.

        CCD sums both losses, so a replayed item weighs lambda samples. The loss of a batch is a
        mean here; the sum of the replayed items is divided by the same number.
        """
        if THIS_ROUND + "item" not in private:
            return LossTerms()
        annealed = math.exp(-(clock.round - 1 - int(public[BLOCK_START])) / 10)
        item, label = private[THIS_ROUND + "item"], private[THIS_ROUND + "label"]
        return LossTerms(Replay(item, label, self.distil * annealed, mean=False))


def follow(old: Tensor | None, new: Tensor, inertia: float) -> Tensor:
    """Return a S + (1 - a) M; new rows copy M."""
    if old is None:
        return new
    mixed = inertia * old + (1 - inertia) * new[: len(old)]
    return torch.cat([mixed, new[len(old) :]])


def duplicates(item: Tensor, label: Tensor) -> Tensor:
    """Return entries that repeat in their row with a larger label or earlier. [C, m] bool"""
    same = (item.unsqueeze(2) == item.unsqueeze(1)) & (item >= 0).unsqueeze(2)
    other, mine = label.unsqueeze(1), label.unsqueeze(2)
    place = torch.arange(item.shape[1], device=item.device)
    earlier = place.unsqueeze(0) < place.unsqueeze(1)
    return (same & ((other > mine) | ((other == mine) & earlier))).any(2)
