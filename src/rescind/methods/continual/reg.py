"""Regularisation towards the model of the last block (baselines.md 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.loss_terms import LossTerms, Proximal
from rescind.core.model import private_names
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.world import World
from rescind.methods.continual.finetune import FineTune

PAST = "past/"
"""Prefix of private values from the end of the last block."""
OLD_ITEMS = REFERENCE + "item"


@dataclass(frozen=True, kw_only=True)
class Reg(FineTune):
    """loss + strength (|Phi_u - Phi_u^(t-1)|^2 + |Q_u - Q^(t-1)|^2), except for new rows.

    DEPARTS F3CRec's Reg: only item rows that a client copies anyway count. Over the whole table
    the term would touch every row, and uploads would not be sparse (baselines.md T2).
    """

    paper: ClassVar[str] = "baseline Reg of Lim et al., CIKM 2025"

    strength: float = 1e-3
    """Lambda_r; F3CRec searches 1e-5 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, inf)", "strength")

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        old = state.public["item"]
        grown = super().server_turn(state, world, clock)
        return replace(grown, public={**grown.public, OLD_ITEMS: old})

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        first = super().client_init(ids, clock)
        kept = {PAST + name: torch.zeros_like(first[name]) for name in private_names(self.model)}
        return first.with_(**kept, known=torch.zeros(len(ids), dtype=torch.bool, device=ids.device))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        kept = {PAST + name: private[name].clone() for name in private_names(self.model)}
        return private.with_(**kept, known=torch.ones_like(private["known"]))

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        """Return the proximal term, also for new clients: they copy old rows, too."""
        if OLD_ITEMS not in public or not self.strength:
            return LossTerms()
        own = {name: private[PAST + name] for name in private_names(self.model)}
        return LossTerms(proximal=Proximal(public[OLD_ITEMS], own, private["known"], self.strength))
