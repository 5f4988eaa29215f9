"""Splits are decided per person, filters until nothing changes."""

import numpy as np
import pytest

from rescind.data import k_core, load, min_user, random_split
from rescind.errors import ConfigError, DataError


def by_pair(dataset, labels):
    keys = zip(dataset.users[dataset.user], dataset.items[dataset.item], strict=True)
    return dict(zip(keys, labels.tolist(), strict=True))


def test_a_split_of_8_1_1_rounds_per_user(rows):
    # 25 pairs: 2.5 rounds up to 3 test and 3 valid; 4 pairs: 0.4 rounds to none
    data = rows(*[(0, i, 1) for i in range(25)], *[(1, i, 1) for i in range(4)])
    labels = random_split(data, seed=3)
    assert np.bincount(labels[data.user == 0], minlength=3).tolist() == [19, 3, 3]
    assert np.bincount(labels[data.user == 1], minlength=3).tolist() == [4, 0, 0]


def test_a_users_split_does_not_depend_on_anybody_else():
    data = load("synthetic")
    everybody = by_pair(data, random_split(data, seed=1))
    few = data.select(data.user % 7 == 3).compact()  # ids are renumbered here
    for pair, label in by_pair(few, random_split(few, seed=1)).items():
        assert everybody[pair] == label


def test_a_split_does_not_depend_on_the_order_of_rows():
    data = load("synthetic")
    turned = data.select(np.arange(len(data))[::-1])
    assert by_pair(data, random_split(data, 5)) == by_pair(turned, random_split(turned, 5))


def test_another_seed_gives_another_split():
    data = load("synthetic")
    assert (random_split(data, 1) != random_split(data, 2)).mean() > 0.1


def test_copies_of_a_pair_get_the_same_label(rows):
    data = rows(*[(0, i % 10, i) for i in range(30)])
    labels = random_split(data, seed=0)
    assert all(len(set(labels[data.item == i].tolist())) == 1 for i in range(10))
    assert np.bincount(labels).tolist() == [24, 3, 3]  # 8, 1 and 1 pairs of three copies


@pytest.mark.parametrize("ratio", [(0, 0, 0), (8, -1, 1), (8, 1)])
def test_an_impossible_ratio_is_refused(rows, ratio):
    with pytest.raises(ConfigError, match="three numbers"):
        random_split(rows((0, 0, 1)), 0, ratio)


def test_a_ratio_never_hands_out_more_than_there_is(rows):
    assert random_split(rows((0, 0, 1)), 0, (0, 1, 1)).tolist() == [2]


def test_k_core_is_repeated_until_nothing_changes(rows):
    # Item 2 has one row; without it user 2 has one; without user 2 item 1 still has two.
    data = rows((0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1), (2, 1, 1), (2, 2, 1))
    kept = k_core(data, 2)
    assert kept.users.tolist() == ["u0", "u1"]
    assert kept.items.tolist() == ["i0", "i1"]
    assert len(kept) == 4


def test_min_user_counts_users_only(rows):
    data = rows((0, 0, 1), (0, 1, 1), (1, 0, 1))
    kept = min_user(data, 2)
    assert (kept.users.tolist(), kept.items.tolist()) == (["u0"], ["i0", "i1"])


def test_a_filter_that_leaves_nothing_says_so(rows):
    with pytest.raises(DataError, match="smaller k"):
        k_core(rows((0, 0, 1)), 5)
