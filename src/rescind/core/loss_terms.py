"""Extra loss terms of continual methods: replay of old predictions, and a proximal penalty.

Methods return them as `LossTerms`. The plain form of a round adds them to the loss here, and
`fast.linear` passes the same values to compiled code.
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
    """A list of items on each device, with the old predictions to replay."""

    item: Tensor
    """[C, N], -1 where a list is shorter."""
    label: Tensor
    """[C, N] the old predictions, as probabilities."""
    factor: float
    """Lambda, the weight in the loss."""
    mean: bool = True
    """Average over the replayed items; False: each weighs as one sample of the batch."""
    shift_scale: float | None = None
    """Epsilon of F3CRec's Eq. (3): replay less if the ranking changed; None: replay all."""

    def on_shelf(self, plan: Plan) -> Plan:
        """Add the lists to a plan, so that clients copy the rows of these items."""
        owner, place = (self.item >= 0).nonzero(as_tuple=True)
        if not len(owner):
            return plan
        return replace(plan, also=(*plan.also, (owner, self.item[owner, place])))

    def loss(
        self, model: RankingModel, work: Work, batch: Batch, public: Params, cohort: Cohort,
        clock: Clock,
    ) -> Tensor:  # fmt: skip
        """Compute lambda BCE(label, sigmoid(student)) over replayed items, F3CRec Eq. (5). [C]

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
        if self.mean:
            return self.factor * jagged.segment_mean(each, owner, len(cohort))
        samples = jagged.counts(batch.owner, len(cohort)).clamp(min=1)
        return self.factor * jagged.segment_sum(each, owner, len(cohort)) / samples

    @torch.no_grad()
    def replayed(
        self, model: RankingModel, work: Work, batch: Batch, public: Params, cohort: Cohort,
        clock: Clock,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Select what each client replays: (owner [m], position in its list [m]), Eq. (2)-(4).

        All items are ranked with the client's current copies of the rows.
        """
        listed = self.item >= 0
        known = (batch.active & listed.any(1)).nonzero().squeeze(1)
        if self.shift_scale is None or not len(known):
            owner, place = listed[known].nonzero(as_tuple=True)
            return known[owner], place
        own = {name: value[known] for name, value in {**work.dense, **work.own}.items()}
        scores = model.scores(public, own)
        index = torch.full((len(cohort),), -1, device=known.device)
        index[known] = torch.arange(len(known), device=known.device)
        copied = (index[work.shelf.owner] >= 0).nonzero().squeeze(1)
        rows = {name: table.index_select(0, copied) for name, table in work.rows.items()}
        at = index[work.shelf.owner[copied]]
        scores[at, work.shelf.item[copied]] = model.score(rows, own, at)
        shift = preference_shift(scores, self.item[known])
        count = replay_size(shift, self.item.shape[1], self.shift_scale)
        bits = clock.bits("replay", cohort.ids[known].unsqueeze(1), places(self.item))
        drawn = torch.argsort(torch.argsort(bits, dim=1), dim=1) < count.unsqueeze(1)
        owner, place = (drawn & listed[known]).nonzero(as_tuple=True)
        return known[owner], place


@dataclass(frozen=True)
class Proximal:
    """strength (|Phi_u - Phi_u^old|^2 + |Q_u - Q^old|^2) over the rows that a client copies."""

    item: Tensor
    """[J, d] the old table; rows beyond it are new and have no penalty."""
    own: Params
    """By name: [C, ...] the old private values."""
    known: Tensor
    """[C] which clients have old private values."""
    strength: float

    def loss(self, work: Work) -> Tensor:
        """Compute the penalty of each client. [C]"""
        private = work.rows["item"].new_zeros(len(self.known))
        for name, old in self.own.items():
            gap = (work.own[name] - old).square().reshape(len(self.known), -1).sum(1)
            private = private + torch.where(self.known, gap, 0.0)
        at = (work.shelf.item < len(self.item)).nonzero().squeeze(1)
        old = self.item.index_select(0, work.shelf.item[at])
        gap = (work.rows["item"].index_select(0, at) - old).square().sum(1)
        rows = jagged.segment_sum(gap, work.shelf.owner[at], len(self.known))
        return self.strength * (private + rows)


@dataclass(frozen=True)
class LossTerms:
    """The terms added to the loss of the samples; none by default."""

    replay: Replay | None = None
    proximal: Proximal | None = None


def preference_shift(scores: Tensor, top: Tensor) -> Tensor:
    """Compute how much a ranking changed, Eq. (2): sum over k of |rank(i_k) - k|, from 0. [C]

    scores: [C, I]    top: [C, N], -1 where a list is shorter
    """
    rank = ranks(scores, top)
    return torch.where(top >= 0, (rank - places(top)).abs(), 0).sum(1)


def ranks(scores: Tensor, top: Tensor) -> Tensor:
    """Count the items that score higher than each listed one. scores: [C, I]    top, -> [C, N]"""
    listed = scores.gather(1, top.clamp(min=0))
    if scores.device.type == "cpu":  # numpy sorts several times faster than torch
        rising = torch.from_numpy(np.sort(scores.detach().numpy(), axis=1))
    else:
        rising = scores.sort(1).values
    return scores.shape[1] - torch.searchsorted(rising, listed, right=True)


def replay_size(shift: Tensor, top_n: int, shift_scale: float) -> Tensor:
    """Compute how many items are replayed, Eq. (3)-(4): floor(N exp(-epsilon shift)). [C]"""
    return torch.floor(top_n * torch.exp(-shift_scale * shift.double()))


def places(top: Tensor) -> Tensor:
    """Return the positions 0, 1, 2, ... in a list. [N]"""
    return torch.arange(top.shape[1], device=top.device)
