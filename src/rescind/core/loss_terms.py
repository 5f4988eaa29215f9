"""What a client's loss holds beside its samples: old answers to rehearse, old values to stay near.

Continual methods say what they want as a `LossTerms`; the readable form adds it to the loss here,
and `linear` hands the same values to compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.model import RankingModel
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work


@dataclass(frozen=True)
class Replay:
    """A list on each device of items, and how they were answered."""

    item: Tensor
    """[C, N], -1 where a list is shorter."""
    label: Tensor
    """[C, N] the old answers, as probabilities."""
    factor: float
    """Lambda, the weight in the loss."""
    mean: bool = True
    """Over what is replayed; False: its sum."""
    shift_scale: float | None = None
    """Epsilon of F3CRec's Eq. (3): replay less of a list that has moved; None: all of it."""

    def on_shelf(self, plan: Plan) -> Plan:
        """A plan whose shelf has room for everybody's list."""
        owner, place = (self.item >= 0).nonzero(as_tuple=True)
        if not len(owner):
            return plan
        return replace(plan, also=(*plan.also, (owner, self.item[owner, place])))

    def loss(
        self, model: RankingModel, work: Work, batch: Batch, public: Params, cohort: Cohort,
        clock: Clock,
    ) -> Tensor:  # fmt: skip
        """lambda BCE(label, sigmoid(student)) over what each client replays, F3CRec Eq. (5). [C]

        DEPARTS F3CRec's Eq. (5): a mean with the minus sign, as in the authors' run; the paper
        prints a sum without it, which would be minimised by unlearning the teacher.
        """
        owner, place = self.replayed(model, work, batch, public, cohort, clock)
        if not len(owner):
            return self.label.new_zeros(len(cohort))
        row = work.shelf.find(owner, self.item[owner, place])
        rows = {name: table.index_select(0, row) for name, table in work.rows.items()}
        student = model.score(rows, {**work.dense, **work.own}, owner)
        label = self.label[owner, place].to(student.dtype)
        each = functional.binary_cross_entropy_with_logits(student, label, reduction="none")
        over = jagged.segment_mean if self.mean else jagged.segment_sum
        return self.factor * over(each, owner, len(cohort))

    @torch.no_grad()
    def replayed(
        self, model: RankingModel, work: Work, batch: Batch, public: Params, cohort: Cohort,
        clock: Clock,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """What each client replays in this batch: (owner [m], place on its list [m]), Eq. (2)-(4).

        All items are ranked with the client's own copies as they stand in this batch.
        """
        listed = self.item >= 0
        known = (batch.active & listed.any(1)).nonzero().squeeze(1)
        if self.shift_scale is None or not len(known):
            owner, place = listed[known].nonzero(as_tuple=True)
            return known[owner], place
        own = {name: value[known] for name, value in {**work.dense, **work.own}.items()}
        scores = model.scores(public, own)
        line = torch.full((len(cohort),), -1, device=known.device)
        line[known] = torch.arange(len(known), device=known.device)
        mine = (line[work.shelf.owner] >= 0).nonzero().squeeze(1)
        rows = {name: table.index_select(0, mine) for name, table in work.rows.items()}
        at = line[work.shelf.owner[mine]]
        scores[at, work.shelf.item[mine]] = model.score(rows, own, at)
        shift = preference_shift(scores, self.item[known])
        many = replay_size(shift, self.item.shape[1], self.shift_scale)
        bits = clock.bits("replay", cohort.ids[known].unsqueeze(1), places(self.item))
        drawn = torch.argsort(torch.argsort(bits, dim=1), dim=1) < many.unsqueeze(1)
        owner, place = (drawn & listed[known]).nonzero(as_tuple=True)
        return known[owner], place


@dataclass(frozen=True)
class Proximal:
    """strength (|Phi_u - Phi_u^old|^2 + |Q_u - Q^old|^2) over what a client copies anyway."""

    item: Tensor
    """[J, d] the old table; rows beyond it are new and free."""
    own: Params
    """By name: [C, ...] the old private values."""
    known: Tensor
    """[C] who has old private values."""
    strength: float

    def loss(self, work: Work) -> Tensor:
        """How far away each client is, times the strength. [C]"""
        far = work.rows["item"].new_zeros(len(self.known))
        for name, old in self.own.items():
            gap = (work.own[name] - old).square().reshape(len(self.known), -1).sum(1)
            far = far + torch.where(self.known, gap, 0.0)
        at = (work.shelf.item < len(self.item)).nonzero().squeeze(1)
        then = self.item.index_select(0, work.shelf.item[at])
        gap = (work.rows["item"].index_select(0, at) - then).square().sum(1)
        rows = jagged.segment_sum(gap, work.shelf.owner[at], len(self.known))
        return self.strength * (far + rows)


@dataclass(frozen=True)
class LossTerms:
    """All that stands in a loss beside the samples; nothing by default."""

    replay: Replay | None = None
    proximal: Proximal | None = None


def preference_shift(scores: Tensor, top: Tensor) -> Tensor:
    """How far a list has moved, Eq. (2): sum over k of |rank(i_k) - k|, ranks from 0. [C]

    scores: [C, I]    top: [C, N], -1 where a list is shorter
    """
    rank = ranks(scores, top)
    return torch.where(top >= 0, (rank - places(top)).abs(), 0).sum(1)


def ranks(scores: Tensor, top: Tensor) -> Tensor:
    """How many items score higher than each of a list. scores: [C, I]    top: [C, N]    [C, N]"""
    then = scores.gather(1, top.clamp(min=0))
    if scores.device.type == "cpu":  # numpy sorts several times as fast as torch does
        rising = torch.from_numpy(np.sort(scores.detach().numpy(), axis=1))
    else:
        rising = scores.sort(1).values
    return scores.shape[1] - torch.searchsorted(rising, then, right=True)


def replay_size(shift: Tensor, top_n: int, shift_scale: float) -> Tensor:
    """How much is replayed, Eq. (3) and (4): floor(N exp(-epsilon shift)). [C]"""
    return torch.floor(top_n * torch.exp(-shift_scale * shift.double()))


def places(top: Tensor) -> Tensor:
    """0, 1, 2, ... along a list. [N]"""
    return torch.arange(top.shape[1], device=top.device)
