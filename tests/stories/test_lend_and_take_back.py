"""A person lends, learns, regrets, and is forgotten by retraining."""

from __future__ import annotations

import pytest
import torch

import rescind as rs
from rescind.core import params
from worlds import tiny_holdings


@pytest.fixture
def fed() -> rs.Federation:
    fed = rs.Federation.start(
        tiny_holdings(clients=12, items=15), rs.methods.FedAvg(clients_per_round=6), seed=2
    )
    groups = rs.draw_groups(12, fed.clock, (1, 1, 1))
    return fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def test_unshare_leaves_the_record_on_the_device_and_erase_does_not(fed):
    user = int(fed.world.shared.client[0])
    lent = fed.lent(user)
    back, gone = fed.apply(rs.Unshare(lent)), fed.apply(rs.Erase(lent))
    for after in (back, gone):
        assert not bool(after.world.shared.among(lent).any())
    assert bool(lent.among(back.now.vault.holdings.records).all())
    assert not bool(lent.among(gone.now.vault.holdings.records).any())
    assert len(fed.lent(user)) == len(lent), "the value before is untouched"


def test_retraining_after_an_erasure_equals_never_having_had_the_records(fed):
    user = int(fed.world.shared.client[0])
    lent = fed.lent(user)
    forgot = fed.method.unlearn(fed.run(5), rs.Erase(lent))
    never = fed.apply(rs.Erase(lent)).run(5)
    assert params.digest(forgot.now.state.public) == params.digest(never.now.state.public)
    assert params.digest(forgot.now.vault.private) == params.digest(never.now.vault.private)
    with_them = fed.run(5)
    assert params.digest(forgot.now.state.public) != params.digest(with_them.now.state.public)


def test_a_withdrawn_person_is_neither_trained_nor_shown_anything(fed):
    user = int(fed.world.shared.client[0])
    left = fed.apply(rs.Withdraw(user)).run(3)
    assert not bool((left.now.vault.holdings.records.client == user).any())
    assert not bool((left.world.shared.client == user).any())
    with pytest.raises(rs.ConsentError, match="withdrawn"):
        left.recommend(user)
    with pytest.raises(rs.ConsentError, match="not a member"):
        left.apply(rs.Withdraw(user))


def test_taking_back_what_was_never_lent_is_refused_and_changes_nothing(fed):
    holdings = fed.now.vault.holdings
    kept = holdings.records[(holdings.split == 0) & ~holdings.lent]
    with pytest.raises(rs.ConsentError, match="cannot be unshared"):
        fed.apply(rs.Unshare(kept[torch.tensor([0])]))


def test_recommendations_leave_out_what_a_person_has(fed):
    trained = fed.run(3)
    holdings = trained.now.vault.holdings
    own = holdings.records.of_clients(torch.tensor([0])).item.unique().tolist()
    shown = [int(r.item) for r in trained.recommend(0, k=15)]
    assert shown
    assert not set(shown) & set(own)
    assert len(shown) == 15 - len(own)
