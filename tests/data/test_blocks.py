"""Time blocks: F3CRec's Table 1, and the rules for it."""

from dataclasses import replace

import numpy as np
import pytest

from rescind.data import Dataset, load
from rescind.data.blocks import arrange, block_split, by_time, chronological, first_copies, tied
from rescind.data.canonical import read_table
from rescind.errors import ConfigError, DataError

# F3CRec Table 1: rows of each block, users and items accumulated.
TABLE_1 = {
    "ml-100k": [(58771, 587, 1136), (13060, 697, 1146), (13060, 827, 1148), (13062, 943, 1152)],
    "ml-latest-small": [
        (48665, 374, 1982),
        (10814, 466, 2189),
        (10814, 543, 2250),
        (10816, 609, 2269),
    ],
    "lastfm-2k": [
        (41415, 834, 4112),
        (9203, 971, 4188),
        (9203, 1107, 4239),
        (9204, 1165, 4259),
    ],
}


def table(data):
    """Return rows per block, and users and items seen so far, which must be a prefix of the ids."""
    lines = []
    for block in range(4):
        seen = data.block <= block
        users, items = np.unique(data.user[seen]), np.unique(data.item[seen])
        assert users.tolist() == list(range(len(users)))
        assert items.tolist() == list(range(len(items)))
        lines.append((int((data.block == block).sum()), len(users), len(items)))
    return lines


@pytest.mark.data
@pytest.mark.parametrize("variant", ["blocks", "f3crec"])
@pytest.mark.parametrize("name", ["ml-100k", "ml-latest-small"])
def test_table_1_of_f3crec_comes_out_exactly(data_folder, name, variant):
    assert table(load(name, variant=variant)) == TABLE_1[name]


@pytest.mark.data
def test_table_1_of_f3crec_for_lastfm_up_to_ties(data_folder):
    ours, theirs = table(load("lastfm-2k", variant="f3crec")), TABLE_1["lastfm-2k"]
    assert [line[0] for line in ours] == [line[0] for line in theirs]
    assert ours[-1] == theirs[-1]
    # Times are mostly the first of a month, so the order of equal times is not known.
    assert np.abs(np.asarray(ours) - np.asarray(theirs)).max() <= 10


@pytest.mark.data
def test_table_1_of_f3crec_for_lastfm_with_the_authors_own_sort(data_folder):
    data = load("lastfm-2k", variant="authors")
    assert table(data) == TABLE_1["lastfm-2k"]
    blocks = load("lastfm-2k", variant="blocks")
    rows = [
        sorted(zip(d.users[d.user], d.items[d.item], d.time, strict=True)) for d in (data, blocks)
    ]
    assert rows[0] == rows[1]
    # as many pairs as in the drawn split: only which pairs of a month are held out differs
    ours, once = block_split(data, data.block, seed=0), first_copies(data, data.block)
    for block in range(4):
        at = (data.block == block) & once
        assert np.bincount(data.split[at]).tolist() == np.bincount(ours[at]).tolist()


@pytest.mark.data
def test_the_filtered_lastfm_is_the_given_one(data_folder):
    given = read_table(data_folder / "lastfm-2k" / "f3crec_5core.parquet")
    whole = load("lastfm-2k")
    data = load("lastfm-2k", variant="f3crec")
    theirs = zip(
        given["user"].astype(str), whole.items[given["item"]], given["timestamp"], strict=True
    )
    ours = zip(data.users[data.user], data.items[data.item], data.time, strict=True)
    assert sorted(theirs) == sorted(ours)


@pytest.mark.data
def test_the_authors_split_of_ml_100k(data_folder):
    data = load("ml-100k", variant="f3crec")
    # the protocol table of F3CRec's published task files: train, valid, test by block
    expected = [(46552, 6078, 6141), (10298, 1371, 1391), (10274, 1382, 1404), (10284, 1384, 1394)]
    for block, numbers in enumerate(expected):
        assert tuple(np.bincount(data.split[data.block == block])) == numbers


@pytest.mark.data
def test_our_split_of_later_blocks_is_the_authors_up_to_ties(data_folder):
    data = load("ml-100k", variant="f3crec")
    ours = block_split(data, data.block, seed=0)
    for block in range(4):
        rows = data.block == block
        assert np.bincount(ours[rows]).tolist() == np.bincount(data.split[rows]).tolist()
    # users rate many films in one second, so rows may change places, their times may not
    later = data.select(data.block > 0)
    times = [
        np.stack((later.user, later.block, split, later.time))[
            :, np.lexsort((later.time, split, later.block, later.user))
        ]
        for split in (ours[data.block > 0], later.split)
    ]
    assert np.array_equal(*times)


def test_sizes_follow_the_recipe(rows):
    data = rows(*[(0, i, 100 - i) for i in range(11)])
    # 11 rows: int(6.6) = 6, int(4.4 / 3) = 1, 1, and 3 remain; times run backwards
    assert chronological(data).tolist() == [3, 3, 3, 2, 1, 0, 0, 0, 0, 0, 0]


