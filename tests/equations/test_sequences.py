"""Sequences: the task of the next item, SeqGram with two time scales, and what it forgets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN, VALID
from rescind.core.records import Erase, Event, Withdraw
from rescind.data import Dataset, import_file
from rescind.data.sequences import in_order, next_item
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive._notes import Listed
from rescind.methods.additive._ordered import Nearness
from rescind.methods.additive._solving import Ridge, Temper
from rescind.methods.additive.local_seq_gram import LocalSeqGram, SparsePairs
from rescind.methods.additive.seq_gram import SeqGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.baselines.popularity import Popularity
from rescind.models.mf import MF
from rescind.receipts.claims import sum_digest


def interactions(rows: list[tuple[int, int, int]], name: str = "trial") -> Dataset:
    """Rows (user, item, time) as a dataset; ids are the numbers."""
    user, item, time = (np.array(column) for column in zip(*rows, strict=True))
    ids = [np.arange(int(column.max()) + 1).astype(str) for column in (user, item)]
    return Dataset(name, user, item, None, time, *ids)


def lines(data: Dataset) -> dict[int, list[tuple[int, int]]]:
    """Each user's (item, split) in the order of the dataset."""
    out: dict[int, list[tuple[int, int]]] = {}
    for user, item, split in zip(data.user, data.item, data.split, strict=True):
        out.setdefault(int(user), []).append((int(item), int(split)))
    return out


def drawn(users: int = 40, items: int = 25, moments: int = 6, seed: int = 3) -> Dataset:
    """Random sequences in which several items share a time."""
    clock, rows = Clock(seed), []
    for user in range(users):
        count = int(clock.integers("count", torch.tensor(user), 4, 12))
        has = torch.argsort(clock.uniform("has", torch.tensor(user), torch.arange(items)))[:count]
        times = clock.integers("time", torch.arange(count) + 100 * user, 0, moments)
        rows += [(user, int(i), 1 + int(t)) for i, t in zip(has, times, strict=True)]
    return interactions([*rows, (0, items - 1, 1)])


