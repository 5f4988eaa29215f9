"""Q4, the difference attack: compare the model before and after to find the forgotten records; and
Q6, the distance to retrained models, compared with that between retrains.

Deletion itself can reveal a record ("When Machine Unlearning Jeopardizes Privacy"). The attack on
top-20 lists, which users can see, is judged; all else is only reported.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rescind.audits.case import Case, PerPerson, auc_by_person, draw_ids, in_list, lists, mean_of
from rescind.core.federation import Federation
from rescind.core.records import Records

PEOPLE = 100  # users whose scores of all items are compared: 3 MB for 3,706 items


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


def tables(case: Case, fed: Federation) -> PerPerson:
    """Compute ||w - w'|| / ||w'||, mean over retrains w': all public parameters as one vector."""
    gaps = []
    for other in case.other_refs(fed):
        mine, theirs = fed.now.state.public, other.now.state.public
        names = sorted(n for n in mine if n in theirs and mine[n].shape == theirs[n].shape)
        gap = sum(float((mine[n].double() - theirs[n].double()).square().sum()) for n in names)
        size = sum(float(theirs[n].double().square().sum()) for n in names)
        gaps.append((gap / max(size, 1e-12)) ** 0.5)
    one = torch.tensor([sum(gaps) / len(gaps)], dtype=torch.float64)
    return PerPerson(one, torch.ones_like(one))


def jaccard(case: Case, fed: Federation) -> PerPerson:
    """Compute the Jaccard similarity of top-20 lists, mean over retrains and other users."""
    ids = draw_ids(case.bystanders, PEOPLE, case.clock, "distance")
    models = (fed, *case.other_refs(fed))
    mine, *rest = (case.cached("lists", f, partial(lists, f, ids)) for f in models)
    found = []
    for theirs in rest:
        both = ((mine.unsqueeze(2) == theirs.unsqueeze(1)) & (mine >= 0).unsqueeze(2)).sum((1, 2))
        either = (mine >= 0).sum(1) + (theirs >= 0).sum(1) - both
        found.append(both.double() / either.clamp(min=1))
    value = mean_of(found)
    return PerPerson(value, torch.ones_like(value))


def divergence(case: Case, fed: Federation) -> PerPerson:
    """Compute KL(retrain || model) of a user's softmax over all items, mean over retrains."""
    ids = draw_ids(case.bystanders, PEOPLE, case.clock, "distance")
    items = fed.world.sizes.items
    every = Records.of(ids.repeat_interleave(items), torch.arange(items).repeat(len(ids)))
    temperature = float(getattr(fed.method, "temperature", 1.0))

    def log_p(model: Federation) -> Tensor:
        return torch.log_softmax(model.query(every).cpu().view(len(ids), items) / temperature, 1)

    models = (fed, *case.other_refs(fed))
    mine, *rest = (case.cached("law", f, partial(log_p, f)) for f in models)
    value = mean_of([(p.exp() * (p - mine)).sum(1) for p in rest])
    return PerPerson(value, torch.ones_like(value))