def all_at_once(users=200, items=40, time=7):
    """Return a dataset in which everybody took the same items at one time, rows sorted by id."""
    user, item = np.divmod(np.arange(users * items), items)
    return Dataset(
        name="month",
        user=user,
        item=item,
        rating=None,
        time=np.full(users * items, time),
        users=np.arange(users).astype(str),
        items=np.arange(items).astype(str),
    )


def by_row(dataset, seed=0):
    """Return the rule that `by_time` replaced: equal times in the order of rows."""
    return np.argsort(dataset.time, kind="stable")


@pytest.mark.parametrize("rule", [by_time, by_row])
def test_blocks_of_equal_times_do_not_follow_ids(rule, monkeypatch):
    monkeypatch.setattr("rescind.data.blocks.by_time", rule)
    data = all_at_once()
    last = data.user[chronological(data) == 3]
    # 1068 of 8000 rows; a mean of users 0 to 199 has a standard error of 1.8 around 99.5
    assert (abs(last.mean() - 99.5) < 7) == (rule is by_time)


def test_a_split_of_equal_times_does_not_follow_ids():
    data = all_at_once()
    block = np.ones(len(data), dtype=np.int8)
    held = [data.item[block_split(data, block, seed) == 2] for seed in (0, 1)]
    # 4 test items of 40 each, 800 in all; by row order their mean would be 37.5 or, reversed, 1.5
    assert [len(items) for items in held] == [800, 800]
    assert all(abs(items.mean() - 19.5) < 2 for items in held)
    # what is held out depends on the seed of the run, which rows are first does not matter
    assert not np.array_equal(*held)
    mixed = 7919 * np.arange(len(data)) % len(data)
    labels = block_split(data.select(mixed), block, 0)
    assert np.array_equal(labels, block_split(data, block, 0)[mixed])


def test_blocks_and_order_do_not_depend_on_the_order_of_rows():
    data = all_at_once(20, 30)
    mixed = data.select(7919 * np.arange(len(data)) % len(data))
    assert arrange(mixed).digest == arrange(data).digest


def test_many_ties_are_named(caplog):
    data = all_at_once(20, 30)
    block = np.ones(len(data), dtype=np.int8)
    block_split(data, block, 0)
    assert "'month': 100 %" in caplog.text
    caplog.clear()
    # an item more than once at one time is no tie, nor are two users at one time
    exact = replace(data, time=np.arange(len(data)) % 30)
    assert not tied(exact.select(np.r_[:600, :600]), np.ones(1200, dtype=np.int8)).any()
    block_split(exact, block, 0)
    assert not caplog.text


@pytest.mark.data
def test_test_artists_of_lastfm_are_not_those_with_the_highest_ids(data_folder):
    data = load("lastfm-2k", variant="f3crec")
    split, later = block_split(data, data.block, seed=0), data.block > 0
    moments: dict = {}
    for row in np.flatnonzero(later):
        found = moments.setdefault((data.user[row], data.block[row], data.time[row]), ([], [], []))
        found[split[row]].append(int(data.items[data.item[row]]))
    above = [min(test) > max(train) for train, _, test in moments.values() if train and test]
    # .78 when rows decided; drawing at random gives .21 at these sizes, standard error .017
    assert len(above) > 500
    assert 0.15 < np.mean(above) < 0.27


def test_blocks_need_times(rows):
    with pytest.raises(DataError, match="has no times"):
        chronological(rows((0, 0, 0), (0, 1, 0)))


def test_impossible_blocks_are_refused(rows):
    with pytest.raises(ConfigError, match="base must lie in"):
        chronological(rows((0, 0, 1)), base=0.0)


def test_later_blocks_are_split_by_time(rows):
    # one user, block 1 with 10 pairs: 1 test (the newest), ceil(9 / 9) = 1 valid
    data = rows(*[(0, i, 100 - i) for i in range(10)])
    labels = block_split(data, np.ones(10, dtype=np.int8), seed=0)
    assert labels.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_fewer_than_three_pairs_are_all_train(rows):
    data = rows((0, 0, 1), (0, 1, 2), (0, 1, 3), (1, 0, 1), (1, 1, 2), (1, 2, 3))
    labels = block_split(data, np.ones(6, dtype=np.int8), seed=0)
    # user 0 has two distinct pairs in three rows; user 1 has three: 1 test, ceil(2 / 9) = 1 valid
    assert labels.tolist() == [0, 0, 0, 0, 1, 2]


def test_duplicate_pairs_count_once_per_block(rows):
    data = rows((0, 0, 1), (0, 0, 2), (0, 1, 3), (0, 0, 4))
    block = np.asarray([0, 0, 0, 1], dtype=np.int8)
    assert first_copies(data, block).tolist() == [True, False, True, True]


def test_after_arrange_the_ids_seen_so_far_are_a_prefix():
    data = arrange(load("synthetic"))
    assert (np.diff(data.block) >= 0).all()
    assert (np.diff(data.time) >= 0).all()
    assert table(data)[-1][1:] == (len(data.users), len(data.items))
