"""Records and events: multisets of pairs, compared by digest."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
from rescind.core.world import Host
from rescind.errors import DataError

rows = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), min_size=0, max_size=20
)


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def made(triples) -> Records:
    return Records.of(*([t[column] for t in triples] for column in range(3)))


def listed(records: Records) -> list[tuple[int, int, int]]:
    columns = (records.client.tolist(), records.item.tolist(), records.time.tolist())
    return list(zip(*columns, strict=True))


@given(rows)
def test_sorting_is_by_client_then_item_then_time(triples):
    assert listed(made(triples).sorted()) == sorted(triples)


@given(rows, rows)
def test_what_is_taken_away_leaves_what_a_mask_keeps(one, two):
    records, other = made(one).sorted(), made(two)
    _, before = records.per_item, records.pairs()
    left = records.without(other)
    stays = [t for t in listed(records) if t[:2] not in {o[:2] for o in two}]
    assert len(left) == len(stays)
    counts = torch.bincount(ints([t[1] for t in stays]), minlength=len(records.per_item))
    assert torch.equal(left.per_item, counts)
    assert listed(left) == stays
    assert torch.equal(left.pairs(), before[~torch.isin(before, other.pairs())])
    assert listed(made(one).without(other)) == [t for t in one if t in stays], "unsorted records"


def test_two_holders_that_change_alike_have_one_memory():
    records, gone = made([(0, 1, 0), (1, 2, 0), (2, 1, 0)]), made([(1, 2, 0)])
    one, two = records.without(gone), records.without(gone)
    assert listed(one) == [(0, 1, 0), (2, 1, 0)]
    assert one.item.data_ptr() == two.item.data_ptr()
    seen = weakref.ref(one.item)
    del one, two
    gc.collect()
    assert seen() is None, "nothing keeps what nobody holds"


@given(rows, rows)
def test_among_asks_for_the_pair_whatever_the_time(one, two):
    pairs = {t[:2] for t in two}
    assert made(one).among(made(two)).tolist() == [t[:2] in pairs for t in one]


@given(rows, rows)
def test_adding_keeps_every_copy(one, two):
    assert listed(made(one) + made(two)) == one + two


@given(rows, st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_the_order(triples, chance):
    mixed = list(triples)
    chance.shuffle(mixed)
    assert made(triples).digest() == made(mixed).digest()


@given(rows, rows)
def test_two_digests_agree_just_when_the_multisets_do(one, two):
    assert (made(one).digest() == made(two).digest()) == (sorted(one) == sorted(two))


def test_without_the_key_a_digest_cannot_be_recomputed():
    records = made([(1, 2, 3)])
    keyed = records.digest(b"secret")
    assert keyed == records.digest(b"secret")
    assert len({keyed, records.digest(), records.digest(b"another")}) == 3


def test_columns_of_any_integer_kind_give_the_same_records():
    plain = Records.of([3, 1], [0, 2], [9, 8])
    arrays = Records.of(
        torch.from_numpy(np.array([3, 1], dtype=np.int32)),
        torch.tensor([0, 2], dtype=torch.uint8),
        torch.tensor([9, 8], dtype=torch.int16),
    )
    assert plain.digest() == arrays.digest()
    assert Records.of([3], [0]).time.tolist() == [0]


# The pair (0, 2**31) would be the same number as (1, 0): somebody else's record.
@pytest.mark.parametrize("columns", [([-1], [0]), ([0], [-1]), ([0], [2**31])])
def test_indices_that_are_none_are_refused(columns):
    with pytest.raises(DataError, match="are numbered 0 to"):
        Records.of(*columns)


def test_columns_of_different_length_are_refused():
    with pytest.raises(DataError, match="columns of one length"):
        Records.of([1, 2], [3])


@pytest.mark.parametrize("column", [[1.7], torch.tensor([1.7])])
def test_fractions_are_refused_not_cut_off(column):
    with pytest.raises(DataError):
        Records.of(column, [0])


def test_the_largest_allowed_pairs_do_not_collide():
    big = Records.of([0, 1, 2**31, 2**31], [2**31 - 1, 0, 0, 2**31 - 1])
    assert len(torch.unique(big.pairs())) == 4


def test_events_are_equal_just_when_kind_and_content_are():
    one, other = made([(0, 1, 2), (3, 4, 5)]), made([(3, 4, 5), (0, 1, 2)])
    assert Share(one) == Share(other)
    assert hash(Share(one)) == hash(Share(other))
    assert len({Share(one), Unshare(one), Erase(one), Share(other)}) == 3
    assert Join(1) != Withdraw(1)
    assert Join(1) != Join(2)
    assert Share(one) != "Share"


def test_a_keyed_event_digest_hides_the_client_who_left():
    assert Withdraw(3).digest(b"k") != Withdraw(3).digest()
    assert Withdraw(3).digest(b"k") == Withdraw(3).digest(b"k")


def block(triples, split, clients=5, items=5) -> Arrive:
    return Arrive(made(triples), torch.tensor(split, dtype=torch.int8), clients, items)


def test_blocks_are_equal_whatever_the_order_of_their_records():
    one = block([(0, 1, 5), (1, 0, 6)], [0, 2])
    assert one == block([(1, 0, 6), (0, 1, 5)], [2, 0])
    assert one != block([(0, 1, 5), (1, 0, 6)], [2, 0])
    assert one != block([(0, 1, 5), (1, 0, 6)], [0, 2], clients=6)
    assert one != block([(0, 1, 5), (1, 0, 6)], [0, 2], items=6)


def test_blocks_are_told_apart_by_which_copy_of_a_pair_is_held_out():
    # Copies of one pair at times 1 and 2: in one block the later is tested on, in the other the
    # earlier.
    later = block([(0, 1, 1), (0, 1, 2)], [0, 2])
    earlier = block([(0, 1, 2), (0, 1, 1)], [0, 2])
    assert later != earlier
    assert later == block([(0, 1, 2), (0, 1, 1)], [2, 0])


def test_hosting_other_data_is_another_event():
    def host(item: int) -> Host:
        return Host(3, Holdings.of(made([(3, item, 0)]), torch.tensor([0]), 4, 5))

    assert host(1) == host(1)
    assert host(1) != host(2)


@pytest.mark.parametrize("kind", [Share, Unshare, Erase])
@pytest.mark.parametrize("given", [[("L0005", "a60")], "L0005"])
def test_an_event_of_anything_but_records_says_how_they_are_made(kind, given):
    with pytest.raises(DataError, match=rf"{kind.__name__} takes records, .*fed\.records\(user"):
        kind(given)
    kind(made([(0, 1, 0)]))  # the control
