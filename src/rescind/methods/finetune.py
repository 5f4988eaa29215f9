"""Fine-tuning: go on training on what arrives, and remember nothing else (baselines.md 5.1).

The ground of the continual learners: the client recipe of F3CRec for its three backbones, and how
a model goes from one block to the next (`rescind.streams` runs the blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from rescind import fused, jagged
from rescind.clock import Clock
from rescind.cohort import Cohort, Lot
from rescind.method import Method
from rescind.model import Model
from rescind.models.mf import MF
from rescind.optim import Step
from rescind.params import Params
from rescind.state import Private
from rescind.update import Sum


@dataclass(frozen=True, kw_only=True)
class FineTune(Method):
    """FT: each block is trained on with the usual loss, from where the last one ended."""

    paper: ClassVar[str] = "baseline FT of Lim et al., CIKM 2025"
    presets: ClassVar[tuple[str, ...]] = ("as_published",)

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

    def client_past(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Whose past changes how they train, so that it is not plain fine-tuning. [C] bool

        A method that trains otherwise and does not say for whom is taken to mean everybody.
        """
        verbs = (getattr(type(self), verb) is getattr(FineTune, verb) for verb in fused.VERBS)
        return torch.full_like(cohort.ids, not all(verbs), dtype=torch.bool)

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`; compiled for those who do nothing but fine-tune."""
        past = self.client_past(public, private, cohort)
        if bool(past.all()) or not fused.fits(self, type(self), public):
            return super().client_sum(public, private, cohort, clock)
        if not bool(past.any()):
            return fused.client_sum(self, public, private, cohort, clock)
        new, old = (~past).nonzero().squeeze(1), past.nonzero().squeeze(1)
        fast, after = fused.client_sum(self, public, part(private, new), some(cohort, new), clock)
        slow, other = super().client_sum(public, part(private, old), some(cohort, old), clock)
        values = dict(private.values)
        for name in trained_names(self.model):
            values[name] = values[name].index_copy(0, new, after[name])
            values[name] = values[name].index_copy(0, old, other[name])
        return fast + slow, replace(private, values=values)


def moves(model: Model) -> tuple[Mapping[str, float], ...]:
    """The steps of a batch a backbone asks for, by relative rates; none: one step, all alike."""
    found: Callable[[], tuple[Mapping[str, float], ...]] = getattr(model, "moves", tuple)
    return found()


def part(private: Private, where: Tensor) -> Private:
    """The private side of some clients of a cohort."""
    return replace(private, values={n: v[where] for n, v in private.values.items()})


def some(cohort: Cohort, where: Tensor) -> Cohort:
    """Some clients of a cohort, by their place in it."""

    def lot(whole: Lot) -> Lot:
        owner, at = jagged.take(whole.first, whole.count, where)
        return Lot(owner, whole.item[at], len(where))

    train = lot(cohort.train)
    own = train if cohort.own is cohort.train else lot(cohort.own)
    return replace(cohort, ids=cohort.ids[where], train=train, own=own, weight=cohort.weight[where])


def trained_names(model: Model) -> tuple[str, ...]:
    """The private parameters of a backbone, without what methods keep beside them."""
    return _names(cast(Hashable, model))


@lru_cache(maxsize=32)
def _names(model: Any) -> tuple[str, ...]:
    return tuple(model.private(torch.zeros(0, dtype=torch.int64), Clock(0)))
