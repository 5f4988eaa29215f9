"""Knowledge distillation: a device keeps answering as it did when the last block ended.

KD of F3CRec's Table 2 (baselines.md 5.3): when a block ends a device writes down its best N items
with the scores it gave them, 12 N bytes; in the next block it distils from that list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind import jagged
from rescind.clock import Clock
from rescind.cohort import Cohort
from rescind.errors import ConfigError
from rescind.methods.finetune import FineTune
from rescind.model import RankingModel
from rescind.params import Params
from rescind.plan import Batch, Plan, Work
from rescind.state import Private
from rescind.tasks.metrics import top_k


@dataclass(frozen=True, kw_only=True)
class KD(FineTune):
    """Distil from the whole list of the block before: F3CRec's client side without adaptation."""

    paper: ClassVar[str] = "baseline KD of Lim et al., CIKM 2025"

    top_n: int = 30
    """Items kept as a user's past preference, S_u in F3CRec's Eq. (1)."""
    distil: float = 0.1
    """Weight of the distillation, lambda in F3CRec's Eq. (6)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(type(self).__name__, self.top_n, self.distil)

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """A device without a past has an empty list."""
        return super().client_init(ids, clock).with_(**blank(ids, self.top_n))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """A block ends: write the list down."""
        return private.with_(**best(self.client_scores(public, private, cohort), self.top_n))

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The usual samples; the rows of the list are copied, too."""
        return also_listed(super().client_plan(public, private, cohort, clock), private)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Recommendation plus distillation over the whole list. [C]"""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        owner, place = ((private["top"] >= 0) & batch.active.unsqueeze(1)).nonzero(as_tuple=True)
        return loss + self.distil * distillation(self.model, work, private, owner, place)  # type: ignore[arg-type]

    def client_past(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Whoever has a list. [C] bool"""
        return (private["top"] >= 0).any(1)


def check(name: str, top_n: int, distil: float) -> None:
    """Refuse settings that no list can have."""
    if top_n < 0:
        raise ConfigError(f"{name}.top_n must be 0 or above, got {top_n}.")
    if not 0 <= distil < float("inf"):
        raise ConfigError(f"{name}.distil must be 0 or above and finite, got {distil}.")


def blank(ids: Tensor, top_n: int) -> dict[str, Tensor]:
    """Empty lists. top, teacher: [C, N]"""
    empty = torch.full((len(ids), top_n), -1, device=ids.device)
    return {"top": empty, "teacher": torch.zeros_like(empty, dtype=torch.float32)}


def best(scores: Tensor, top_n: int) -> dict[str, Tensor]:
    """The best N of all items with their scores, own items not masked; Eq. (1). scores: [C, I]"""
    top = top_k(scores, None, top_n)
    return {"top": top, "teacher": scores.gather(1, top.clamp(min=0))}


def also_listed(plan: Plan, private: Private) -> Plan:
    """A plan whose shelf has room for everybody's list."""
    owner, place = (private["top"] >= 0).nonzero(as_tuple=True)
    if not len(owner):
        return plan
    return replace(plan, also=(*plan.also, (owner, private["top"][owner, place])))


def distillation(
    model: RankingModel, work: Work, private: Private, owner: Tensor, place: Tensor
) -> Tensor:
    """BCE(sigmoid(teacher), sigmoid(student)), the mean over what each client replays. [C]

    DEPARTS F3CRec's Eq. (5): a mean with the minus sign, as in the authors' run; the paper prints
    a sum without it, which would be minimised by unlearning the teacher.

    owner, place: [m] whose list, and where on it
    """
    clients = len(private["top"])
    if not len(owner):
        return private["teacher"].new_zeros(clients)
    row = work.shelf.find(owner, private["top"][owner, place])
    rows = {name: table.index_select(0, row) for name, table in work.rows.items()}
    student = model.score(rows, {**work.dense, **work.own}, owner)
    taught = torch.sigmoid(private["teacher"][owner, place]).to(student.dtype)
    each = functional.binary_cross_entropy_with_logits(student, taught, reduction="none")
    return jagged.segment_mean(each, owner, clients)
