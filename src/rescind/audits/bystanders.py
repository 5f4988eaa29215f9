"""Q8: forgetting some people must not expose or harm the others.

Exposed: their own records stand out no more than after a retrain. Harmed: their lists are as good
as a retrain's, over all and in every tenth by activity and by popularity (CURE4Rec's fairness).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rescind.audits.case import Case, PerPerson, Targets, auc_by_person, evidence, lists, some
from rescind.core import jagged
from rescind.core.federation import Federation

PEOPLE = 600  # who are asked about their records; their AUC is then known to about .003
TENTHS = 10
LIST = 20


def exposed(case: Case, fed: Federation) -> PerPerson:
    """AUC of trained against held-out records of people who did not ask."""
    at = case.once("bystanders", case.before, lambda: _asked(case))
    return auc_by_person(evidence(fed, at.records), at)


def _asked(case: Case) -> Targets:
    ids = some(case.bystanders, PEOPLE, case.clock, "bystanders")
    held = case.valid + case.test
    trained = case.trained[torch.isin(case.trained.client, ids)]
    return Targets.of(trained, held[torch.isin(held.client, ids)])


def quality(case: Case, fed: Federation) -> PerPerson:
    """NDCG@20 of people who did not ask."""
    value, counted = case.once("quality", fed, partial(_quality, case, fed))
    return PerPerson(value, counted)


def tenths(case: Case, fed: Federation) -> dict[str, PerPerson]:
    """NDCG@20 by tenth of activity, and the share of held-out records found by tenth of popularity.

    People are one sample for all groups: a group is a weight, so that one bootstrap serves all.
    """
    value, counted = case.once("quality", fed, partial(_quality, case, fed))
    ids = case.bystanders
    owned = jagged.counts(case.trained.client, case.before.world.sizes.clients)[ids]
    group = _tenth(owned)
    out = {f"activity {g + 1}": PerPerson(value, counted * (group == g)) for g in range(TENTHS)}
    test = case.test[torch.isin(case.test.client, ids)]
    hit = _hits(case, fed)[torch.isin(case.test.client, ids)].double()
    often = jagged.counts(case.trained.item, case.before.world.sizes.items)
    of_record = _tenth(often[test.item])
    person = torch.searchsorted(ids, test.client)
    for g in range(TENTHS):
        mine = (of_record == g).double()
        many = jagged.segment_sum(mine, person, len(ids))
        found = jagged.segment_sum(mine * hit, person, len(ids)) / many.clamp(min=1)
        out[f"popularity {g + 1}"] = PerPerson(found, many)
    return out


def _tenth(values: Tensor) -> Tensor:
    """Which tenth each value is in, 0 the smallest; of equal values the lower index first. [n]"""
    order = torch.argsort(values, stable=True)
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    return rank * TENTHS // max(len(order), 1)


def _lists(case: Case, fed: Federation) -> Tensor:
    return case.once("all lists", fed, partial(lists, fed, case.bystanders, LIST))


def _hits(case: Case, fed: Federation) -> Tensor:
    """Whether each test record is in its person's list. [n] bool"""
    top = _lists(case, fed)
    return torch.isin(case.test.pairs(), ((case.bystanders.unsqueeze(1) << 31) + top)[top >= 0])


def _quality(case: Case, fed: Federation) -> tuple[Tensor, Tensor]:
    """NDCG@20 of each person who did not ask, and 1 where they have held-out items."""
    top, ids = _lists(case, fed), case.bystanders
    hit = torch.isin((ids.unsqueeze(1) << 31) + top, case.test.pairs()) & (top >= 0)
    held = jagged.counts(case.test.client, case.before.world.sizes.clients)[ids]
    discount = 1 / torch.log2(torch.arange(LIST, dtype=torch.float64) + 2)
    ideal = torch.cumsum(discount, 0)[held.clamp(1, LIST) - 1]
    return (hit.double() * discount).sum(1) / ideal, (held > 0).double()
