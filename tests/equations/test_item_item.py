"""Item-kNN and EASE: closed forms against slow, obvious versions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Records
from rescind.methods.baselines.ease import EASE, solve_weights
from rescind.methods.baselines.item_knn import ItemKNN, nearest
from rescind.models.item_item import Neighbours, client_pairs, client_pairs_sum
from worlds import begin, lendable, next_block, scores, silent


def owned(fed: Federation) -> np.ndarray:
    """Return the matrix of training items, clients x items."""
    holdings = fed.now.vault.holdings
    matrix = np.zeros((holdings.clients, holdings.items))
    mine = holdings.records[holdings.split == 0]
    matrix[mine.client, mine.item] = 1
    return matrix


def test_pairs_are_counted_as_the_product_of_the_matrix_with_itself():
    fed = begin(EASE())
    cohort = InProcess().cohort(fed.method, fed.now.vault, torch.arange(9))
    counted = client_pairs_sum(cohort).totals["pairs"].view(14, 14)
    matrix = owned(fed)
    assert np.array_equal(counted.numpy(), matrix.T @ matrix)
    assert torch.equal(
        client_pairs(cohort).fold(cohort.weight).totals["pairs"], counted.view(-1, 1)
    )
    assert counted.dtype == torch.int32, "integers, so that they can be subtracted exactly"


def test_ease_by_hand():
    # Both items with both clients, ridge 1: P = [[3, 2], [2, 3]]^-1 = [[3, -2], [-2, 3]] / 5,
    # so B_01 = -(-2 / 5) / (3 / 5) = 2 / 3.
    weights = solve_weights(torch.tensor([[2, 2], [2, 2]]), ridge=1.0)
    assert_close(weights, torch.tensor([[0.0, 2 / 3], [2 / 3, 0.0]]))


def test_ease_solves_the_regression_of_each_item_on_the_others():
    # Column j of B minimises |x_j - X b|^2 + ridge |b|^2 with b_j = 0.
    fed = begin(EASE(ridge=3.0)).run(1)
    matrix = owned(fed)
    for j in range(14):
        others = [i for i in range(14) if i != j]
        part = matrix[:, others]
        b = np.linalg.solve(part.T @ part + 3.0 * np.eye(13), part.T @ matrix[:, j])
        ours = fed.now.state.public["weights"][others, j].double()
        assert_close(ours, torch.tensor(b), atol=1e-6, rtol=1e-5)
    expected = torch.tensor(matrix).float() @ fed.now.state.public["weights"]
    assert_close(scores(fed), expected)


def test_ease_on_shared_data_asks_no_client_and_scores_with_all_items_of_a_device():
    fed = begin(EASE(source="shared", ridge=3.0), 0, 1, 2)
    seen = []
    after = fed.run(1, watch=[seen.append])
    assert sum(total.clients for total in seen[0].sums.values()) == 0
    lent = owned(fed)
    lent[3:] = 0
    expected = solve_weights(torch.tensor(lent.T @ lent).long(), 3.0)
    assert torch.equal(after.now.state.public["weights"], expected)
    assert_close(scores(after), torch.tensor(owned(fed)).float() @ expected)


def test_if_all_records_are_lent_both_sources_give_the_same():
    local = begin(EASE(), *range(9)).run(1)
    shared = begin(EASE(source="shared"), *range(9)).run(1)
    assert params.digest(local.now.state.public) == params.digest(shared.now.state.public)


def test_neighbours_by_hand():
    # Owners: item 0 by 4 clients, 1 by 1, 2 by 4, 3 by none. Together: 0 and 1 by 1, 0 and 2 by 2.
    # cos(0, 1) = 1 / sqrt(4 * 1) = .5, cos(0, 2) = 2 / sqrt(4 * 4) = .5: the lower item first.
    counts = torch.tensor([[4, 1, 2, 0], [1, 1, 0, 0], [2, 0, 4, 0], [0, 0, 0, 0]])
    found = nearest(counts, k=2, block=3)
    assert found["neighbour"].tolist() == [[1, 2], [0, -1], [0, -1], [-1, -1]]
    assert_close(found["similarity"], torch.tensor([[0.5, 0.5], [0.5, 0], [0.5, 0], [0, 0]]))


def test_neighbours_score_by_summed_similarities():
    fed = begin(ItemKNN(model=Neighbours(many=20))).run(1)  # more than there are items: all of them
    matrix = owned(fed)
    together = matrix.T @ matrix
    size = np.sqrt(np.maximum(np.diag(together), 1))
    similar = together / size[:, None] / size[None, :]
    np.fill_diagonal(similar, 0)
    assert_close(scores(fed), torch.tensor(matrix @ similar).float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cls", [EASE, ItemKNN])
def test_erasing_gives_the_same_bits_as_never_having_had_the_records(cls):
    fed = begin(cls())
    gone = Erase(lendable(fed.now.vault.holdings, 3))
    after = fed.method.unlearn(fed.run(1), gone)
    without = fed.apply(gone).run(1, watch=())
    assert params.digest(after.now.state.public) == params.digest(without.now.state.public)
    alone = begin(cls(), executor=OneByOne()).apply(gone).run(1)
    assert params.digest(after.now.state.public) == params.digest(alone.now.state.public)


@pytest.mark.parametrize("method", [EASE(), EASE(source="shared"), ItemKNN()])
@pytest.mark.parametrize("lenders", [(), (0,), tuple(range(9))])
def test_scores_are_finite_for_any_lenders(method, lenders):
    fed = begin(method, *lenders).run(1)
    assert bool(torch.isfinite(scores(fed)).all())
    assert not bool(scores(fed)[silent(9)].any()), "a client without items has only zero scores"
    assert all(math.isfinite(v) for v in fed.evaluate(k=5).values())
    later = fed.apply(next_block(clients=10, items=16))
    assert scores(later).shape == (10, 16)
    assert bool(torch.isfinite(scores(later.run(1))).all())


def test_clients_without_training_items_give_no_nan():
    empty = Holdings.of(Records.of([0], [1]), torch.tensor([2]), 2, 3)
    for method in (EASE(), ItemKNN()):
        fed = Federation.start(empty, method).run(1)
        assert not bool(scores(fed).any())
