"""Knowledge distillation from each device's own predictions at the end of the last block.

KD of F3CRec's Table 2 (baselines.md 5.3): at the end of a block a device stores its best N items
and their scores (12 N bytes) and distils from them in the next block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.loss_terms import LossTerms, Replay
from rescind.core.params import Params
from rescind.core.ranges import must_lie
from rescind.core.state import Private
from rescind.core.tasks.metrics import top_k
from rescind.methods.continual.finetune import FineTune


@dataclass(frozen=True, kw_only=True)
class KD(FineTune):
    """Distils from the whole list of the last block: F3CRec's client part without adaptation."""

    paper: ClassVar[str] = "baseline KD of Lim et al., CIKM 2025"

    top_n: int = 30
    """Items kept as a user's past preference, S_u in F3CRec's Eq. (1)."""
    distil: float = 0.1
    """Weight of the distillation, lambda in F3CRec's Eq. (6)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_lie(self, "[0, inf)", "top_n", "distil")

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        return super().client_init(ids, clock).with_(**blank(ids, self.top_n))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        return private.with_(**best(self.client_scores(public, private, cohort), self.top_n))

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        return LossTerms(listed(private, self.distil))


def blank(ids: Tensor, top_n: int) -> dict[str, Tensor]:
    """Return empty lists. top, teacher: [C, N]"""
    empty = torch.full((len(ids), top_n), -1, device=ids.device)
    return {"top": empty, "teacher": torch.zeros_like(empty, dtype=torch.float32)}


def best(scores: Tensor, top_n: int) -> dict[str, Tensor]:
    """Return the best N items with scores, own items included; Eq. (1). scores: [C, I]"""
    top = top_k(scores, None, top_n)
    return {"top": top, "teacher": scores.gather(1, top.clamp(min=0))}


def listed(private: Private, distil: float, shift_scale: float | None = None) -> Replay | None:
    """Return the replay term of the lists; None if all lists are empty."""
    if not distil or not bool((private["top"] >= 0).any()):
        return None
    label = torch.sigmoid(private["teacher"])
    return Replay(private["top"], label, distil, shift_scale=shift_scale)
