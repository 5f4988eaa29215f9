"""The additive learner with neighbours only: lists and small systems against obvious versions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.errors import ConfigError
from rescind.methods.additive import _local_kernels, auto_gram
from rescind.methods.additive._local_ridge import Near, SparseGram
from rescind.methods.additive._pairs import square
from rescind.methods.additive._solving import Ridge
from rescind.methods.additive.auto_gram import AutoGram
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.models.item_item import LocalWeights
from worlds import begin, lendable, next_block, scores, tiny_holdings

FEW = LocalGram(model=LocalWeights(many=3), ridge=2.0, ridge_per_item=0.5, ridge_power=1.0)
BENT = replace(FEW, own_power=0.1, shown_power=0.05, sharpen=1.1)


def sparse_world(clients: int = 40, items: int = 120) -> Holdings:
    """People with four items each, near each other: most pairs never meet."""
    clock, who = Clock(3), torch.arange(clients).repeat_interleave(4)
    place = torch.arange(len(who)) % 4
    item = (who * 3 + clock.integers("near", torch.arange(len(who)), 0, 5) + 7 * place) % items
    pairs = torch.unique((who << 31) + item)
    return Holdings.of(
        Records.of(pairs >> 31, pairs & (2**31 - 1)), torch.zeros(len(pairs)), clients, items
    )


def whole_gram(fed: Federation) -> np.ndarray:
    own = SparseGram.of(fed.now.state.own)
    matrix = np.zeros((own.items, own.items), dtype=np.int64)
    for i in range(own.items):
        for place in range(int(own.first[i]), int(own.first[i + 1])):
            matrix[i, int(own.other[place])] = int(own.value[place])
    return matrix


def test_the_sparse_sum_is_the_dense_one():
    fed, dense = begin(FEW, 0, 3).run(1), begin(Gram(), 0, 3).run(1)
    lower = square(dense.now.state.own["gram/0000"], 14).long()
    assert np.array_equal(np.tril(whole_gram(fed)), lower.numpy())
    assert np.array_equal(whole_gram(fed), whole_gram(fed).T)


def test_lists_hold_the_nearest_and_weights_solve_the_small_system():
    fed = begin(FEW, 0).run(1)
    gram = whole_gram(fed)
    size = np.sqrt(np.maximum(np.diag(gram), 1))
    ridge = 2.0 + 0.5 * np.diag(gram) / 4096
    for j in range(14):
        order = sorted(
            (i for i in range(14) if i != j and gram[i, j] > 0),
            key=lambda i, j=j: (-gram[i, j] / (size[i] * size[j]), i),
        )[:3]
        found = fed.now.state.public["neighbour"][j].tolist()
        assert found == order + [-1] * (3 - len(order))
        inside = gram[np.ix_(order, order)] / 4096 + np.diag(ridge[order])
        b = np.linalg.solve(inside, gram[order, j] / 4096)
        ours = fed.now.state.public["weight"][j, : len(order)]
        assert_close(ours, torch.tensor(b).float(), atol=1e-6, rtol=1e-5)
        assert not fed.now.state.public["weight"][j, len(order) :].any()


def test_with_every_neighbour_it_is_the_whole_learner():
    # One person has everything, so that all items meet; then each system is EASE's regression.
    holdings = tiny_holdings(clients=6, items=10)
    more = Records.of([0] * 10, list(range(10)))
    records = holdings.records + more
    split = torch.cat([holdings.split, torch.zeros(10, dtype=torch.int8)])
    wide = LocalGram(model=LocalWeights(many=12), ridge=3.0, ridge_per_item=0.2, ridge_power=1.0)
    feds = [
        Federation.start(Holdings.of(records, split, 6, 10), method, 1).run(1)
        for method in (wide, Gram(ridge=3.0, ridge_per_item=0.2))
    ]
    assert_close(scores(feds[0]), scores(feds[1]), atol=1e-6, rtol=1e-5)


def test_scores_add_up_what_own_items_tell():
    fed = begin(FEW).run(1)
    public = fed.now.state.public
    cohort = InProcess().cohort(fed.method, fed.now.vault, torch.arange(9))
    expected = torch.zeros(9, 14)
    for client, i in zip(cohort.own.owner.tolist(), cohort.own.item.tolist(), strict=True):
        for j in range(14):
            for place in range(3):
                if int(public["neighbour"][j, place]) == i:
                    expected[client, j] += public["weight"][j, place]
    assert_close(scores(fed), expected)


def test_bent_weights_are_a_function_of_the_whole_numbers_one_by_one():
    plain, bent = (begin(method, 0, 3).run(1).now.state for method in (FEW, BENT))
    own = SparseGram.of(plain.own).diagonal.double() / 4096
    alone = (1 / (own + FEW.ridge + FEW.ridge_per_item * own)).tolist()
    assert torch.equal(plain.public["neighbour"], bent.public["neighbour"])
    for j in range(14):
        for place in range(3):
            i = int(plain.public["neighbour"][j, place])
            if i >= 0:
                scaled = (
                    float(plain.public["weight"][j, place]) * alone[i] ** 0.1 * alone[j] ** 0.05
                )
                expected = math.copysign(abs(scaled) ** 1.1, scaled)
                found = float(bent.public["weight"][j, place])
                assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("method", [FEW, BENT])
def test_only_lists_that_a_change_can_reach_are_made_anew(method):
    fed = Federation.start(sparse_world(), method, 0).run(1)
    before, gram = Near.of(fed.now.state.own), SparseGram.of(fed.now.state.own)
    mine = fed.now.vault.holdings.lot("own")
    items = mine[2][int(mine[0][7]) : int(mine[0][7] + mine[1][7])]
    after = fed.method.unlearn(fed, Withdraw(7))
    changed_gram = SparseGram.of(after.now.state.own)
    rows = before.stale(changed_gram, items)
    assert 0 < len(rows) < gram.items / 3
    everything = torch.arange(gram.items)
    anew = Near.none(gram.items, 3).solved(changed_gram, everything, Ridge(2.0, 0.5), method.temper)
    same = Near.of(after.now.state.own)
    assert params.digest(same.packed()) == params.digest(anew.packed())
    moved = (before.item != anew.item).any(1) | (before.weight != anew.weight).any(1)
    assert set(moved.nonzero().squeeze(1).tolist()) <= set(rows.tolist())
    assert bool(moved.any())


EVENTS = {
    "withdraw": lambda fed: Withdraw(3),
    "withdraw a lender": lambda fed: Withdraw(0),
    "erase": lambda fed: Erase(lendable(fed.now.vault.holdings, 5)[:2]),
    "unshare": lambda fed: Unshare(fed.world.shared),
    "share": lambda fed: Share(lendable(fed.now.vault.holdings, 6)),
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("world", ["tiny", "sparse"])
def test_forgetting_gives_the_bits_of_never_having_had_it(name, world):
    holdings = tiny_holdings(clients=9, items=14) if world == "tiny" else sparse_world()
    fed = Federation.start(holdings, FEW, 2)
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1))).run(1)
    event: Event = EVENTS[name](fed)
    after = FEW.follow(fed, event)
    without = fed.apply(event).restart().run(1)
    assert params.digest(after.now.state.public) == params.digest(without.now.state.public)
    names = ("gram/", "lent/", "near/")
    ours, theirs = (
        {n: v for n, v in f.now.state.own.items() if n.startswith(names)} for f in (after, without)
    )
    assert params.digest(ours) == params.digest(theirs)


def test_many_changes_in_a_row_still_give_the_bits_of_what_remains():
    fed = Federation.start(sparse_world(), FEW, 2).run(1)
    for client in range(0, 40, 3):
        records = lendable(fed.now.vault.holdings, client)
        fed = FEW.unlearn(fed, (Withdraw(client), Share(records), Erase(records[:1]))[client % 3])
        if client == 15:
            fed = FEW.follow(fed, Join(0))
    without = fed.restart().run(1)
    assert params.digest(fed.now.state.public) == params.digest(without.now.state.public)


def test_a_new_block_adds_to_the_sum_and_new_items_have_no_neighbours_yet():
    fed = begin(FEW, 0).run(1)
    later = fed.apply(next_block(clients=10, items=16))
    assert scores(later).shape == (10, 16)
    assert bool((later.now.state.public["neighbour"][14:] == -1).all())
    assert np.array_equal(whole_gram(later)[:14, :14], whole_gram(fed))
    after = later.run(1)
    assert whole_gram(after).sum() > whole_gram(fed).sum()
    alone = begin(FEW, 0, executor=OneByOne()).run(1).apply(next_block(clients=10, items=16)).run(1)
    assert params.digest(alone.now.state.public) == params.digest(after.now.state.public)


def test_the_control_counts_what_was_lent_and_asks_nobody():
    control = LocalGram(model=FEW.model, source="shared")
    fed = begin(control, 0, 2)
    assert not len(control.server_sample(fed.now.state, fed.world, fed.clock.at(1)))
    fed = fed.run(1)
    held, by_hand = fed.now.vault.holdings, np.zeros((14, 14), dtype=np.int64)
    for lender in (0, 2):
        items = lendable(held, lender).item.tolist()
        for i in items:
            for j in items:
                by_hand[i, j] += round(4096 / len(items) ** 0.5)
    assert np.array_equal(whole_gram(fed), by_hand)
    for event in (Unshare(fed.world.shared[:2]), Erase(fed.world.shared[:2]), Withdraw(2)):
        after = control.follow(fed, event)
        fresh = after.restart().run(1)
        assert np.array_equal(whole_gram(after), whole_gram(fresh))
        assert not bool((after.now.state.own["counted"] >= 0).any())
    with pytest.raises(ConfigError, match="nothing would be counted"):
        LocalGram(source="shared", cross=True)


# -- chosen by the size of the catalogue ----------------------------------------------------------


def test_auto_gram_is_gram_or_local_gram_by_the_number_of_items(monkeypatch, caplog):
    assert type(begin(AutoGram(ridge=3.0)).method) is Gram
    assert not caplog.records, "the control"
    monkeypatch.setattr(auto_gram, "DENSE_ITEMS", 13)
    chosen = begin(AutoGram(ridge=3.0)).method
    assert chosen == LocalGram(ridge=3.0)
    assert caplog.text.count("LocalGram is used") == 1


def test_a_gram_that_was_named_still_refuses(monkeypatch):
    monkeypatch.setattr(auto_gram, "DENSE_ITEMS", 13)
    with pytest.raises(ConfigError, match=r"use rs\.methods\.LocalGram"):
        begin(Gram(max_items=13))


def counted_pairs(items: int, people: int = 40) -> tuple[torch.Tensor, list]:
    """A matrix of whole numbers, and its rows compressed: first, other, value."""
    seen = (torch.arange(people * items) * 7919 % 5 < 2).view(people, items).long()
    full = seen.T @ seen
    first = torch.cat([torch.zeros(1, dtype=torch.int64), (full > 0).sum(1).cumsum(0)])
    return full, [first.numpy(), full.nonzero()[:, 1].int().numpy(), full[full > 0].numpy()]


def test_entries_between_neighbours_are_those_of_the_matrix():
    """Each neighbour's row is read once for all lists; what was in the memory before is gone."""
    items, many = 12, 5
    full, columns = counted_pairs(items)
    rows = torch.arange(items)
    near = torch.stack([(rows[1 : many + 1] + j) % items for j in range(items)]).int()
    near[0, -1] = -1  # a list that is not full
    near[3] = -1  # and an empty one
    half = torch.full((items, many * (many + 1) // 2), torch.nan, dtype=torch.float64)
    towards = torch.full((items, many), torch.nan, dtype=torch.float64)
    ridge = torch.arange(items).double() + 0.5
    lists, into = (rows.numpy(), near.numpy()), [t.view(-1).numpy() for t in (half, towards)]
    _local_kernels.squares(columns, *lists, 4.0, ridge.numpy(), *into)
    inside = torch.zeros(items, many, many, dtype=torch.float64)
    inside[:, *torch.triu_indices(many, many)] = half
    for j in range(items):
        there = near[j][near[j] >= 0].long()
        size, upper = len(there), inside[j]
        right = (full[there][:, there] / 4).double() + torch.diag(ridge[there])
        assert torch.equal(upper[:size, :size], right.triu())
        assert torch.equal(towards[j, :size], (full[there, j] / 4).double())
        assert torch.equal(upper[:, size:], torch.eye(many, dtype=torch.float64)[:, size:])
        assert not towards[j, size:].any()


def test_the_nearest_are_those_of_a_whole_sort_also_among_equals():
    items, many = 12, 5
    full, columns = counted_pairs(items)
    full[:, :6] = full[:, :1]  # equal cosines: the lower number comes first
    full = torch.maximum(full, full.T) + 1
    columns[0] = (torch.arange(items + 1) * items).numpy()
    columns[1], columns[2] = torch.arange(items).repeat(items).int().numpy(), full.view(-1).numpy()
    root = full.diagonal().double().sqrt()
    near, edge = torch.empty(items, many, dtype=torch.int32), torch.empty(items).double()
    rows = torch.arange(items)
    _local_kernels.nearest(*columns, root.numpy(), rows.numpy(), near.numpy(), edge.numpy())
    cosine = (full / (root * root.unsqueeze(1))).fill_diagonal_(-1)
    order = torch.argsort(-cosine, dim=1, stable=True)[:, :many]
    assert torch.equal(near.long(), order)
    assert torch.equal(edge, cosine.gather(1, order)[:, -1])
