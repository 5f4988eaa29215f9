"""Q1, the population attack: does the model still score forgotten records above unseen ones?

One threshold for all records: U-LiRA is the strong form (baselines.md 6.3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.audits.case import Case, PerPerson, Tail, auc_by_person, balanced, evidence
from rescind.core.federation import Federation

POINTS = 60  # of a plotted ROC curve


def population(case: Case, fed: Federation) -> PerPerson:
    """Compute the AUC of forgotten against held-out records of the same users."""
    return auc_by_person(_evidence(case, fed), case.targets)


def tail(case: Case, fed: Federation) -> Tail:
    """Return a sample for the TPR at 1 % FPR: the few records that are remembered best."""
    return Tail(_evidence(case, fed), case.targets)


def _evidence(case: Case, fed: Federation) -> Tensor:
    return case.cached("evidence", fed, lambda: evidence(fed, case.targets.records))


def roc(sample: Tail) -> dict[str, list[float]]:
    """Compute the ROC curve, balanced per user, at some false-positive rates: "fpr" and "tpr"."""
    order = torch.argsort(sample.evidence, descending=True, stable=True)
    weight, member = balanced(sample.targets)[order], sample.targets.member[order]
    right, wrong = (_cumulative_fraction(weight * side) for side in (member, ~member))
    fpr = torch.cat([torch.logspace(-3, 0, POINTS // 2), torch.linspace(0, 1, POINTS // 2)])
    fpr = torch.unique(fpr.double())
    at = torch.searchsorted(wrong, fpr, right=True) - 1
    tpr = torch.where(at >= 0, right[at.clamp(min=0)], 0.0)
    return {"fpr": [round(x, 5) for x in fpr.tolist()], "tpr": [round(x, 5) for x in tpr.tolist()]}


def _cumulative_fraction(weight: Tensor) -> Tensor:
    return torch.cumsum(weight, 0) / weight.sum().clamp(min=1e-12)
