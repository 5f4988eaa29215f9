"""Q4, the difference attack: compare the model before and after to find the forgotten records.

Deletion itself can reveal a record ("When Machine Unlearning Jeopardizes Privacy"). The attack on
top-20 lists, which users can see, is judged; the attack on scores is only reported.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from rescind.audits.case import Case, PerPerson, auc_by_person, in_list, lists
from rescind.core.federation import Federation


def by_lists(case: Case, fed: Federation) -> PerPerson:
    """Compute the AUC of entering (+1) or leaving (-1) the top-20 list."""
    at = case.targets

    def listed(model: Federation) -> Tensor:
        return in_list(lists(model, at.ids), at.ids, at.records)

    before, after = (case.cached("shown", f, partial(listed, f)) for f in (case.before, fed))
    return auc_by_person(after.double() - before.double(), at)


def by_scores(case: Case, fed: Federation) -> PerPerson:
    at = case.targets
    before, after = (
        case.cached("scores", f, partial(f.query, at.records)).cpu() for f in (case.before, fed)
    )
    return auc_by_person(before - after, at)
