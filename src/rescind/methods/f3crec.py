"""F3CRec: replay on devices as far as tastes stayed, a temporal mean of items at the server.

Lim et al., CIKM 2025. Eq. (1)-(6) run on devices, Eq. (7)-(13) at the server. In the first block
there is no past, and it is plain averaging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rescind.clock import Clock
from rescind.cohort import Cohort
from rescind.errors import ConfigError
from rescind.methods.distill import also_listed, best, blank, check, distillation
from rescind.methods.finetune import FineTune, moves, trained_names
from rescind.params import Params
from rescind.plan import Batch, Plan, Work
from rescind.state import Private, ServerState
from rescind.update import Sum, Update
from rescind.world import World

BLOCK = "block"
"""The name of the server's snapshot of the item table, Q^(t-1)."""


@dataclass(frozen=True, kw_only=True)
class F3CRec(FineTune):
    """Federated continual recommendation (Lim et al., CIKM 2025).

    Ablations: without the client's part `distil=0`, without adaptive replay `adaptive=False`,
    without the server's part `inertia=0`, without item-wise weights `per_item=False`.
    """

    paper: ClassVar[str] = "Lim et al., CIKM 2025"

    top_n: int = 30
    """Items kept as a user's past preference, S_u in Eq. (1)."""
    shift_scale: float = 0.006
    """Epsilon in Eq. (3): how fast replay shrinks as the ranking moves. Authors' ML-100K value."""
    distil: float = 0.1
    """Lambda in Eq. (6). Authors' ML-100K value."""
    inertia: float = 0.9
    """Beta in Eq. (10): how much of the old item table stays. Authors' ML-100K value."""
    adaptive: bool = True
    """Replay less of what moved, Eq. (2)-(4); False replays the whole list."""
    per_item: bool = True
    """Items that moved keep less of the past, Eq. (8)-(10); False: `inertia` for all alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(type(self).__name__, self.top_n, self.distil)
        if not 0 <= self.inertia <= 1:
            raise ConfigError(f"F3CRec.inertia must lie in [0, 1], got {self.inertia}.")
        if not 0 <= self.shift_scale < math.inf:
            raise ConfigError(
                f"F3CRec.shift_scale must be 0 or above and finite, got {self.shift_scale}."
            )

    # -- server ----------------------------------------------------------------------------------

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """A block begins: keep the table of the one that ends, Q^(t-1)."""
        memory = state.memory.keep(BLOCK, state.round, {"item": state.public["item"]}, last=1)
        return replace(super().server_turn(state, world, clock), memory=memory)

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The plain mean, Eq. (7); then for old items the temporal mean, Eq. (8)-(13)."""
        new = super().server_step(state, sums, world, clock)
        for kept in state.memory.named(BLOCK):
            old, mean = kept.values["item"], new.public["item"]
            mixed = temporal_mean(old.to(mean), mean, self.inertia, self.per_item)
            new = replace(new, public={**new.public, "item": mixed})
        return new

    # -- clients ---------------------------------------------------------------------------------

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """A device without a past has an empty list."""
        return super().client_init(ids, clock).with_(**blank(ids, self.top_n))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """A block ends: write down the best N items and what they scored, Eq. (1).

        DEPARTS F3CRec's published run: whoever skips a block keeps the scores with the list. The
        authors score an old list with the newest table, for which the device would need a copy.
        """
        return private.with_(**best(self.client_scores(public, private, cohort), self.top_n))

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The usual samples; whatever may be replayed is on the shelf, too."""
        plan = super().client_plan(public, private, cohort, clock)
        return also_listed(plan, private) if self.distil else plan

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Recommendation plus distillation, Eq. (6). [C]"""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        if not self.distil:
            return loss
        owner, place = self.client_replay(work, batch, public, private, cohort, clock)
        return loss + self.distil * distillation(self.model, work, private, owner, place)  # type: ignore[arg-type]

    @torch.no_grad()
    def client_replay(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> tuple[Tensor, Tensor]:
        """What each client replays in this batch: (owner [m], place on its list [m]), Eq. (2)-(4).

        All items are ranked with the client's own copies as they stand in this batch.
        """
        top = private["top"]
        known = (batch.active & (top >= 0).any(1)).nonzero().squeeze(1)
        if not len(known):
            return known, known
        if not self.adaptive:
            owner, place = (top[known] >= 0).nonzero(as_tuple=True)
            return known[owner], place
        own = {name: value[known] for name, value in {**work.dense, **work.own}.items()}
        scores = self.model.scores(public, own)  # type: ignore[attr-defined]
        shelf = work.shelf
        line = torch.full((len(cohort),), -1, device=known.device)
        line[known] = torch.arange(len(known), device=known.device)
        mine = (line[shelf.owner] >= 0).nonzero().squeeze(1)
        rows = {name: table.index_select(0, mine) for name, table in work.rows.items()}
        at = line[shelf.owner[mine]]
        scores[at, shelf.item[mine]] = self.model.score(rows, own, at)  # type: ignore[attr-defined]
        shift = preference_shift(scores, top[known])
        many = replay_size(shift, self.top_n, self.shift_scale)
        bits = clock.bits("replay", cohort.ids[known].unsqueeze(1), places(top))
        drawn = torch.argsort(torch.argsort(bits, dim=1), dim=1) < many.unsqueeze(1)
        owner, place = (drawn & (top[known] >= 0)).nonzero(as_tuple=True)
        return known[owner], place

    def client_past(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Whoever has a list that may be replayed in this round. [C] bool

        A client with a single batch decides before its only step, so that a list which has moved
        too far can be put aside beforehand: most have, after twenty rounds (f3crec.md section 3).
        """
        listed = (private["top"] >= 0).any(1) & (self.distil > 0)
        single = cohort.train.count * (1 + self.negatives) <= (self.batch_size or math.inf)
        at = (listed & single).nonzero().squeeze(1)
        several = self.epochs > 1 or len(moves(self.model)) > 1  # a later step sees the first one
        if not self.adaptive or not self.shift_scale or several or not len(at):
            return listed
        own = {name: private[name][at] for name in trained_names(self.model)}
        top = private["top"][at]
        shift = preference_shift(self.model.scores(public, own), top)  # type: ignore[attr-defined]
        # One rank more or less for each entry is rounding; beyond that nothing is replayed.
        far = shift > math.log(max(self.top_n, 1)) / self.shift_scale + top.shape[1]
        return listed.index_fill(0, at[far], False)

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Train, with lists put aside where nothing of them can be replayed."""
        past = self.client_past(public, private, cohort).unsqueeze(1)
        aside = private.with_(top=torch.where(past, private["top"], -1))
        update, after = super().client_train(public, aside, cohort, clock)
        return update, after.with_(top=private["top"])


def preference_shift(scores: Tensor, top: Tensor) -> Tensor:
    """How far a list has moved, Eq. (2): sum over k of |rank(i_k) - k|, ranks from 0. [C]

    scores: [C, I]    top: [C, N], -1 where a list is shorter
    """
    then = scores.gather(1, top.clamp(min=0))
    if scores.device.type == "cpu":  # numpy sorts several times as fast as torch does
        rising = torch.from_numpy(np.sort(scores.detach().numpy(), axis=1))
    else:
        rising = scores.sort(1).values
    rank = scores.shape[1] - torch.searchsorted(rising, then, right=True)
    return torch.where(top >= 0, (rank - places(top)).abs(), 0).sum(1)


def replay_size(shift: Tensor, top_n: int, shift_scale: float) -> Tensor:
    """How much is replayed, Eq. (3) and (4): floor(N exp(-epsilon shift)). [C]"""
    return torch.floor(top_n * torch.exp(-shift_scale * shift.double()))


def temporal_mean(old: Tensor, new: Tensor, inertia: float, per_item: bool = True) -> Tensor:
    """Items between what they were and what they are; rows beyond the old ones stay as they are.

    Eq. (8): phi = |old - new|^2 / sqrt(d); Eq. (9), (10): gamma = beta / (1 + phi);
    Eq. (11)-(13): (1 - gamma) new + gamma old.    old: [J, d]    new: [I, d], J <= I
    """
    now = new[: len(old)]
    shift = (old - now).square().sum(1, keepdim=True) / math.sqrt(old.shape[1])
    share = inertia / (1 + shift) if per_item else torch.full_like(shift, inertia)
    return torch.cat([(1 - share) * now + share * old, new[len(old) :]])


def places(top: Tensor) -> Tensor:
    """0, 1, 2, ... along a list. [N]"""
    return torch.arange(top.shape[1], device=top.device)
