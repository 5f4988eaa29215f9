"""Quality of full rankings, held against ranx and against plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from rescind.core import fast
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.tasks.metrics import Owners, Ranking, masked_lot, top_k
from rescind.errors import ConfigError
from worlds import randoms

K = (1, 3, 5, 10, 20)
USERS, ITEMS = 40, 25
NAMES = {"HR": "hit_rate", "NDCG": "ndcg", "Recall": "recall", "Precision": "precision",
         "MRR": "mrr"}  # fmt: skip

# What ranx 0.3.21 says of `example()`.
RANX = {
    "HR@1": 0.2,
    "HR@3": 0.3333333333333333,
    "HR@5": 0.36666666666666664,
    "HR@10": 0.6333333333333333,
    "HR@20": 1.0,
    "NDCG@1": 0.2,
    "NDCG@3": 0.21658509907485402,
    "NDCG@5": 0.22948019264933875,
    "NDCG@10": 0.3050849445290636,
    "NDCG@20": 0.43896107612396545,
    "Recall@1": 0.08888888888888888,
    "Recall@3": 0.2333333333333333,
    "Recall@5": 0.26666666666666666,
    "Recall@10": 0.4555555555555555,
    "Recall@20": 0.9166666666666666,
    "Precision@1": 0.2,
    "Precision@3": 0.17777777777777773,
    "Precision@5": 0.11333333333333334,
    "Precision@10": 0.09333333333333334,
    "Precision@20": 0.09,
    "MRR@1": 0.2,
    "MRR@3": 0.2611111111111111,
    "MRR@5": 0.2677777777777778,
    "MRR@10": 0.30675925925925923,
    "MRR@20": 0.3307156371320457,
}


def lot(*items_of_client) -> Lot:
    owner = [c for c, items in enumerate(items_of_client) for _ in items]
    item = [i for items in items_of_client for i in sorted(items)]
    ints = torch.tensor
    return Lot(ints(owner, dtype=torch.int64), ints(item, dtype=torch.int64), len(items_of_client))


def cohort_of(own, held, items: int = ITEMS) -> Cohort:
    mine = lot(*own)
    return Cohort(torch.arange(len(own)), items, mine, mine, held=lot(*held))


def example() -> tuple[list[list[float]], list[list[int]], list[list[int]]]:
    """Scores, own items and held-out items; some hold out nothing, some own nearly everything."""
    scores = randoms(USERS, ITEMS, seed=11).tolist()
    own, held = [], []
    for user in range(USERS):
        order = torch.argsort(Clock(5).bits("items", torch.tensor(user), torch.arange(ITEMS)))
        count = 22 if user % 10 == 3 else user % 8
        own.append(order[:count].tolist())
        held.append(order[count : count + user % 4].tolist())
    return scores, own, held


def measured(scores, own, held, k=K, items: int = ITEMS, **settings) -> dict[str, float]:
    cohort, metric = cohort_of(own, held, items), Ranking(k=k, **settings)
    totals, weight = metric.totals(torch.tensor(scores, dtype=torch.float64), cohort, cohort.own)
    return metric.finish(totals, weight)


def test_ranking_measures_are_those_of_ranx_to_six_digits():
    ours = measured(*example())
    assert len(RANX) == len(NAMES) * len(K)
    for name, value in RANX.items():
        assert ours[name] == pytest.approx(value, abs=1e-6), name


def by_hand(scores, own, held, k: int) -> dict[str, float]:
    """The same measures, user by user and item by item."""
    total = dict.fromkeys(NAMES, 0.0)
    users = [u for u in range(len(held)) if held[u]]
    for u in users:
        ranked = sorted((i for i in range(len(scores[u])) if i not in own[u]),
                        key=lambda i: (-scores[u][i], i))[:k]  # fmt: skip
        gains = [1 if item in held[u] else 0 for item in ranked]
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(held[u]))))
        total["HR"] += any(gains)
        total["Recall"] += sum(gains) / len(held[u])
        total["Precision"] += sum(gains) / k
        total["MRR"] += next((1 / (p + 1) for p, gain in enumerate(gains) if gain), 0)
        total["NDCG"] += sum(g / math.log2(p + 2) for p, g in enumerate(gains)) / ideal
    return {f"{name}@{k}": value / len(users) for name, value in total.items()}


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_tied_scores_rank_the_lower_item_first_everywhere(levels):
    scores, own, held = example()
    tied = [[float(round(s * levels / 2)) for s in row] for row in scores]
    ours = measured(tied, own, held)
    for k in K:
        for name, value in by_hand(tied, own, held, k).items():
            assert ours[name] == pytest.approx(value, abs=1e-12), name


def test_the_best_come_first_and_ties_go_to_the_lower_item():
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert top_k(scores, None, 3).tolist() == [[1, 3, 2], [0, 1, 2]]
    assert top_k(scores, None, 5).tolist() == [[1, 3, 2, 4, 0], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("k", [1, 7, 50])
@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_compiled_lists_are_those_of_pytorch(monkeypatch, k, levels, kind):
    pytest.importorskip("numba")  # once it is loaded, it ranks few scores, too
    draw = torch.Generator().manual_seed(k)
    scores = torch.randn(9, 40, generator=draw).to(kind)
    scores = scores if levels is None else (scores * levels).round()
    scores[0, 3], scores[1, 5], scores[2, 7] = math.nan, math.inf, -math.inf
    own = torch.unique(torch.randint(0, 9 * 40, (120,), generator=draw))
    masked = Lot(own // 40, own % 40, 9)
    found = [top_k(scores, lots, k) for lots in (masked, None)]
    monkeypatch.setattr(fast, "compiled", lambda: False)
    assert [f.tolist() for f in found] == [top_k(scores, m, k).tolist() for m in (masked, None)]


def test_a_tie_across_the_end_of_the_list_keeps_the_lower_item():
    # Items 1..99 tie for the second place of two.
    scores = torch.ones(1, 100)
    scores[0, 77] = 2.0
    assert top_k(scores, None, 2).tolist() == [[77, 0]]
    assert top_k(scores.double().flip(1), None, 2).tolist() == [[22, 0]]


def test_masked_items_are_never_shown_and_missing_places_are_marked():
    scores = torch.tensor([[5.0, 4.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    masked = lot([0], [0, 1, 2], [1])
    assert top_k(scores, masked, 3).tolist() == [[1, 2, -1], [-1, -1, -1], [0, 2, -1]]
    assert top_k(scores, None, 5).tolist()[0] == [0, 1, 2, -1, -1]
    assert scores[0].tolist() == [5.0, 4.0, 3.0]  # the scores given are left alone


def test_scores_that_are_not_numbers_come_after_everything():
    scores = torch.tensor([[math.nan, 1.0, math.inf, -math.inf, 2.0]])
    assert top_k(scores, None, 3).tolist() == [[2, 4, 1]]
    assert 0 not in top_k(scores, None, 4).tolist()[0]
    result = measured([[math.nan] * 3], [[]], [[1]], k=(2,), items=3)
    assert result["HR@2"] == 0.0
    assert result["coverage@2"] == 0.0


def test_users_without_held_out_items_do_not_count():
    result = measured([[2.0, 1.0], [1.0, 2.0]], [[], []], [[0], []], k=(1,), items=2)
    assert result["HR@1"] == 1.0


def test_nobody_to_measure_gives_not_a_number():
    result = measured([[2.0, 1.0]], [[0]], [[]], k=(1,), items=2)
    assert math.isnan(result["HR@1"])
    assert math.isnan(result["NDCG@1"])


def test_coverage_and_popularity_by_hand():
    # Four items, three users. Owned: item 0 by users 0 and 1, item 1 by user 2: shares 2/3, 1/3.
    # Shown at K = 2: user 0 gets 3, 1; user 1 gets 1, 2; user 2 gets 0, 3. All items are shown.
    # Popularity: (0 + 1/3 + 1/3 + 0 + 2/3 + 0) / 6 = 2/9. At K = 1: 3, 1, 0 -> 3/4, (1/3 + 2/3)/3.
    scores = [[9.0, 2.0, 1.0, 3.0], [9.0, 3.0, 2.0, 1.0], [3.0, 9.0, 1.0, 2.0]]
    result = measured(scores, [[0], [0], [1]], [[1], [1], [2]], k=(1, 2), items=4)
    assert result["coverage@1"] == pytest.approx(3 / 4)
    assert result["coverage@2"] == 1.0
    assert result["popularity@1"] == pytest.approx(1 / 3)
    assert result["popularity@2"] == pytest.approx(2 / 9)


def test_totals_of_two_cohorts_add_up_to_those_of_one():
    scores, own, held = example()
    metric, whole = Ranking(k=K), measured(*example())
    parts = []
    for some in (slice(0, 13), slice(13, USERS)):
        cohort = cohort_of(own[some], held[some])
        parts.append(metric.totals(torch.tensor(scores[some]).double(), cohort, cohort.own))
    (one, first), (two, second) = parts
    both = metric.finish({name: one[name] + two[name] for name in one}, first + second)
    assert both == pytest.approx(whole, abs=1e-12)


def test_several_lots_mask_together():
    cohort = cohort_of([[0], [1]], [[], []], items=4)
    both = masked_lot(cohort, [cohort.own, lot([2], [1, 3])])
    assert both.owner.tolist() == [0, 0, 1, 1, 1]
    assert both.count.tolist() == [2, 3]
    assert top_k(torch.ones(2, 4), both, 2).tolist() == [[1, 3], [0, 2]]


def test_ownership_is_counted_and_its_head_share_by_hand():
    # 20 items; 10 records, 6 of them on the top two: the top tenth has 6/10.
    own = [[0, 1], [0, 1], [0, 1, 5], [9], [10], [11]]
    cohort = cohort_of(own, [[]] * 6, items=20)
    totals, count = Owners().totals(torch.empty(0), cohort, cohort.own)
    assert totals["owners"].tolist()[:6] == [3, 3, 0, 0, 0, 1]
    assert count == 6
    assert Owners().finish(totals, count)["head share"] == pytest.approx(0.6)


@pytest.mark.parametrize("wrong", [{"split": "train"}, {"k": ()}, {"k": (5, 0)}])
def test_a_measure_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        Ranking(**wrong)


def test_lists_longer_than_the_catalogue_cost_no_more():
    """A number with a few zeros too many ended in an error of the allocator."""
    whole = measured(*example(), k=(ITEMS,))
    huge = measured(*example(), k=(10**9,))
    for name, value in whole.items():
        metric = name.partition("@")[0]
        expected = value * ITEMS / 10**9 if metric == "Precision" else value
        assert huge[f"{metric}@{10**9}"] == pytest.approx(expected), name
