"""FRU's user-item mixed semi-hard negatives, against loops over people and items."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rescind.core.federation import Federation
from rescind.core.state import Private
from rescind.methods.unlearning.fru import FRU, near_items
from rescind.models.lightgcn import LightGCN
from worlds import randoms, tiny_holdings


def begin(**given) -> Federation:
    return Federation.start(tiny_holdings(6, 12), FRU(model=LightGCN(dim=4), **given))


def pools(item, user, cohort, share) -> list[set[int]]:
    """V^u and V^v of every client, one distance after another."""
    found = []
    for c in range(len(cohort)):
        mine = set(cohort.own.item[cohort.own.owner == c].tolist())
        trained = cohort.train.item[cohort.train.owner == c].tolist()
        mean = sum((item[i] for i in trained), torch.zeros(item.shape[1])) / max(len(trained), 1)
        points = [user[c] if bool(user[c].any()) else mean, mean]
        free = [i for i in range(len(item)) if i not in mine]
        many = math.ceil(share * len(free))
        near = [sorted(free, key=lambda i, p=p: float((p - item[i]).norm()))[:many] for p in points]
        found.append({i for some in near for i in some})
    return found


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_a_pool_is_what_is_near_the_person_or_near_what_they_have(share):
    fed = begin()
    cohort = fed.now.vault.holdings.cohort(torch.arange(6))
    item, user = randoms(12, 4).float(), randoms(6, 4, seed=1).float()
    user[2] = 0
    pool, count = near_items(item, user, cohort, share)
    mine = [set(part.tolist()) for part in pool.split(count.tolist())]
    assert mine == pools(item, user, cohort, share)


def test_negatives_come_from_the_pool_and_are_fewer():
    method = FRU(model=LightGCN(dim=4), negatives=4, near_share=0.3, negatives_from="semi_hard")
    fed = begin()
    cohort = fed.now.vault.holdings.cohort(torch.arange(6))
    item = fed.now.state.public["item"]
    private = Private({"user": randoms(6, 4, seed=1).float()})
    clock = fed.clock.at(3)
    plan = method.client_plan({"item": item}, private, cohort, clock)
    usual = replace(method, negatives_from="all").client_plan(
        {"item": item}, private, cohort, clock
    )
    assert 2 * len(plan.items["negative"]) <= len(usual.items["negative"])
    allowed = pools(item, private["user"], cohort, 0.3)
    for who, drawn in zip(plan.owner.tolist(), plan.items["negative"].tolist(), strict=True):
        assert drawn in allowed[who]
    assert len(set(plan.items["negative"].tolist())) > 1


def test_a_run_with_them_learns_and_forgets_and_bad_settings_are_named():
    fed = begin(negatives_from="semi_hard", clients_per_round=4).run(2)
    assert bool(fed.now.state.public["item"].isfinite().all())
