"""Simulated users: what they lend, and what they withdraw."""

from __future__ import annotations

import pytest
import torch

from rescind.core.clock import Clock
from rescind.core.holdings import Holdings
from rescind.core.records import Records, Share, Withdraw
from rescind.data.simulated_lending import ALL, NOTHING, PART, draw_groups, draw_regret, draw_share
from rescind.errors import ConfigError
from worlds import held, hoarder, pairs, silent, tiny_holdings


def sizes(groups: torch.Tensor) -> list[int]:
    return [int((groups == group).sum()) for group in (ALL, PART, NOTHING)]


@pytest.mark.parametrize(
    ("clients", "ratio", "expected"),
    [
        (100, (1, 2, 7), [10, 20, 70]),
        (943, (1, 2, 7), [94, 189, 660]),  # 94.3 and 282.9 users, cut at 94 and 283
        (7, (1, 1, 1), [2, 3, 2]),  # cut at 2.33 and 4.67
        (10, (0, 0, 1), [0, 0, 10]),
        (10, (1, 0, 0), [10, 0, 0]),
        (0, (1, 2, 7), [0, 0, 0]),
    ],
)
def test_groups_have_the_sizes_of_the_ratio(clients, ratio, expected):
    assert sizes(draw_groups(clients, Clock(0), ratio)) == expected


def test_all_users_are_equally_likely_to_share_everything():
    times = sum((draw_groups(10, Clock(seed)) == ALL).long() for seed in range(1000))
    # One of ten each time: expected 100 with a standard deviation of 9.5.
    assert int(times.sum()) == 1000
    assert int(times.min()) > 60
    assert int(times.max()) < 140


@pytest.mark.parametrize("ratio", [(1, 2), (1, -1, 7), (0, 0, 0)])
def test_a_ratio_has_three_parts_that_are_not_negative(ratio):
    with pytest.raises(ConfigError, match="all : part : nothing"):
        draw_groups(10, Clock(0), ratio)


def test_users_lend_the_fraction_of_their_group_of_their_training_records(tiny):
    groups = torch.tensor([ALL, PART, NOTHING, PART, PART, ALL], dtype=torch.int8)
    event = draw_share(tiny, groups, Clock(0), part=0.5)
    lent, own = pairs(event.records), held(tiny, "own")
    for client in range(6):
        mine = {p for p in own if p[0] == client}
        theirs = {p for p in lent if p[0] == client}
        assert theirs <= mine
        if client == 0:
            assert theirs == mine
        if client in (2, silent()):
            assert not theirs
    # The hoarder trains on 11 items: half is 5.5, rounded to the even 6.
    assert len([p for p in lent if p[0] == hoarder()]) == 6
    assert pairs(tiny.apply(event).records[tiny.apply(event).lent]) == lent


def test_shared_records_carry_their_times_and_all_their_copies():
    twice = Records.of([0, 0, 0], [3, 3, 3], [10, 20, 30])
    held_out = torch.tensor([0, 0, 2])
    holdings = Holdings.of(twice, held_out, 1, 5)
    event = draw_share(holdings, torch.tensor([ALL]), Clock(0))
    assert event.records.time.tolist() == [10, 20]


def test_part_zero_lends_nothing_and_part_one_everything(tiny):
    groups = torch.full((6,), PART)
    assert len(draw_share(tiny, groups, Clock(0), part=0.0).records) == 0
    assert pairs(draw_share(tiny, groups, Clock(0), part=1.0).records) == held(tiny, "own")
    with pytest.raises(ConfigError, match=r"between 0 and 1; got 1\.5"):
        draw_share(tiny, groups, Clock(0), part=1.5)


def test_what_a_user_lends_does_not_depend_on_other_users(tiny):
    groups = torch.full((6,), PART)
    event = draw_share(tiny, groups, Clock(3), part=0.4)
    left = draw_share(tiny.apply(Withdraw(0)), groups, Clock(3), part=0.4)
    assert pairs(left.records) == {p for p in pairs(event.records) if p[0] != 0}


def test_each_item_of_a_partial_sharer_is_equally_likely_to_be_lent():
    records = Records.of([0] * 10, range(10))
    holdings = Holdings.of(records, torch.zeros(10), 1, 10)
    count = torch.zeros(10)
    for seed in range(500):
        count[draw_share(holdings, torch.tensor([PART]), Clock(seed)).records.item] += 1
    # Three of ten each time: expected 150 with a standard deviation of 10.2.
    assert int(count.sum()) == 1500
    assert float(count.min()) > 105
    assert float(count.max()) < 195


def test_users_with_regret_withdraw_all_they_lent_and_the_others_nothing():
    holdings = tiny_holdings(clients=22, items=30)
    shared = draw_share(holdings, torch.full((22,), ALL), Clock(0)).records
    wanted = draw_regret(shared, Clock(1), ratio=0.3)
    users = set(wanted.client.tolist())
    assert len(users) == 6  # of 21 sharers (one has nothing to lend), .3 x 21 = 6.3
    assert pairs(wanted) == {p for p in pairs(shared) if p[0] in users}
    other = draw_regret(shared, Clock(2), ratio=0.3)
    assert set(other.client.tolist()) != users


def test_a_ratio_of_zero_or_one_withdraws_nothing_or_everything(tiny):
    shared = Share(tiny.records).records
    assert len(draw_regret(shared, Clock(0), 0.0)) == 0
    assert pairs(draw_regret(shared, Clock(0), 1.0)) == pairs(shared)
    assert len(draw_regret(Records.none(), Clock(0), 0.5)) == 0
    with pytest.raises(ConfigError, match=r"got -0\.1"):
        draw_regret(shared, Clock(0), -0.1)
