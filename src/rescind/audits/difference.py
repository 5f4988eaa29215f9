"""Q4, the difference attack: who sees the model before and after may read off what was forgotten.

Deletion itself can give a record away ("When Machine Unlearning Jeopardizes Privacy"). At the
visibility of the product, lists of 20, it is judged; with scores in hand it is only shown.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from rescind.audits.case import Case, PerPerson, auc_by_person, lists, shown
from rescind.core.federation import Federation


def by_lists(case: Case, fed: Federation) -> PerPerson:
    """AUC of "it entered or left the list of 20" (entered counts as evidence of a deletion)."""
    at = case.targets

    def there(model: Federation) -> Tensor:
        return shown(lists(model, at.ids), at.ids, at.records)

    before, after = (case.once("shown", f, partial(there, f)) for f in (case.before, fed))
    return auc_by_person(after.double() - before.double(), at)


def by_scores(case: Case, fed: Federation) -> PerPerson:
    """AUC of how far a record's score fell."""
    at = case.targets
    before, after = (
        case.once("scores", f, partial(f.query, at.records)).cpu() for f in (case.before, fed)
    )
    return auc_by_person(before - after, at)
