"""F3CRec: adaptive replay on devices, and a temporal mean of items on the server.

Lim et al., CIKM 2025. Eq. (1)-(6) run on devices (Eq. (2)-(5) are in `core.loss_terms`, shared with
KD and SPP), Eq. (7)-(13) on the server. The first block is plain averaging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.loss_terms import LossTerms
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sums
from rescind.core.state import Private, ServerState
from rescind.core.world import World
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import best, blank, listed

BLOCK = "block"
"""Name of the server's snapshot of the item table, Q^(t-1)."""


@dataclass(frozen=True, kw_only=True)
class F3CRec(FineTune):
    """Federated continual recommendation (Lim et al., CIKM 2025).

    Ablations: no client part `distil=0`, no adaptive replay `adaptive=False`, no server part
    `inertia=0`, no item-wise weights `per_item=False`.
    """

    paper: ClassVar[str] = "Lim et al., CIKM 2025"

    top_n: int = 30
    """Items kept as a user's past preference, S_u in Eq. (1)."""
    shift_scale: float = 0.006
    """Epsilon in Eq. (3): how fast replay shrinks if rankings change. Authors' ML-100K value."""
    distil: float = 0.1
    """Lambda in Eq. (6). Authors' ML-100K value."""
    inertia: float = 0.9
    """Beta in Eq. (10): weight of the old item table. Authors' ML-100K value."""
    adaptive: bool = True
    """Replay less if the ranking changed, Eq. (2)-(4); False replays the whole list."""
    per_item: bool = True
    """Changed items keep less of the past, Eq. (8)-(10); False: `inertia` for all items."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, inf)", "top_n", "distil")
        must_lie(self, "[0, 1]", "inertia")
        must_lie(self, "[0, inf)", "shift_scale")

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Start a block: keep the item table of the last block, Q^(t-1)."""
        memory = state.memory.keep(BLOCK, state.round, {"item": state.public["item"]}, last=1)
        return replace(super().server_turn(state, world, clock), memory=memory)

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        """Take the plain mean, Eq. (7), then for old items the temporal mean, Eq. (8)-(13)."""
        new = super().server_step(state, sums, world, clock)
        for kept in state.memory.named(BLOCK):
            old, mean = kept.values["item"], new.public["item"]
            mixed = temporal_mean(old.to(mean), mean, self.inertia, self.per_item)
            new = replace(new, public={**new.public, "item": mixed})
        return new

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        return super().client_init(ids, clock).with_(**blank(ids, self.top_n))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """End a block: store the best N items and their scores, Eq. (1).

        DEPARTS F3CRec's published run: a client that skips a block keeps the old scores of its
        list. The authors score an old list with the newest table, which the device does not have.
        """
        return private.with_(**best(self.client_scores(public, private, cohort), self.top_n))

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        """Return the term of distillation with adaptive replay, Eq. (2)-(6)."""
        return LossTerms(listed(private, self.distil, self.shift_scale if self.adaptive else None))


def temporal_mean(old: Tensor, new: Tensor, inertia: float, per_item: bool = True) -> Tensor:
    """Mix old and new item rows; rows of new items do not change.

    Eq. (8): phi = |old - new|^2 / sqrt(d); Eq. (9), (10): gamma = beta / (1 + phi);
    Eq. (11)-(13): (1 - gamma) new + gamma old.    old: [J, d]    new: [I, d], J <= I
    """
    now = new[: len(old)]
    shift = (old - now).square().sum(1, keepdim=True) / math.sqrt(old.shape[1])
    weight = inertia / (1 + shift) if per_item else torch.full_like(shift, inertia)
    return torch.cat([(1 - weight) * now + weight * old, new[len(old) :]])
