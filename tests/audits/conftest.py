"""A small world in which some people lend, and take it back."""

from __future__ import annotations

from functools import lru_cache

import pytest

from rescind.core.federation import Federation
from rescind.core.records import Erase
from rescind.forgetting.examine import retrains

ROUNDS = 30


@lru_cache(maxsize=1)
def small_story():
    """(before, request, five retrains): made once for all tests, nobody changes a value."""
    import rescind as rs

    data = rs.load("synthetic", users=200, items=120, interactions=8000)
    method = rs.methods.FedShare(
        model=rs.models.LightGCN(dim=16), clients_per_round=60, refine_rate=0.02
    )
    fed = Federation.start(data, method, seed=3)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock, (4, 2, 4))
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    event = Erase(rs.draw_regret(fed.world.shared, fed.clock, 0.4))
    return fed, event, retrains(fed, event, workers=1)


@pytest.fixture
def story():
    return small_story()
