"""The synthetic dataset: deterministic, with exact sizes, and with personal tastes."""

import numpy as np
import pytest

from rescind.data import load
from rescind.data.catalogue import expected_digests
from rescind.errors import ConfigError


def test_the_default_dataset_is_always_the_same():
    assert load("synthetic").digest == expected_digests()["synthetic"]


@pytest.mark.parametrize(
    ("users", "items", "interactions"),
    [(300, 200, 9000), (50, 20, 500), (7, 16, 7), (1000, 50, 25000)],
)
def test_sizes_are_exact_and_no_user_picks_an_item_twice(users, items, interactions):
    data = load("synthetic", users=users, items=items, interactions=interactions)
    assert (len(data), len(data.users), len(data.items)) == (interactions, users, items)
    assert len(np.unique(data.user * items + data.item)) == interactions
    assert np.bincount(data.user, minlength=users).min() >= 1
    order = np.lexsort((data.time, data.user))
    assert np.array_equal(order, np.arange(interactions))


def test_chunks_change_memory_only(monkeypatch):
    whole = load("synthetic").digest
    monkeypatch.setattr("rescind.data.sources.synthetic._CHUNK", 500)
    assert load("synthetic").digest == whole


def test_some_items_are_popular_and_some_users_active():
    data = load("synthetic")
    by_item = np.sort(np.bincount(data.item, minlength=200))[::-1]
    by_user = np.sort(np.bincount(data.user, minlength=300))[::-1]
    assert by_item[:40].sum() > 0.35 * len(data)  # a fifth of the items; without skew 0.2
    assert by_user[:60].sum() > 0.3 * len(data)


def test_tastes_drift():
    # similarity of a user's topics in the first and the last third of the time
    def similarity(drift):
        data = load("synthetic", users=500, interactions=20000, drift=drift)
        topic = np.asarray([int(title.rsplit(" ", 1)[1]) for title in data.titles])[data.item]
        edges = np.quantile(data.time, [1 / 3, 2 / 3])
        early, late = np.zeros((2, 500, 8))
        np.add.at(early, (data.user[data.time < edges[0]], topic[data.time < edges[0]]), 1)
        np.add.at(late, (data.user[data.time > edges[1]], topic[data.time > edges[1]]), 1)
        both = (early.sum(1) > 3) & (late.sum(1) > 3)
        early, late = early[both], late[both]
        norms = np.linalg.norm(early, axis=1) * np.linalg.norm(late, axis=1)
        return ((early * late).sum(1) / norms).mean()

    assert similarity(0.0) > similarity(1.0) + 0.1


@pytest.mark.parametrize(
    "arguments",
    [{"users": 0}, {"items": 3}, {"interactions": 10}, {"interactions": 10**6}, {"drift": 2}],
)
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ConfigError, match="must"):
        load("synthetic", **arguments)