def test_a_last_item_that_is_mostly_drawn_is_told(caplog):
    rows = [(user, item, 1 + item) for user in range(3) for item in range(5)]
    next_item(interactions(rows, "seconds"))
    assert not caplog.text, "the control: every time is of one item"
    next_item(interactions([(user, item, 1 + item // 2) for user, item, _ in rows], "months"))
    assert caplog.text.count("'months': 80 % of the rows") == 1, "4 of 5 items share their time"


# -- the split ------------------------------------------------------------------------------------


def test_the_last_item_is_test_the_one_before_valid_and_short_sequences_are_train():
    data = next_item(
        interactions([(0, 3, 9), (0, 1, 2), (0, 2, 5), (0, 4, 7), (1, 1, 1), (1, 0, 8)])
    )
    assert lines(data) == {0: [(1, 0), (2, 0), (4, 1), (3, 2)], 1: [(1, 0), (0, 0)]}
    assert data.time.tolist() == [1, 2, 3, 4, 1, 2]
    assert data.task == "next_item"


def test_of_several_rows_of_a_pair_the_earliest_counts():
    data = next_item(interactions([(0, 3, 1), (0, 1, 2), (0, 2, 5), (0, 3, 9), (0, 1, 7)]))
    assert lines(data) == {0: [(3, 0), (1, 1), (2, 2)]}


def guess_the_highest(data: Dataset, order: Dataset) -> float:
    """How often the highest id of the last moment is the test item; chance is a half."""
    last = {
        u: item for u, item, s in zip(order.user, order.item, order.split, strict=True) if s == 2
    }
    right = 0
    for user, item in last.items():
        mine = data.user == user
        moment = mine & (data.time == data.time[mine].max())
        right += int(data.item[moment].max() == item)
    return right / len(last)


def test_ids_do_not_tell_which_item_of_a_second_is_last():
    # A planted leak: each user ends with two items of one second, and rows are sorted by id.
    rows = [
        (u, i, t) for u in range(400) for i, t in ((u % 7, 1), (7 + u % 5, 2), (20, 3), (30, 3))
    ]
    data = interactions(rows)
    by_row = np.lexsort((data.item, data.time, data.user))
    sorted_ids = replace(data.select(by_row), time=np.tile([1, 2, 3, 4], 400))
    assert guess_the_highest(data, next_item(sorted_ids)) == 1.0  # the test sees a leak
    assert 0.4 < guess_the_highest(data, next_item(data)) < 0.6
    shuffled = data.select(torch.argsort(Clock(1).bits("row", torch.arange(len(data)))).numpy())
    assert lines(next_item(shuffled)) == lines(next_item(data))  # nor does the order of rows
    assert lines(next_item(data, seed=1)) != lines(next_item(data))


def test_data_without_an_order_is_refused():
    none = interactions([(0, 0, 0), (0, 1, 0), (0, 2, 0)])
    with pytest.raises(DataError, match=r"no times"):
        next_item(none)
    games = in_order(replace(none, name="amazon-video-games-2018-5core"))
    assert games.item.tolist() == [0, 1, 2]


def test_a_file_of_sequences_keeps_its_order(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "sequences.txt"
    file.write_text("7 30\n7 10\n8 10\n7 20\n8 30\n8 5\n", encoding="utf-8")
    data = next_item(import_file(file, "mine"))
    named = [(data.users[u], data.items[i]) for u, i in zip(data.user, data.item, strict=True)]
    assert named == [("7", "30"), ("7", "10"), ("7", "20"), ("8", "10"), ("8", "30"), ("8", "5")]
    assert data.split.tolist() == [0, 1, 2, 0, 1, 2]
    file.write_text("1 2 3\n", encoding="utf-8")
    with pytest.raises(DataError, match="lines `user item`"):
        import_file(file, "bad")


def test_the_validation_item_is_history_when_the_test_item_is_asked():
    holdings = next_item(drawn()).on_devices(0)
    ids = torch.arange(holdings.clients)
    for held, history in (("valid", (TRAIN,)), ("test", (TRAIN, VALID)), (None, (TRAIN,))):
        cohort = holdings.cohort(ids, held=held, ordered=True)
        mask = torch.isin(holdings.split, torch.tensor(history, dtype=torch.int8))
        pairs = torch.unique(holdings.records[mask].pairs())
        assert torch.equal((cohort.own.owner << 31) + cohort.own.item, pairs)
        assert int((holdings.split == TRAIN).sum()) == len(cohort.train)
    # What is known is neither recommended nor learnt.
    fed = Federation.start(holdings, Popularity()).run(1)
    assert int(fed.popularity().sum()) == int((holdings.split == TRAIN).sum())


# -- learning -------------------------------------------------------------------------------------


def sequences_of(holdings, splits=(TRAIN,)) -> dict[int, list[int]]:
    mask = torch.isin(holdings.split, torch.tensor(splits, dtype=torch.int8))
    mine = holdings.records[mask]
    rows = sorted(zip(mine.client.tolist(), mine.time.tolist(), mine.item.tolist(), strict=True))
    out: dict[int, list[int]] = {}
    for client, _, item in rows:
        out.setdefault(client, []).append(item)
    return out


def slow_pairs(
    sequences: dict[int, list[int]], items: int, reach: float, power: float
) -> np.ndarray:
    """P of one reach, in whole numbers. [I, I]"""
    total = np.zeros((items, items), dtype=np.int64)
    for mine in sequences.values():
        weight = round(4096 / len(mine) ** power)
        for s, i in enumerate(mine):
            total[i, i] += weight
            for t in range(s + 1, len(mine)):
                total[i, mine[t]] += weight * round(4096 * math.exp(-(t - s) / reach)) // 4096
    return total


def slow_weights(
    pairs: np.ndarray, ridge: float, sharpen: float, method: SeqGram, steps: int | None = None
) -> np.ndarray:
    """B of one reach: solved, or after some steps of Jacobi."""
    each = np.diag(pairs)
    follows = pairs - np.diag(each)
    own = np.diag(each + ridge + method.ridge_per_item * each)
    near, wanted = follows + follows.T, follows + method.back * follows.T
    weights = np.linalg.solve(own if steps is not None else own + near, wanted)
    for _ in range(steps or 0):
        weights = np.linalg.solve(own, wanted - near @ weights)
    weights = weights * (1 / (each + ridge)) ** method.shown_power
    return np.sign(weights) * np.abs(weights) ** sharpen


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
@pytest.mark.parametrize("back", [0.0, 0.3])
def test_two_time_scales_equal_the_slow_ones(executor, back):
    method = SeqGram.sequences(back=back, ridge=2.0, far_ridge=3.0)
    holdings = next_item(drawn()).on_devices(0)
    fed = Federation.start(holdings, method, executor=executor).run(1)
    train, items = sequences_of(holdings), holdings.items
    slow = [slow_pairs(train, items, reach, method.power) for reach in (method.near, method.far)]
    for column, pairs in enumerate(slow):
        stored = ordered.square(fed.now.state.own["gram/0000"][:, column], items)
        assert np.array_equal(stored.numpy(), pairs)
    near = slow_weights(slow[0] / 4096, 2.0, method.sharpen, method)
    far = method.far_share * slow_weights(slow[1] / 4096, 3.0, method.far_sharpen, method)
    assert_close(
        fed.now.state.public["weights"].double(),
        torch.tensor(np.stack([near, far])), rtol=2e-3, atol=2e-4,
    )  # fmt: skip
    ids = torch.tensor([2])
    cohort = executor.cohort(method, fed.now.vault, ids, held="test")
    scores = method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort)
    expected, mine = np.zeros(items), sequences_of(holdings, (TRAIN, VALID))[2]
    for since, item in enumerate(reversed(mine)):
        expected += math.exp(-since / method.recent) * near[item]
        expected += math.exp(-since / method.far_recent) * far[item]
    assert_close(scores[0].double(), torch.tensor(expected), rtol=5e-3, atol=1e-3)


def test_what_follows_is_found_and_order_is_what_finds_it():
    # Teachers go from i to i + 1 on a circle of 12; askers have had i, and both sides are open.
    rows = [(u, (u + step) % 12, step) for u in range(36) for step in (1, 2)]
    rows += [
        (36 + i, item, t) for i in range(12) for t, item in ((1, 12), (2, i), (3, (i + 1) % 12))
    ]
    data = next_item(interactions(rows))
    for back, least, most in ((0.0, 1.0, 1.0), (1.0, 0.0, 0.6)):
        method = SeqGram.sequences(back=back, ridge=1.0, far_ridge=1.0, shown_power=0.0)
        fed = Federation.start(data, method).run(1)
        assert least <= fed.evaluate("test", k=1)["HR@1"] <= most


def test_a_history_gets_what_its_owner_would_get():
    data = next_item(drawn())
    fed = Federation.start(data, SeqGram.sequences()).run(1)
    mine = data.items[data.item[(data.user == 3) & (data.split == TRAIN)]].tolist()
    has = set(data.items[data.item[data.user == 3]].tolist())
    by_history = [one for one in fed.recommend(history=mine, k=30) if one.item not in has]
    assert by_history[:5] == fed.recommend(data.users[3], k=5)
    other = fed.recommend(history=mine[::-1], k=5)
    assert other != fed.recommend(history=mine, k=5)  # the order counts
    assert not {r.item for r in other} & set(mine)
    with pytest.raises(ConfigError, match="give one of them"):
        fed.recommend()
    with pytest.raises(DataError, match="item"):
        fed.recommend(history=["nothing"])
    private = Federation.start(data, FedAvg(model=MF(dim=4)))
    with pytest.raises(ConfigError, match="from a history alone"):
        private.recommend(history=mine)


# -- forgetting -----------------------------------------------------------------------------------


def requests(fed: Federation, number: int) -> Event:
    """Somebody leaves, or erases records inside their sequence."""
    dice, held = Clock(11).at(number), fed.now.vault.holdings
    members = fed.world.available.nonzero().squeeze(1)
    who = int(members[dice.integers("who", torch.tensor(0), 0, len(members))])
    mine = held.records[(held.records.client == who) & (held.split != TEST)]
    if number % 5 == 4 or len(mine) < 4:
        return Withdraw(who)
    inside = dice.uniform("inside", torch.arange(len(mine))) < 0.3
    inside[int(dice.integers("one", torch.tensor(0), 0, len(mine)))] = True
    return Erase(mine[inside])


def test_after_random_requests_the_digest_is_that_of_a_history_without_them():
    method = SeqGram.sequences()
    fed = Federation.start(next_item(drawn(users=60)).on_devices(0), method).run(1)
    for number in range(40):
        fed = method.follow(fed, requests(fed, number))
        if number % 7 == 0:
            never = fed.restart().run(1)
            assert sum_digest(fed.now.state.own) == sum_digest(never.now.state.own), number
            assert torch.equal(fed.now.state.public["weights"], never.now.state.public["weights"])


@pytest.mark.parametrize("steps", [0, 2])
def test_the_sparse_form_equals_the_slow_one_and_forgets(steps):
    method = LocalSeqGram(steps=steps, ridge=40.0, far_ridge=40.0, longest=6)
    holdings = next_item(drawn(users=60)).on_devices(0)
    fed = Federation.start(holdings, method).run(1)
    items = holdings.items
    last = {client: mine[-6:] for client, mine in sequences_of(holdings).items()}
    for column, reach in enumerate((method.near, method.far)):
        slow = slow_pairs(last, items, reach, method.power)
        pairs = SparsePairs.of(fed.now.state.own)
        assert np.array_equal(pairs.matrix(column, items).toarray(), slow / 4096)
        sharpen = method.far_sharpen if column else method.sharpen
        share = method.far_share if column else 1.0
        expected = share * slow_weights(slow / 4096, 40.0, sharpen, method, steps)
        item, weight = fed.now.state.public["weights"][column]
        dense = torch.zeros(items, items)
        there = item >= 0
        dense[torch.arange(items).unsqueeze(1).expand_as(item)[there], item[there].long()] = weight[
            there
        ]
        assert_close(dense.double(), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    for number in range(20):
        fed = method.follow(fed, requests(fed, number))
    never = fed.restart().run(1)
    assert sum_digest(fed.now.state.own) == sum_digest(never.now.state.own) == method.rebuilt(fed)
    assert torch.equal(fed.now.state.public["weights"], never.now.state.public["weights"])


def test_notes_of_the_last_items_keep_their_order():
    lot = Lot(torch.tensor([0, 0, 0, 1]), torch.tensor([2, 5, 7, 5]), 2, torch.tensor([9, 4, 9, 1]))
    notes = Listed(2)
    table = notes.of(lot, 8)
    assert table.tolist() == [[3, 8, 2, 2], [6, 0, 1, 0]]
    assert notes.read(table).item.tolist() == [2, 7, 5]
    assert notes.read(table).time.tolist() == [2, 2, 1]
    left = notes.without(table, Lot(torch.tensor([0]), torch.tensor([2]), 2))
    assert notes.read(left).item.tolist() == [7, 5]


def lot_of(sequences: list[list[int]]) -> Lot:
    """Sequences as a lot: sorted by owner and item, with places as times."""
    rows = sorted((u, i, t) for u, mine in enumerate(sequences) for t, i in enumerate(mine))
    owner, item, time = (torch.tensor(c) for c in zip(*rows, strict=True))
    return Lot(owner, item, len(sequences), time)


def test_a_person_is_subtracted_from_a_stored_sum_without_a_federation():
    everybody = [[0, 3, 5, 1], [2, 3, 4], [5, 0, 2, 4, 1]]
    near = Nearness((4.0, 20.0), 0.25)
    total, owners = ordered.ordered_sums(lot_of(everybody), torch.ones(3).long(), 6, near)
    ordered.add_sequences(total, lot_of(everybody[1:2]), torch.tensor([-1]), near)
    left, _ = ordered.ordered_sums(
        lot_of([everybody[0], everybody[2]]), torch.ones(2).long(), 6, near
    )
    assert torch.equal(total, left)
    assert int(owners.sum()) == sum(n * (n + 1) // 2 for n in (4, 3, 5))
    # A record inside a sequence: the person's part is replaced whole.
    sign, shorter = torch.tensor([-1, 1]), [everybody[2], [5, 0, 4, 1]]
    ordered.add_sequences(total, lot_of(shorter), sign, near)
    left, _ = ordered.ordered_sums(
        lot_of([everybody[0], shorter[1]]), torch.ones(2).long(), 6, near
    )
    assert torch.equal(total, left)


def test_a_sum_that_is_none_has_no_weights():
    broken = torch.tensor([[-5.0, 2.0], [2.0, -5.0]])
    with pytest.raises(DataError, match="not a sum over users"):
        ordered.next_weights(broken, Ridge(1.0), Temper())
