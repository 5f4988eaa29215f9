"""Splits are drawn per pair; filters repeat until nothing changes."""

import numpy as np
import pytest

from rescind.data import k_core, load, min_user, random_split
from rescind.errors import ConfigError, DataError


def by_pair(dataset, labels):
    keys = zip(dataset.users[dataset.user], dataset.items[dataset.item], strict=True)
    return dict(zip(keys, labels.tolist(), strict=True))


def test_a_split_of_8_1_1_has_these_fractions_and_differs_between_users():
    data = load("synthetic", users=400, items=200, interactions=20_000)
    labels = random_split(data, seed=3)
    fractions = np.bincount(labels, minlength=3) / len(labels)
    # 20,000 draws: a fraction of .1 has a standard deviation of .0021.
    assert fractions == pytest.approx([0.8, 0.1, 0.1], abs=0.009)
    held = np.bincount(data.user[labels == 2], minlength=400)
    expected = np.bincount(data.user, minlength=400) * 0.1
    assert (held != np.round(expected)).mean() > 0.3


def test_a_users_split_does_not_depend_on_other_users():
    data = load("synthetic")
    all_users = by_pair(data, random_split(data, seed=1))
    few = data.select(data.user % 7 == 3).compact()  # ids are renumbered here
    for pair, label in by_pair(few, random_split(few, seed=1)).items():
        assert all_users[pair] == label


def test_a_split_does_not_depend_on_the_order_of_rows():
    data = load("synthetic")
    reverse = data.select(np.arange(len(data))[::-1])
    assert by_pair(data, random_split(data, 5)) == by_pair(reverse, random_split(reverse, 5))


def test_copies_of_a_pair_get_the_same_label(rows):
    data = rows(*[(0, i % 10, i) for i in range(30)])
    labels = random_split(data, seed=0)
    assert all(len(set(labels[data.item == i].tolist())) == 1 for i in range(10))
    assert int((labels == 0).sum()) % 3 == 0  # three copies of each pair


@pytest.mark.parametrize("ratio", [(0, 0, 0), (8, -1, 1), (8, 1)])
def test_an_impossible_ratio_is_refused(rows, ratio):
    with pytest.raises(ConfigError, match="three numbers"):
        random_split(rows((0, 0, 1)), 0, ratio)


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


def test_a_filter_that_leaves_nothing_is_an_error(rows):
    with pytest.raises(DataError, match="smaller k"):
        k_core(rows((0, 0, 1)), 5)
