"""Fine-tuning on each block without memory of the past (baselines.md 5.1).

Base of the continual learners: F3CRec's client training for its three backbones, and the step from
one block to the next (`rescind.experiments.streams` runs the blocks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

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
from rescind.core.signatures import Sent, Summed
from rescind.core.state import Private
from rescind.core.update import Rows, Update
from rescind.models.mf import MF

THIS_ROUND = "round/"
"""Private values with this prefix last for one round."""


@dataclass(frozen=True, kw_only=True)
class FineTune(RankingMethod):
    """FT: each block is trained with the usual loss, starting from the last model."""

    paper: ClassVar[str] = "baseline FT of Lim et al., CIKM 2025"
    presets: ClassVar[tuple[str, ...]] = ("as_published",)
    notes: ClassVar[bool] = False
    """Whether devices store something at the end of a round (`client_note`)."""

    model: Model = MF()
    loss: Literal["bpr", "bce", "softmax"] = "bce"
    negatives: int = 4
    batch_size: int | None = 512
    rate_per_item: bool = True
    carry: Literal["best", "last"] = "best"
    """Start of a block: the best round of the last block, or its last round.

    DEPARTS F3CRec's published run: it resumes from the last round but distils from the best one.
    With the best for both, N@20 is .1028 instead of .0980 (f3crec.md section 3, ML-100K).
    """
    reset_private: bool = False
    """Reset the private values of every device at the start of a block: a setting to tune.

    The paper says "Phi^t starts from Phi^(t-1)", the default; the authors' run resets FedNCF and
    PFedRec (f3crec.md section 2).
    """
    mask: Literal["block", "all"] = "block"
    """Own items left out of the ranking in evaluation: of this block, or of all so far."""

    @classmethod
    def as_published(cls, **fields: Any) -> Self:
        """Return the settings of the authors' run (f3crec.md section 2)."""
        model = fields.get("model", cls.__dataclass_fields__["model"].default)
        quirks = {"carry": "last", "reset_private": not isinstance(model, MF)}
        return cls(**{**quirks, **fields})

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """Return the steps of a batch, in the order and at the rates of the backbone.

        lr for private values and lr |I| for items, times the rates of `model.moves`, if any.
        """
        (base,) = super().client_steps(public)
        steps: tuple[Mapping[str, float], ...] = getattr(self.model, "moves", tuple)()
        if not steps:
            return (base,)
        named = steps if len(steps) > 1 else ({**dict.fromkeys(base.rates, 1.0), **steps[0]},)
        return tuple(
            Step({n: base.rates[n] * by for n, by in each.items()}, base.optimiser, base.decay)
            for each in named
        )

    def client_loss_terms(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> LossTerms:
        return LossTerms()

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
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
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        terms = self.client_loss_terms(public, private, cohort, clock)
        if terms.replay is not None:
            model = cast(RankingModel, self.model)
            loss = loss + terms.replay.loss(model, work, batch, public, cohort, clock)
        return loss if terms.proximal is None else loss + terms.proximal.loss(work)

    def client_begin(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> Private:
        """Start a round: add private values with the prefix THIS_ROUND."""
        return private

    def client_note(
        self, private: Private, scores: Scores, cohort: Cohort, clock: Clock
    ) -> Mapping[str, Tensor]:
        """End a round: return values to store on devices (with `notes = True`)."""
        return {}

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        private = self.client_begin(public, private, cohort, clock)
        update, after = super().client_train(public, private, cohort, clock)
        scores = local_scores(self.model, public, update, after) if self.notes else None
        return update, self._end(after, scores, cohort, clock)

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        if getattr(self.model, "kernel", "") != "linear" or not fused.fits(self, FineTune, public):
            return super().client_sum(public, private, cohort, clock)
        private = self.client_begin(public, private, cohort, clock)
        terms = self.client_loss_terms(public, private, cohort, clock)
        summed, after, scores = linear.client_sum(
            self, public, private, cohort, clock, terms, asked=self.notes
        )
        return summed, self._end(after, scores, cohort, clock)

    def _end(self, after: Private, scores: Scores | None, cohort: Cohort, clock: Clock) -> Private:
        if scores is not None:
            after = after.with_(**self.client_note(after, scores, cohort, clock))
        values = {n: v for n, v in after.values.items() if not n.startswith(THIS_ROUND)}
        return replace(after, values=values)


def local_scores(model: Model, public: Params, update: Update, after: Private) -> Scores:
    rows = update.entries["item"]
    assert isinstance(rows, Rows)
    local = public["item"].index_select(0, rows.index) + rows.value
    score = cast(RankingModel, model).score({"item": local}, after.values, rows.owner)
    return Scores(rows.owner, rows.index, score)
