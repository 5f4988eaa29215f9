"""Fine-tuning: go on training on what arrives, and remember nothing else (baselines.md 5.1).

The ground of the continual learners: the client recipe of F3CRec for its three backbones, and how
a model goes from one block to the next (`rescind.experiments.streams` runs the blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast import dispatch as fused
from rescind.core.fast import linear
from rescind.core.fast.linear import Scores
from rescind.core.gradient import RankingMethod
from rescind.core.loss_terms import LossTerms
from rescind.core.model import Model, RankingModel
from rescind.core.optim import Step
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.state import Private
from rescind.core.update import Rows, Sum, Update
from rescind.models.mf import MF

THIS_ROUND = "round/"
"""Private values under this name last for one round."""


@dataclass(frozen=True, kw_only=True)
class FineTune(RankingMethod):
    """FT: each block is trained on with the usual loss, from where the last one ended."""

    paper: ClassVar[str] = "baseline FT of Lim et al., CIKM 2025"
    presets: ClassVar[tuple[str, ...]] = ("as_published",)
    notes: ClassVar[bool] = False
    """True: devices write something down when a round ends (`client_note`)."""

    model: Model = MF()
    loss: Literal["bpr", "bce", "softmax"] = "bce"
    negatives: int = 4
    batch_size: int | None = 512
    rate_per_item: bool = True
    carry: Literal["best", "last"] = "best"
    """Where a block begins: the best round of the block before, or its last.

    DEPARTS F3CRec's published run: it goes on from the last round but distils from the best one.
    From the best for both, N@20 is .1028 instead of .0980 (f3crec.md section 3, ML-100K).
    """
    reset_private: bool = False
    """Give every device first values again when a block begins.

    DEPARTS F3CRec's published run: it does so for FedNCF and PFedRec, against the paper's own
    "Phi^t starts from Phi^(t-1)"; here devices keep what they learnt unless told otherwise.
    """
    mask: Literal["block", "all"] = "block"
    """Which items a person has are not shown when measuring: of this block, or of all so far."""

    @classmethod
    def as_published(cls, **fields: Any) -> Self:
        """With every quirk of the authors' run (f3crec.md section 2)."""
        model = fields.get("model", cls.__dataclass_fields__["model"].default)
        quirks = {"carry": "last", "reset_private": not isinstance(model, MF)}
        return cls(**{**quirks, **fields})

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """What each batch moves, in the order and at the relative rates the backbone asks for.

        lr for what is private and lr |I| for items, times what `model.moves` says.
        """
        (base,) = super().client_steps(public)
        asked = moves(self.model)
        if not asked:
            return (base,)
        named = asked if len(asked) > 1 else ({**dict.fromkeys(base.rates, 1.0), **asked[0]},)
        return tuple(
            Step({n: base.rates[n] * by for n, by in each.items()}, base.optimiser, base.decay)
            for each in named
        )

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        """What the loss holds beside the samples: nothing."""
        return LossTerms()

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The usual samples; whatever may be rehearsed is on the shelf, too."""
        plan = super().client_plan(public, private, cohort, clock)
        replay = self.client_loss_terms(public, private, cohort, clock).replay
        return plan if replay is None else replay.on_shelf(plan)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Recommendation, and what stands beside it. [C]"""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        beside = self.client_loss_terms(public, private, cohort, clock)
        if beside.replay is not None:
            model = cast(RankingModel, self.model)
            loss = loss + beside.replay.loss(model, work, batch, public, cohort, clock)
        return loss if beside.proximal is None else loss + beside.proximal.loss(work)

    def client_begin(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> Private:
        """A round begins: what devices draw for it, under names that start with THIS_ROUND."""
        return private

    def client_note(
        self, private: Private, said: Scores, cohort: Cohort, clock: Clock
    ) -> Mapping[str, Tensor]:
        """A round ends: what devices write down of what they say now (with `notes = True`)."""
        return {}

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Begin, train, take notes."""
        begun = self.client_begin(public, private, cohort, clock)
        update, after = super().client_train(public, begun, cohort, clock)
        said = local_scores(self.model, public, update, after) if self.notes else None
        return update, self._ended(after, said, cohort, clock)

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`, compiled where the backbone is linear."""
        if getattr(self.model, "kernel", "") != "linear" or not fused.fits(self, FineTune, public):
            return super().client_sum(public, private, cohort, clock)
        begun = self.client_begin(public, private, cohort, clock)
        beside = self.client_loss_terms(public, begun, cohort, clock)
        summed, after, said = linear.client_sum(
            self, public, begun, cohort, clock, beside, asked=self.notes
        )
        return summed, self._ended(after, said, cohort, clock)

    def _ended(self, after: Private, said: Scores | None, cohort: Cohort, clock: Clock) -> Private:
        if said is not None:
            after = after.with_(**self.client_note(after, said, cohort, clock))
        values = {n: v for n, v in after.values.items() if not n.startswith(THIS_ROUND)}
        return replace(after, values=values)


def local_scores(model: Model, public: Params, update: Update, after: Private) -> Scores:
    """What clients say of the rows they copied, with their own copies."""
    rows = update.entries["item"]
    assert isinstance(rows, Rows)
    local = public["item"].index_select(0, rows.index) + rows.value
    score = cast(RankingModel, model).score({"item": local}, after.values, rows.owner)
    return Scores(rows.owner, rows.index, score)


def moves(model: Model) -> tuple[Mapping[str, float], ...]:
    """The steps of a batch a backbone asks for, by relative rates; none: one step, all alike."""
    found: Callable[[], tuple[Mapping[str, float], ...]] = getattr(model, "moves", tuple)
    return found()


def trained_names(model: Model) -> tuple[str, ...]:
    """The private parameters of a backbone, without what methods keep beside them."""
    return _names(cast(Hashable, model))


@lru_cache(maxsize=32)
def _names(model: Any) -> tuple[str, ...]:
    return tuple(model.private(torch.zeros(0, dtype=torch.int64), Clock(0)))
