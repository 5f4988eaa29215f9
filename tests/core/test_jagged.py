"""Flat rows of several owners, compared with plain Python lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.jagged import Shelf
from worlds import randoms

OWNERS = 5
owners = st.lists(st.integers(0, OWNERS - 1), max_size=30)
counts = st.lists(st.integers(0, 4), min_size=1, max_size=8)
cells = st.lists(st.tuples(st.integers(0, OWNERS - 1), st.integers(0, 6)), max_size=30)


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@given(owners)
def test_counts_are_how_often_each_owner_occurs(owner):
    assert jagged.counts(ints(owner), OWNERS).tolist() == [owner.count(o) for o in range(OWNERS)]


@given(counts)
def test_starts_and_owners_describe_consecutive_rows(count):
    flat = [o for o, n in enumerate(count) for _ in range(n)]
    assert jagged.owners_of(ints(count)).tolist() == flat
    assert jagged.starts(ints(count)).tolist() == [sum(count[:o]) for o in range(len(count))]


@given(owners)
def test_places_count_from_zero_inside_each_owner(owner):
    owner = sorted(owner)
    expected = [owner[:row].count(o) for row, o in enumerate(owner)]
    assert jagged.places(ints(owner), OWNERS).tolist() == expected


@given(owners)
def test_segment_sums_and_means_are_those_of_each_owners_rows(owner):
    values = randoms(len(owner), 2)
    total = jagged.segment_sum(values, ints(owner), OWNERS)
    mean = jagged.segment_mean(values, ints(owner), OWNERS)
    for o in range(OWNERS):
        mine = [values[row].tolist() for row in range(len(owner)) if owner[row] == o]
        for column in range(2):
            expected = sum(row[column] for row in mine)
            assert float(total[o, column]) == pytest.approx(expected, abs=1e-12)
            average = expected / len(mine) if mine else 0.0
            assert float(mean[o, column]) == pytest.approx(average, abs=1e-12)


@given(owners, st.integers(0, 3))
def test_shuffling_groups_rows_by_owner_and_loses_none(owner, seed):
    bits = Clock(seed).bits("order", torch.arange(len(owner)))
    order = jagged.shuffle(bits, ints(owner)).tolist()
    assert sorted(order) == list(range(len(owner)))
    assert [owner[row] for row in order] == sorted(owner)


def test_an_owners_shuffled_order_does_not_depend_on_the_crowd():
    clock, place = Clock(0), torch.arange(20)
    alone = jagged.shuffle(clock.bits("order", torch.tensor(3), place), torch.zeros_like(place))
    owner = torch.arange(5).repeat_interleave(20)
    bits = clock.bits("order", owner, place.repeat(5))
    together = jagged.shuffle(bits, owner)[60:80] - 60
    assert together.tolist() == alone.tolist()
    assert alone.tolist() != list(range(20))


@given(counts, st.data())
def test_taking_owners_gives_their_rows_in_the_order_asked_for(count, data):
    chosen = data.draw(st.lists(st.integers(0, len(count) - 1), max_size=6))
    rows = [(o, place) for o, n in enumerate(count) for place in range(n)]
    owner, at = jagged.take(jagged.starts(ints(count)), ints(count), ints(chosen))
    expected = [(new, (o, p)) for new, o in enumerate(chosen) for p in range(count[o])]
    assert [(int(o), rows[int(a)]) for o, a in zip(owner, at, strict=True)] == expected


@pytest.fixture(params=["table", "search"])
def both_ways(request, monkeypatch):
    """A shelf finds its pairs by a table or by a search; both must agree with the set."""
    if request.param == "search":
        monkeypatch.setattr(jagged, "_TABLE_CELLS", -1)
    return request.param


def test_a_shelf_holds_each_pair_once_and_finds_it(both_ways):
    @given(cells)
    def check(pairs):
        owner, item = ints([p[0] for p in pairs]), ints([p[1] for p in pairs])
        shelf = Shelf.of(owner, item, OWNERS, 7)
        expected = sorted(set(pairs))
        stands = list(zip(shelf.owner.tolist(), shelf.item.tolist(), strict=True))
        assert stands == expected
        assert len(shelf) == len(expected)
        assert (shelf.table is None) == (both_ways == "search")
        everything = [(o, i) for o in range(OWNERS) for i in range(7)]
        where = shelf.find(ints([p[0] for p in everything]), ints([p[1] for p in everything]))
        at = {pair: place for place, pair in enumerate(expected)}
        assert where.tolist() == [at.get(pair, -1) for pair in everything]

    check()
