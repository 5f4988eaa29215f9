"""Q8: unlearning must not expose or harm the other users."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rescind.audits.case import Case, PerPerson, Targets, auc_by_person, draw_ids, evidence, lists
from rescind.core import jagged
from rescind.core.federation import Federation

PEOPLE = 600  # sampled users; the standard error of the AUC is then about .003
TENTHS = 10
LIST = 20


def exposed(case: Case, fed: Federation) -> PerPerson:
    at = case.cached("bystanders", case.before, lambda: _bystander_targets(case))
    return auc_by_person(evidence(fed, at.records), at)


def _bystander_targets(case: Case) -> Targets:
    ids = draw_ids(case.bystanders, PEOPLE, case.clock, "bystanders")
    held = case.valid + case.test
    trained = case.trained[torch.isin(case.trained.client, ids)]
    return Targets.of(trained, held[torch.isin(held.client, ids)])


def quality(case: Case, fed: Federation) -> PerPerson:
    value, counted = case.cached("quality", fed, partial(_quality, case, fed))
    return PerPerson(value, counted)


def tenths(case: Case, fed: Federation) -> dict[str, PerPerson]:
    """Compute NDCG@20 by tenth of activity, and recall of held-out records by popularity."""
    value, counted = case.cached("quality", fed, partial(_quality, case, fed))
    ids = case.bystanders
    owned = jagged.counts(case.trained.client, case.before.world.sizes.clients)[ids]
    group = _tenth(owned)
    out = {f"activity {g + 1}": PerPerson(value, counted * (group == g)) for g in range(TENTHS)}
    test = case.test[torch.isin(case.test.client, ids)]
    hit = _hits(case, fed)[torch.isin(case.test.client, ids)].double()
    popularity = jagged.counts(case.trained.item, case.before.world.sizes.items)
    record_group = _tenth(popularity[test.item])
    person = torch.searchsorted(ids, test.client)
    for g in range(TENTHS):
        in_group = (record_group == g).double()
        n = jagged.segment_sum(in_group, person, len(ids))
        found = jagged.segment_sum(in_group * hit, person, len(ids)) / n.clamp(min=1)
        out[f"popularity {g + 1}"] = PerPerson(found, n)
    return out


def _tenth(values: Tensor) -> Tensor:
    """Return the tenth of each value, 0 the smallest; ties are ordered by index. [n]"""
    order = torch.argsort(values, stable=True)
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    return rank * TENTHS // max(len(order), 1)


def _lists(case: Case, fed: Federation) -> Tensor:
    return case.cached("all lists", fed, partial(lists, fed, case.bystanders, LIST))


def _hits(case: Case, fed: Federation) -> Tensor:
    """Return whether each test record is in its user's list. [n] bool"""
    top = _lists(case, fed)
    return torch.isin(case.test.pairs(), ((case.bystanders.unsqueeze(1) << 31) + top)[top >= 0])


def _quality(case: Case, fed: Federation) -> tuple[Tensor, Tensor]:
    """Compute NDCG@20 of each other user, and 1 where they have held-out items."""
    top, ids = _lists(case, fed), case.bystanders
    hit = torch.isin((ids.unsqueeze(1) << 31) + top, case.test.pairs()) & (top >= 0)
    held = jagged.counts(case.test.client, case.before.world.sizes.clients)[ids]
    discount = 1 / torch.log2(torch.arange(LIST, dtype=torch.float64) + 2)
    ideal = torch.cumsum(discount, 0)[held.clamp(1, LIST) - 1]
    return (hit.double() * discount).sum(1) / ideal, (held > 0).double()
