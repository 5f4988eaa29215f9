"""What devices hold, and what every event does to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rescind.core.cohort import Graph, Mail
from rescind.core.holdings import Holdings
from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError
from worlds import held, pairs, tiny_holdings

TRAIN, VALID, TEST = 0, 1, 2


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def hold(*rows, clients=4, items=8) -> Holdings:
    """Holdings of (client, item, split) rows, at times 0, 1, 2, ..."""
    records = Records.of([r[0] for r in rows], [r[1] for r in rows], range(len(rows)))
    return Holdings.of(records, ints([r[2] for r in rows]), clients, items)


def ask(*wanted) -> Records:
    return Records.of([p[0] for p in wanted], [p[1] for p in wanted])


@pytest.fixture
def few() -> Holdings:
    """Client 0 has items 3, 1, 5 (and 1 twice), client 1 has 1, client 2 only a test item."""
    return hold((1, 1, TRAIN), (0, 3, TRAIN), (0, 1, TRAIN), (2, 7, TEST), (0, 1, TRAIN),
                (0, 5, TRAIN), (0, 2, VALID))  # fmt: skip


@pytest.mark.parametrize("client", range(6))
def test_lots_that_are_taken_over_are_those_made_anew(client):
    before, names = tiny_holdings(), ("own", "unshared", "valid", "test")
    mine = before.records[(before.records.client == client) & (before.split == TRAIN)]
    if len(mine):
        before = before.apply(Share(mine))
    for name in names:
        before.lot(name)
    for event in [Withdraw(client), *([Erase(mine[:1]), Unshare(mine[1:])] if len(mine) else [])]:
        taken, anew = before.apply(event), replace(before.apply(event))
        for name in names:
            for one, two in zip(taken.lot(name), anew.lot(name), strict=True):
                assert torch.equal(one, two)


def test_lots_hold_distinct_items_sorted_by_client_and_item(few):
    first, count, item = few.lot("own")
    assert (first.tolist(), count.tolist(), item.tolist()) == (
        [0, 3, 4, 4],
        [3, 1, 0, 0],
        [1, 3, 5, 1],
    )
    assert held(few, "valid") == {(0, 2)}
    assert held(few, "test") == {(2, 7)}


def test_a_cohort_is_in_the_order_asked_for(few):
    cohort = few.cohort(ints([1, 3, 0]), held="test")
    assert cohort.own.owner.tolist() == [0, 2, 2, 2]
    assert cohort.own.item.tolist() == [1, 1, 3, 5]
    assert cohort.own.count.tolist() == [1, 0, 3]
    assert cohort.held.count.tolist() == [0, 0, 0]
    assert cohort.weight.tolist() == [1, 1, 1]
    assert len(cohort) == 3
    assert cohort.items == 8


def test_available_are_members_with_something_to_train_on(few):
    assert few.available.tolist() == [True, True, False, False]
    lent = few.apply(Share(ask((1, 1))))
    assert lent.available.tolist() == [True, True, False, False]
    assert lent.keeps.tolist() == [True, False, False, False]


def test_sharing_marks_all_copies_of_a_pair_and_leaves_the_device_its_own(few):
    lent = few.apply(Share(ask((0, 1))))
    assert pairs(lent.records[lent.lent]) == {(0, 1)}
    assert int(lent.lent.sum()) == 2
    assert held(lent, "own") == held(few, "own")
    assert held(lent, "unshared") == held(few, "own") - {(0, 1)}
    assert not few.lent.any()


def test_what_is_trained_on_leaves_out_the_lent_when_asked_to(few):
    lent = few.apply(Share(ask((0, 1), (0, 3))))
    cohort = lent.cohort(ints([0, 1]), include_lent=False)
    assert cohort.train.item.tolist() == [5, 1]
    assert cohort.own.item.tolist() == [1, 3, 5, 1]


def test_unsharing_takes_the_mark_away_and_nothing_else(few):
    lent = few.apply(Share(ask((0, 1), (0, 3))))
    back = lent.apply(Unshare(ask((0, 1))))
    assert pairs(back.records[back.lent]) == {(0, 3)}
    assert held(back, "own") == held(few, "own")
    assert back.apply(Unshare(ask((0, 3)))).digest() == few.digest()


@pytest.mark.parametrize(("event", "verb"), [(Share, "shared"), (Erase, "erased"),
                                             (Unshare, "unshared")])  # fmt: skip
def test_a_request_for_what_is_not_held_says_what_is_and_changes_nothing(few, event, verb):
    before = few.digest()
    text = (
        rf"client 1 does not hold item 3, so it cannot be {verb}\. "
        r"Nothing was changed\."
    )
    with pytest.raises(ConsentError, match=text):
        few.apply(event(ask((0, 1), (1, 3))))
    assert few.digest() == before


def test_unsharing_what_was_never_lent_says_what_is(few):
    lent = few.apply(Share(ask((0, 3))))
    text = r"client 0 does not share item 1, so it cannot be unshared"
    with pytest.raises(ConsentError, match=text):
        lent.apply(Unshare(ask((0, 3), (0, 1))))
    with pytest.raises(ConsentError, match="holds out item 2 for evaluation, so it cannot"):
        few.apply(Share(ask((0, 2))))


def test_a_request_cannot_reach_another_clients_record_by_a_large_item(few):
    # (0, 2**31) as one number is (1, 0): client 1's item 0, were it packed without a check.
    other = hold((1, 0, TRAIN))
    with pytest.raises((ConsentError, DataError)):
        other.apply(Share(Records.of([0], [2**31])))


def test_withdrawing_takes_everything_of_one_client_and_keeps_the_numbering(few):
    left = few.apply(Withdraw(0))
    assert left.members.tolist() == [False, True, True, True]
    assert pairs(left.records) == {(1, 1), (2, 7)}
    assert left.clients == few.clients
    assert left.available.tolist() == [False, True, False, False]
    assert few.members.all()


@pytest.mark.parametrize("client", [-1, 4])
def test_a_stranger_cannot_withdraw(few, client):
    with pytest.raises(ConsentError, match=f"client {client} is not a member"):
        few.apply(Withdraw(client))


def test_joining_again_gives_membership_and_no_data(few):
    again = few.apply(Withdraw(0)).apply(Join(0))
    assert again.members.all()
    assert held(again, "own") == {(1, 1)}


def test_a_newcomer_takes_the_next_number_and_no_other(few):
    assert few.apply(Join(4)).members.tolist() == [True] * 5
    for client in (5, -1):
        with pytest.raises(ConsentError, match="next free index is 4"):
            few.apply(Join(client))


def arrive(*rows, clients=4, items=8) -> Arrive:
    records = Records.of([r[0] for r in rows], [r[1] for r in rows], [100] * len(rows))
    return Arrive(records, ints([r[2] for r in rows]), clients, items)


def test_a_new_block_drops_old_training_records_and_keeps_held_out_ones(few):
    later = few.apply(arrive((0, 6, TRAIN), (3, 0, TRAIN), (1, 4, TEST), (2, 2, VALID)))
    assert held(later, "own") == {(0, 6), (3, 0)}
    assert pairs(later.records) == {(0, 6), (3, 0), (1, 4), (2, 2), (2, 7), (0, 2)}
    assert held(later, "test") == {(1, 4)}
    assert held(later, "test", block=0) == {(2, 7)}
    assert held(later, "valid", block=0) == {(0, 2)}
    assert later.available.tolist() == [True, False, False, True]
    assert later.now == 1
    assert later.records.client.tolist() == sorted(later.records.client.tolist())


def test_a_device_notes_what_it_lent_before_and_can_take_it_back(few):
    later = few.apply(Share(ask((0, 1), (1, 1)))).apply(arrive((0, 6, TRAIN)))
    assert pairs(later.records[later.lent]) == {(0, 1), (1, 1)}
    assert held(later, "own") == {(0, 6)}
    assert held(later, "unshared") == {(0, 6)}
    back = later.apply(Unshare(ask((1, 1))))
    assert pairs(back.records[back.lent]) == {(0, 1)}


def test_no_lot_contains_the_note_of_an_old_loan(few):
    later = few.apply(Share(ask((0, 1)))).apply(arrive((0, 6, TRAIN)))
    for name in ("own", "unshared", "valid", "test"):
        assert (0, 1) not in held(later, name, block=0)
    with pytest.raises(ConfigError):
        held(later, "train", block=0)


def test_a_loan_of_an_old_block_that_is_taken_back_leaves_no_record(few):
    later = few.apply(Share(ask((0, 1)))).apply(arrive((0, 6, TRAIN)))
    back = later.apply(Unshare(ask((0, 1))))
    assert (0, 1) not in pairs(back.records)
    with pytest.raises(ConsentError):  # the device dropped it with the block
        back.apply(Share(ask((0, 1))))


def test_a_block_brings_new_clients_and_items_but_nobody_back_who_left(few):
    later = few.apply(Withdraw(0)).apply(
        arrive((0, 6, TRAIN), (4, 9, TRAIN), (1, 8, TEST), clients=5, items=10)
    )
    assert later.members.tolist() == [False, True, True, True, True]
    assert (0, 6) not in pairs(later.records)
    assert held(later, "own") == {(4, 9)}
    assert (later.clients, later.items) == (5, 10)


def test_a_pair_that_comes_again_is_not_lent_by_an_old_loan(few):
    later = few.apply(Share(ask((0, 1)))).apply(arrive((0, 1, TRAIN)))
    assert held(later, "own") == {(0, 1)}
    assert int(later.lent.sum()) == 2  # both copies of the old block, not the new one
    assert len(later.records[later.records.among(ask((0, 1)))]) == 3


@pytest.mark.parametrize("sizes", [(3, 8), (4, 7)])
def test_a_block_cannot_shrink_the_world(few, sizes):
    with pytest.raises(DataError, match="cannot shrink"):
        few.apply(arrive((0, 1, TRAIN), clients=sizes[0], items=sizes[1]))


@pytest.mark.parametrize("row", [(9, 0, TRAIN), (0, 9, TRAIN), (0, 0, 3), (0, 0, -1)])
def test_rows_beyond_the_sizes_and_unknown_labels_are_data_errors(few, row):
    with pytest.raises(DataError):
        few.apply(arrive(row))
    with pytest.raises(DataError):
        hold(row)


def test_a_label_is_needed_for_every_record():
    with pytest.raises(DataError, match="2 records need as many split labels"):
        Holdings.of(ask((0, 1), (0, 2)), ints([0]), 4, 8)


def test_a_digest_of_holdings_sees_everything_held(few):
    same = [(0, 0, TRAIN)]
    assert hold(*same, items=8).digest() != hold(*same, items=9).digest()
    assert few.digest() != few.apply(arrive()).digest()
    one, two = (graph_holdings(value).digest() for value in (1.0, 2.0))
    assert one != two


def test_letters_reach_their_recipients_and_the_others_get_none():
    mail = Mail(ints([7, 2]), {"bound": torch.tensor([[7.0], [2.0]])})
    letters = mail.to(ints([2, 5, 7, 9]))
    assert letters.values["bound"].tolist() == [[2.0], [0.0], [7.0], [0.0]]
    assert letters.values["has"].tolist() == [True, False, True, False]
    empty = Mail(ints([]), {"bound": torch.zeros(0, 1)}).to(ints([1, 2]))
    assert empty.values["bound"].tolist() == [[0.0], [0.0]]
    assert empty.values["has"].tolist() == [False, False]


def small_graph(value: float = 1.0) -> Graph:
    """Nodes 10..14: clients 0, 1, 0, 2, 1; edges 10-12 and 11-14; a feature on 12 and on 14."""
    return Graph(
        owner=ints([0, 1, 0, 2, 1]),
        index=ints([10, 11, 12, 13, 14]),
        edge=ints([[0, 2, 1, 4], [2, 0, 4, 1]]),
        node=ints([2, 4]),
        feature=ints([5, 6]),
        value=torch.tensor([value, 4.0]),
        label=ints([0, 1, 0, -1, 1]),
        features=7,
        classes=2,
    )


def graph_holdings(value: float = 1.0) -> Holdings:
    records = Records.of([0, 1, 0, 1], [10, 11, 12, 14])
    labels = ints([TRAIN, TRAIN, TEST, TEST])
    return Holdings.of(records, labels, 3, 15, "nodes", small_graph(value))


def edges(graph: Graph) -> set[tuple[int, int]]:
    one, two = graph.index[graph.edge]
    return set(zip(one.tolist(), two.tolist(), strict=True))


def test_a_subgraph_has_its_clients_nodes_edges_and_features_renumbered():
    mine = small_graph().of(ints([2, 1]))
    assert mine.index.tolist() == [11, 13, 14]
    assert mine.owner.tolist() == [1, 0, 1]
    assert edges(mine) == {(11, 14), (14, 11)}
    assert mine.index[mine.node].tolist() == [14]
    assert (mine.feature.tolist(), mine.value.tolist()) == ([6], [4.0])
    assert mine.label.tolist() == [1, -1, 1]
    assert mine.find(ints([14, 11])).tolist() == [2, 0]


def test_a_subgraph_leaves_with_its_owner():
    left = graph_holdings().apply(Withdraw(1))
    assert left.graph.index.tolist() == [10, 12, 13]
    assert left.graph.owner.tolist() == [0, 0, 2]
    assert edges(left.graph) == {(10, 12), (12, 10)}
    assert pairs(left.records) == {(0, 10), (0, 12)}
    assert left.cohort(ints([2, 0])).graph.owner.tolist() == [1, 1, 0]


def test_an_erased_node_leaves_the_graph():
    gone = graph_holdings().apply(Erase(Records.of([0], [12])))
    assert 12 not in gone.graph.index.tolist()
    assert edges(gone.graph) == {(11, 14), (14, 11)}


def test_an_ordered_lot_has_the_earliest_time_of_each_pair():
    # Client 0 has item 3 twice (times 40 and 20) and item 1 at 30; item 2 is held out.
    records = Records.of([0, 0, 0, 0, 1], [3, 1, 3, 2, 1], [40, 30, 20, 10, 5])
    holdings = Holdings.of(records, torch.tensor([0, 0, 0, 2, 0]), 2, 4)
    ids = torch.tensor([1, 0])
    lot = holdings.cohort(ids, ordered=True).own
    assert lot.item.tolist() == [1, 1, 3]
    assert lot.time is not None
    assert lot.time.tolist() == [5, 30, 20]
    assert holdings.cohort(ids).own.time is None
