"""The additive learner: sums in whole numbers and closed forms against slow, obvious versions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.cohort import Lot
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.guards import Clip, Laplace
from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Records, Share
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _pairs as gram_pairs
from rescind.methods.additive import gram as gram_method
from rescind.methods.additive._notes import from_bits, to_bits
from rescind.methods.additive._pairs import (
    Parts,
    add_pairs,
    halved,
    items_of,
    mirrored,
    pair_sums,
    square,
    weight_of,
)
from rescind.methods.additive._release import Published
from rescind.methods.additive._solve import changed, inverse_of, weights_of
from rescind.methods.additive._solving import Ridge, Temper, half
from rescind.methods.additive.gram import Gram
from worlds import begin, lendable, next_block, randoms, scores


def some_lot(clients: int = 7, items: int = 14) -> Lot:
    """Owners with one to many items, and one with none."""
    there = randoms(clients, items) > torch.linspace(1.5, -1.5, clients)[:, None]
    there[3] = False
    owner, item = there.nonzero().unbind(1)
    return Lot(owner, item, clients)


def gram_by_hand(lots: list[dict[int, set[int]]], items: int) -> np.ndarray:
    """The sum of round(4096 / sqrt(n)) x x^T, one pair after another."""
    total = np.zeros((items, items), dtype=object)
    for lot in lots:
        for mine in lot.values():
            for i in mine:
                for j in mine:
                    total[i, j] += round(4096 / math.sqrt(len(mine)))
    return total


def parts_by_hand(fed: Federation, cross: bool = False) -> list[dict[int, set[int]]]:
    """What everybody lends and keeps, as plain sets."""
    holdings = fed.now.vault.holdings
    lent: dict[int, set[int]] = {}
    kept: dict[int, set[int]] = {}
    for n, (client, item) in enumerate(
        zip(holdings.records.client.tolist(), holdings.records.item.tolist(), strict=True)
    ):
        if int(holdings.split[n]) == 0:
            mine = lent if bool(holdings.lent[n]) and not cross else kept
            mine.setdefault(client, set()).add(item)
    return [lent, kept]


def kept_gram(fed: Federation) -> torch.Tensor:
    """G as the server keeps it, made whole. [I, I]"""
    lower = square(fed.now.state.own["gram/0000"], fed.world.sizes.items)
    return lower + lower.tril(-1).T


# -- whole numbers --------------------------------------------------------------------------------


def test_a_weight_is_4096_over_the_root_of_the_count():
    # 4096 / sqrt(1, 2, 3, 4, 100) = 4096, 2896.3, 2364.8, 2048, 409.6
    count = torch.tensor([0, 1, 2, 3, 4, 100])
    assert weight_of(count).tolist() == [0, 4096, 2896, 2365, 2048, 410]


def test_pairs_add_up_to_the_product_of_the_matrix_with_itself():
    lot, items = some_lot(), 14
    weight = torch.tensor([5, -7, 4096, 1, -4096, 3, 11])
    matrix = torch.zeros(7, items, dtype=torch.int64)
    matrix[lot.owner, lot.item] = 1
    expected = matrix.T @ (matrix * weight[:, None])
    start = torch.arange(half(items))
    found = add_pairs(start.clone(), lot, weight) - start
    assert torch.equal(square(found, items).long(), expected.tril())
    total, many = pair_sums(lot, weight, items)
    assert torch.equal(total.long(), found)
    assert torch.equal(square(many, items).long(), (matrix.T @ matrix).tril())
    assert found.dtype == torch.int64
    assert items_of(found) == items


def test_numbers_are_as_wide_as_the_largest_sum_may_be():
    # Everybody with one item, the same, in both parts, as many hosted again: 4 * 4096 a person.
    for people, blocks in ((1, 1), (6040, 1), (65_536, 2), (131_071, 1), (131_072, 1), (10**6, 9)):
        largest = 4 * 4096 * people * blocks
        kind = gram_pairs.sum_dtype(people, blocks)
        assert largest <= torch.iinfo(kind).max
        assert (kind == torch.int32) == (largest < 2**31)


def test_no_more_people_are_added_up_at_once_than_four_bytes_hold(monkeypatch):
    together = begin(Gram(), 0, 1).run(1)
    monkeypatch.setattr(gram_method, "AT_ONCE", 4)
    slowly = begin(Gram(), 0, 1)
    assert len(slowly.method.server_sample(slowly.now.state, slowly.world, slowly.clock)) == 3
    slowly = slowly.run(3)
    assert torch.equal(slowly.now.state.own["gram/0000"], together.now.state.own["gram/0000"])
    worst = (gram_pairs.AT_ONCE - 1) * 2 * gram_pairs.UNIT
    assert worst <= torch.iinfo(torch.int32).max


def test_a_sum_that_people_cannot_add_up_to_is_refused():
    with pytest.raises(DataError, match="no inverse"):
        inverse_of([(torch.tensor([4096, 9 * 4096, 4096]), 1.0)], 2, Ridge(1.0))


def test_bits_remember_items():
    lot = some_lot(items=19)
    bits = to_bits(lot, 19)
    assert bits.shape == (7, 3)
    back = from_bits(bits)
    assert torch.equal(back.owner, lot.owner)
    assert torch.equal(back.item, lot.item)
    assert not bits[3].any()


def test_parts_skip_whoever_has_nothing():
    lot = some_lot()
    parts = Parts.of(lot, -1, torch.arange(7) * 10, torch.full((7,), 2))
    assert parts.client.tolist() == [0, 10, 20, 40, 50, 60]
    assert parts.weight.tolist() == [-w for w in weight_of(lot.count).tolist() if w]
    two = (parts + parts).only(torch.arange(12) == 8)
    assert two.lot.item.tolist() == lot.item[lot.owner == 2].tolist()
    assert (two.client.tolist(), two.block.tolist(), two.lot.clients) == ([20], [2], 1)


# -- solving --------------------------------------------------------------------------------------


def test_weights_by_hand():
    # Both items with two people, each of weight round(4096 / sqrt(2)) = 2896: G = 5792 / 4096 =
    # 1.414 everywhere, ridge 1. C is proportional to [[2.414, -1.414], [-1.414, 2.414]], so
    # B_01 = 1.414 / 2.414 = .5858 (5792 / 9888).
    total = torch.tensor([5792, 5792, 5792])
    weights = weights_of(mirrored(inverse_of([(total, 1.0)], 2, Ridge(1.0))))
    assert_close(weights, torch.tensor([[0.0, 5792 / 9888], [5792 / 9888, 0.0]]))


@pytest.mark.parametrize("ridge", [Ridge(3.0), Ridge(2.0, 0.5), Ridge(2.0, 0.5, power=0.5)])
def test_the_inverse_is_the_inverse_of_the_ridged_sum(ridge):
    lot = some_lot()
    old, new = (pair_sums(lot, weight_of(lot.count) + more, 14)[0] for more in (0, 5))
    inverse = inverse_of([(old, 0.25), (new, 1.0)], 14, ridge)
    gram = 0.25 * square(old, 14) / 4096 + square(new, 14) / 4096
    gram = (gram + gram.tril(-1).T).numpy()
    ridged = gram + np.diag(ridge.same + ridge.per_item * np.diag(gram) ** ridge.power)
    expected = torch.tensor(np.linalg.inv(ridged))
    assert_close(mirrored(inverse), expected, atol=1e-13, rtol=1e-12)
    assert_close(inverse, halved(expected), atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("rows", [3, 512])
def test_a_symmetric_matrix_is_its_lower_half_and_back(monkeypatch, rows):
    monkeypatch.setattr(gram_pairs, "ROWS", rows)
    root = randoms(7, 7).double()
    full = root + root.T
    expected = [float(full[i, j]) for i in range(7) for j in range(i + 1)]
    assert halved(full).tolist() == expected
    assert torch.equal(mirrored(halved(full)), full)


def test_the_weights_solve_the_regression_of_each_item_on_the_others():
    # Column j of B minimises sum of w_u (x_uj - x_u b)^2 + ridge |b|^2 with b_j = 0.
    fed = begin(Gram(ridge=3.0)).run(1)
    holdings = fed.now.vault.holdings
    matrix = np.zeros((9, 14))
    mine = holdings.records[holdings.split == 0]
    matrix[mine.client, mine.item] = 1
    count = matrix.sum(1)
    weight = np.where(count > 0, np.round(4096 / np.sqrt(np.maximum(count, 1))), 0) / 4096
    for j in range(14):
        others = [i for i in range(14) if i != j]
        part = matrix[:, others]
        left = part.T @ (weight[:, None] * part) + 3.0 * np.eye(13)
        b = np.linalg.solve(left, part.T @ (weight * matrix[:, j]))
        ours = fed.now.state.public["weights"][others, j].double()
        assert_close(ours, torch.tensor(b), atol=1e-6, rtol=1e-5)
    assert not fed.now.state.public["weights"].diagonal().any()
    expected = torch.tensor(matrix).float() @ fed.now.state.public["weights"]
    assert_close(scores(fed), expected)


@pytest.mark.parametrize("parts_wanted", [1, 2, 3, 4, 6])
def test_a_changed_inverse_is_the_inverse_of_the_changed_sum(parts_wanted):
    # Sherman-Morrison and Woodbury: take back the first parts, the third with a faded weight.
    lot = some_lot()
    every = Parts.of(lot, 1, torch.arange(7), torch.zeros(7, dtype=torch.int64))
    total = add_pairs(torch.zeros(half(14), dtype=torch.int64), every.lot, every.weight)
    before = inverse_of([(total, 1.0)], 14, Ridge(3.0))
    kept = before.clone()
    gone = every.only(torch.arange(6) < parts_wanted)
    gone = replace(gone, weight=-gone.weight)
    scale = torch.where(gone.client == 2, 0.5, 1.0).double()
    after = changed(before, gone, scale)
    expected = square(total, 14) / 4096
    for place in range(len(gone)):
        x = torch.zeros(14, dtype=torch.float64)
        x[gone.lot.item[gone.lot.owner == place]] = 1
        expected += float(scale[place]) * int(gone.weight[place]) / 4096 * torch.outer(x, x).tril()
    expected = expected + expected.tril(-1).T + 3.0 * torch.eye(14)
    assert_close(
        mirrored(after), torch.tensor(np.linalg.inv(expected.numpy())), atol=1e-13, rtol=1e-11
    )
    assert torch.equal(before, kept), "states are values"


def test_weights_are_worked_out_once_and_only_when_they_are_read():
    inverse = torch.tensor([[2.0, -1.0], [-1.0, 4.0]], dtype=torch.float64)
    public = Published(halved(inverse), 2, {"reference/block": torch.tensor([0])})
    assert set(public) == {"weights", "reference/block"}
    assert len(public) == 2
    assert "weights" not in public._known
    assert_close(public["weights"], torch.tensor([[0.0, 0.25], [0.5, 0.0]]))
    assert public["weights"] is public["weights"]
    with pytest.raises(KeyError):
        public["inverse"]


# -- what is published ---------------------------------------------------------------------------


def test_each_release_is_a_function_of_the_dense_weights():
    dense = begin(Gram(), 0).run(1).now.state.public["weights"]
    near = begin(Gram(release="neighbours", release_size=3), 0).run(1).now.state.public["weights"]
    for column in range(14):
        kept = near[:, column].nonzero().squeeze(1)
        assert len(kept) <= 3
        assert_close(near[kept, column], dense[kept, column])
        others = [i for i in range(14) if i not in kept.tolist()]
        assert float(dense[others, column].abs().max()) <= float(near[kept, column].abs().min())
    low = begin(Gram(release="factors", release_size=14), 0).run(1).now.state.public["weights"]
    assert_close(low, dense, atol=1e-6, rtol=1e-4)
    two = begin(Gram(release="factors", release_size=2), 0).run(1).now.state.public["weights"]
    left, size, right = np.linalg.svd(dense.double().numpy())
    near_by_hand = (left[:, :2] * size[:2]) @ right[:2]
    np.fill_diagonal(near_by_hand, 0.0)
    assert_close(two.double(), torch.tensor(near_by_hand), atol=1e-6, rtol=1e-4)


def test_nothing_is_published_of_items_that_too_few_people_have():
    plain = begin(Gram(), 0).run(1)
    holdings = plain.now.vault.holdings
    every = holdings.of_clients("own", torch.arange(holdings.clients))
    owners = torch.bincount(every.item, minlength=14)
    least = int(owners.median()) + 1
    found = begin(Gram(min_count=least), 0).run(1)
    assert torch.equal(found.now.state.own["owners"], owners)
    rare = owners < least
    assert bool(rare.any())
    assert not bool(rare.all())
    weights, dense = found.now.state.public["weights"], plain.now.state.public["weights"]
    assert not weights[rare].any()
    assert not weights[:, rare].any()
    assert torch.equal(weights[~rare][:, ~rare], dense[~rare][:, ~rare])


@pytest.mark.parametrize("guard", [Clip(1.0), Laplace(0.1)])
def test_guards_made_for_real_numbers_are_refused(guard):
    with pytest.raises(ConfigError, match="need floating-point numbers"):
        begin(Gram(), executor=InProcess(guards=(guard,))).run(1)


# -- both sides of the sum ------------------------------------------------------------------------


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("lenders", [(), (0, 1), tuple(range(9))])
def test_the_sum_counts_what_is_lent_and_what_is_kept(cross, lenders):
    fed = begin(Gram(cross=cross), *lenders)
    if lenders == (0, 1):  # and somebody who lends a part
        own = lendable(fed.now.vault.holdings, 7)
        fed = fed.apply(Share(own[torch.arange(len(own)) % 2 == 0]))
    after = fed.run(1)
    expected = gram_by_hand(parts_by_hand(fed, cross), 14).astype(np.int64)
    assert torch.equal(kept_gram(after).long(), torch.tensor(expected))
    again = after.run(2)
    assert torch.equal(kept_gram(again).long(), torch.tensor(expected)), "nobody counts twice"


def test_some_at_a_time_count_the_same_as_everybody_at_once():
    together = begin(Gram(), 0, 1).run(1)
    slowly = begin(Gram(clients_per_round=2), 0, 1).run(4)
    alone = begin(Gram(), 0, 1, executor=OneByOne()).run(1)
    for fed in (slowly, alone):
        assert torch.equal(fed.now.state.own["gram/0000"], together.now.state.own["gram/0000"])
        assert params.digest(fed.now.state.public) == params.digest(together.now.state.public)
    unfinished = begin(Gram(clients_per_round=2), 0, 1).run(1)
    counted = unfinished.now.state.own["counted"] >= 0
    assert int(counted.sum()) == 2
    assert torch.equal(counted, torch.isin(torch.arange(9), counted.nonzero().squeeze(1)))


def test_blocks_add_up_and_fade():
    # Delta 1 keeps one matrix, delta .5 one per block: C = (.5 G_0 + G_1 + ridge)^-1.
    for delta in (1.0, 0.5):
        first = begin(Gram(forgetting=delta, ridge=3.0), 0).run(1)
        after = first.apply(next_block(clients=10, items=16)).run(1)
        old = gram_by_hand(parts_by_hand(begin(Gram(), 0)), 16)
        rows = after.now.vault.holdings
        now = rows.records[(rows.block == 1) & (rows.split == 0)]
        kept: dict[int, set[int]] = {}
        for client, item in zip(now.client.tolist(), now.item.tolist(), strict=True):
            kept.setdefault(client, set()).add(item)
        gram = (delta * old + gram_by_hand([kept], 16)).astype(float) / 4096
        expected = np.linalg.inv(gram + 3.0 * np.eye(16))
        assert_close(mirrored(after.now.state.own["inverse"]), torch.tensor(expected))
        names = [name for name in after.now.state.own if name.startswith("gram/")]
        assert len(names) == (1 if delta == 1 else 2)


def test_new_items_are_related_to_nothing_until_somebody_has_them():
    later = begin(Gram(), 0).run(1).apply(next_block(clients=10, items=16))
    assert scores(later).shape == (10, 16)
    assert not later.now.state.public["weights"][14:].any()
    own = later.now.state.own
    anew = inverse_of([(own["gram/0000"], 1.0)], 16, Ridge(later.method.ridge))
    assert_close(own["inverse"], anew, atol=1e-15, rtol=1e-12)


# -- refusals -------------------------------------------------------------------------------------


def test_a_world_in_which_nobody_has_anything_gives_no_nan():
    empty = Holdings.of(Records.of([0], [1]), torch.tensor([2]), 2, 3)
    assert not bool(scores(Federation.start(empty, Gram()).run(1)).any())


def test_a_catalogue_that_does_not_fit_is_refused_with_its_size():
    with pytest.raises(ConfigError, match="14 items"):
        begin(Gram(max_items=13))
    with pytest.raises(ConfigError, match="16 items"):
        begin(Gram(max_items=15)).apply(next_block(clients=10, items=16))


def test_a_catalogue_that_memory_does_not_hold_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(gram_method, "free_memory", lambda: 14 * 14 * 30 - 1)
    with pytest.raises(ConfigError, match=r"14 items take .* are free\. .*LocalGram"):
        begin(Gram())
    monkeypatch.setattr(gram_method, "free_memory", lambda: 14 * 14 * 30)
    begin(Gram())
    monkeypatch.setattr(gram_method, "free_memory", lambda: None)  # the system does not tell
    begin(Gram())


# -- bending the weights --------------------------------------------------------------------------


def test_bent_weights_are_a_function_of_the_inverse_one_by_one():
    root = randoms(6, 6).double()
    inverse = torch.linalg.inv(root @ root.T + torch.eye(6))
    bent = weights_of(inverse, Temper(own=0.2, shown=0.1, sharp=1.1))
    for i in range(6):
        for j in range(6):
            plain = 0.0 if i == j else -float(inverse[i, j] / inverse[j, j])
            scaled = plain * float(inverse[i, i]) ** 0.2 * float(inverse[j, j]) ** 0.1
            expected = math.copysign(abs(scaled) ** 1.1, scaled)
            assert float(bent[i, j]) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert torch.equal(weights_of(inverse, Temper()), weights_of(inverse))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_pairs_added_by_item_are_those_added_by_person(kind):
    kernels = pytest.importorskip("rescind.methods.additive._kernels", reason="needs numba")
    items, weight = 60, torch.arange(-20, 20)
    owns = torch.rand(40, items, generator=torch.Generator().manual_seed(3)) < 0.2
    owns[7] = False
    owner, item = owns.nonzero().T
    start = torch.arange(half(items)).to(kind)
    by_person, by_item, owners = start.clone(), start.clone(), start.clone()
    entries = owner.numpy(), item.numpy(), weight.numpy()
    kernels.add_each_pair(by_person.numpy(), *entries)
    kernels.add_pairs_by_item(by_item.numpy(), owners.numpy(), *entries, items)
    assert torch.equal(by_item, by_person)
    row, column = torch.tril_indices(items, items)
    many = (owns.long().T @ owns.long())[row, column]
    assert torch.equal(owners - start, many.to(kind))
    kernels.add_pairs_by_item(by_item.numpy(), owners[:0].numpy(), *entries, items)
    kernels.add_each_pair(by_person.numpy(), *entries)
    assert torch.equal(by_item, by_person)


@pytest.mark.parametrize("most", [1, 9, 30, 2**26])
def test_a_gpu_adds_up_the_same_whole_numbers_in_steps_of_any_size(most):
    lot, items = some_lot(), 14
    weight = torch.tensor([5, -7, 2**40 + 1, 4096, -4096, 2**40, 11])
    matrix = torch.zeros(7, items, dtype=torch.int64)
    matrix[lot.owner, lot.item] = 1
    expected = (matrix.T @ (matrix * weight[:, None])).tril()
    zero = torch.zeros(half(items), dtype=torch.int64)
    found = gram_pairs._add_in_steps(zero, lot, weight, most)
    row, column = torch.tril_indices(items, items)
    assert torch.equal(found, expected[row, column])


def test_the_tuned_form_publishes_bent_weights_and_forgets_as_exactly():
    tuned = Gram.tuned(ridge=3.0)
    assert (tuned.ridge, tuned.ridge_per_item, tuned.sharpen) == (3.0, 0.5, 1.1)
    fed = begin(tuned, 0, 2).run(1)
    inverse = mirrored(fed.now.state.own["inverse"])
    assert torch.equal(fed.now.state.public["weights"], weights_of(inverse, Temper(0.2, 0.1, 1.1)))
    event = Erase(fed.world.shared[:2])
    after, fresh = tuned.follow(fed, event), fed.apply(event).restart().run(1)
    assert torch.equal(after.now.state.public["weights"], fresh.now.state.public["weights"])
    assert not torch.equal(after.now.state.public["weights"], fed.now.state.public["weights"])


def test_parts_in_turns_are_all_parts_and_each_client_comes_once() -> None:
    lot = Lot(torch.tensor([0, 0, 1, 2, 2, 2, 3]), torch.arange(7), 4)
    client = torch.tensor([5, 5, 1, 9])  # client 1 has 9 pairs, 5 has 4 and 1, 9 has 1
    parts = Parts.of(lot, 1, client, torch.zeros(4, dtype=torch.int64))
    turns = [set(some.client.tolist()) for some in parts.in_turns(most=4)]
    assert turns == [{1}, {5}, {9}]
    assert sum(len(some) for some in parts.in_turns(most=4)) == len(parts)
    assert [len(some) for some in parts.in_turns(most=99)] == [4]
    assert not list(Parts.none().in_turns())
