"""The ranking task by hand: negatives, BPR (FedShare Eq. 15) and BCE, values and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from lazily import Lazily
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.plan import Batch, Plan, Work
from rescind.core.tasks import ranking
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF

stats = Lazily("scipy.stats")


@dataclass(frozen=True)
class Recipe:
    """The fields of a method that the ranking task reads."""

    loss: str = "bpr"
    reduce: str = "mean"
    negatives: int = 1
    batch_size: int | None = None
    temperature: float = 1.0
    decay: float = 0.0


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def lot(*items_of_client) -> Lot:
    owner = [c for c, items in enumerate(items_of_client) for _ in items]
    items = [i for mine in items_of_client for i in sorted(mine)]
    return Lot(ints(owner), ints(items), len(items_of_client))


def crowd(own: list[list[int]], items: int, ids=None, train=None) -> Cohort:
    mine = lot(*own)
    clients = torch.arange(len(own)) if ids is None else ints(ids)
    return Cohort(clients, items, mine if train is None else lot(*train), mine)


def draws(cohort: Cohort, place: int, n: int, seed: int = 0) -> torch.Tensor:
    k = torch.arange(n)
    return ranking.draw_negatives(Clock(seed), cohort, torch.full_like(k, place), k)


OWN = [[0, 1, 2], [3, 7, 9], [], [0, 1, 2, 3, 4, 5, 6, 8, 9], list(range(10)), [9], [0]]


@pytest.mark.parametrize("place", [0, 1, 2, 5, 6])
def test_negatives_are_uniform_over_what_a_client_does_not_own(place):
    drawn = draws(crowd(OWN, 10), place, 6000)
    count = torch.bincount(drawn, minlength=10)
    free = [item for item in range(10) if item not in OWN[place]]
    assert int(count[OWN[place]].sum()) == 0
    assert stats.chisquare(count[free].numpy()).pvalue > 1e-4


def test_the_only_item_left_is_always_drawn():
    assert set(draws(crowd(OWN, 10), 3, 50).tolist()) == {7}


def test_a_client_that_owns_everything_has_no_negative():
    assert set(draws(crowd(OWN, 10), 4, 50).tolist()) == {-1}


def test_every_pattern_of_ownership_of_five_items_is_drawn_around():
    patterns = [[i for i in range(5) if number >> i & 1] for number in range(32)]
    cohort = crowd(patterns, 5)
    for place, own in enumerate(patterns):
        expected = set(range(5)) - set(own) or {-1}
        assert set(draws(cohort, place, 120).tolist()) == expected


def test_a_clients_negatives_do_not_depend_on_the_crowd():
    together = draws(crowd([[2], [0, 4], [1]], 40, ids=[8, 3, 5]), 1, 30)
    alone = draws(crowd([[0, 4]], 40, ids=[3]), 0, 30)
    other = draws(crowd([[0, 4]], 40, ids=[4]), 0, 30)
    assert together.tolist() == alone.tolist() != other.tolist()


def test_the_smallest_and_largest_draw_are_the_first_and_last_open_item(monkeypatch):
    cohort, owner, k = crowd([[0, 1, 5], [3, 9]], 10), ints([0, 1]), ints([0, 0])
    monkeypatch.setattr(Clock, "bits", lambda *_: ints([0, 0]))
    assert ranking.draw_negatives(Clock(0), cohort, owner, k).tolist() == [2, 0]
    monkeypatch.setattr(Clock, "bits", lambda *_: ints([-1, -1]))
    assert ranking.draw_negatives(Clock(0), cohort, owner, k).tolist() == [9, 8]


def test_a_bpr_plan_pairs_every_record_with_its_own_negatives():
    cohort = crowd([[0, 2], [1], []], 6)
    plan = ranking.plan(Recipe(negatives=3), cohort, Clock(0))
    assert plan.owner.tolist() == [0] * 6 + [1] * 3
    assert plan.items["positive"].tolist() == [0] * 3 + [2] * 3 + [1] * 3
    for owner, negative in zip(plan.owner, plan.items["negative"], strict=True):
        assert int(negative) not in ([0, 2], [1])[int(owner)]
    assert plan.sizes == (9,)


def test_a_bce_plan_labels_records_one_and_negatives_zero():
    plan = ranking.plan(Recipe(loss="bce", negatives=2), crowd([[0, 2], [1]], 6), Clock(0))
    assert plan.values["label"].tolist() == [1, 0, 0] * 3
    item = plan.items["item"].tolist()
    assert item[::3] == [0, 2, 1]
    assert not {0, 2} & set(item[1:3] + item[4:6])
    assert plan.owner.tolist() == [0] * 6 + [1] * 3


def test_a_client_that_owns_everything_trains_on_labels_only():
    everything = crowd([[0, 1, 2], [1]], 3)
    pairs = ranking.plan(Recipe(negatives=2), everything, Clock(0))
    assert pairs.owner.tolist() == [1, 1]
    labels = ranking.plan(Recipe(loss="bce", negatives=2), everything, Clock(0))
    assert labels.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert labels.items["item"].tolist()[:4] == [0, 1, 2, 1]
    assert labels.values["label"].tolist() == [1, 1, 1, 1, 0, 0]


def test_negatives_avoid_what_a_device_lent_though_it_does_not_train_on_it():
    cohort = crowd([[0, 1, 2, 3]], 6, train=[[0]])
    plan = ranking.plan(Recipe(negatives=40), cohort, Clock(0))
    assert set(plan.items["positive"].tolist()) == {0}
    assert set(plan.items["negative"].tolist()) == {4, 5}


@pytest.mark.parametrize("loss", ["bpr", "bce"])
def test_batches_cut_each_clients_samples_and_lose_none(loss):
    cohort = crowd([[0, 2, 4, 5, 6], [], [1], [3, 4]], 30)
    whole = ranking.plan(Recipe(loss=loss, negatives=2), cohort, Clock(0))
    cut = ranking.plan(Recipe(loss=loss, negatives=2, batch_size=4), cohort, Clock(0))

    def rows(plan: Plan) -> list[tuple]:
        columns = [plan.owner, *plan.items.values(), *plan.values.values()]
        return list(zip(*(column.tolist() for column in columns), strict=True))

    assert sorted(rows(cut)) == sorted(rows(whole))
    assert rows(cut) != rows(whole)
    count = torch.bincount(whole.owner, minlength=4).tolist()
    at = 0
    for wave, size in enumerate(cut.sizes):
        owner = cut.owner[at : at + size].tolist()
        expected = [min(max(n - 4 * wave, 0), 4) for n in count]
        assert [owner.count(c) for c in range(4)] == expected
        assert owner == sorted(owner)
        at += size
    assert at == len(cut.owner)


def test_a_clients_batches_do_not_depend_on_the_crowd():
    # Both have more than a batch, alone and in the crowd.
    recipe = Recipe(negatives=2, batch_size=3)
    crowded = crowd([[1, 2, 9], [0, 4, 5, 6]], 30, ids=[7, 3])
    together = ranking.plan(recipe, crowded, Clock(0))
    alone = ranking.plan(recipe, crowd([[0, 4, 5, 6]], 30, ids=[3]), Clock(0))
    mine = together.owner == 1
    for name, column in alone.items.items():
        assert together.items[name][mine].tolist() == column.tolist()


def work_of(
    cohort: Cohort, plan: Plan, item: torch.Tensor, user: torch.Tensor
) -> tuple[Work, Batch]:
    public, private = {"item": item}, {"user": user}
    work = Work.begin([plan], ["item", "user"], ("item",), public, private, cohort)
    return work, next(work.batches(plan))


ITEM = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
USER = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.float64)


def pairs_of_two() -> tuple[Cohort, Plan]:
    """Client 0: (1 over 0) and (1 over 2). Client 1: (0 over 2)."""
    cohort = crowd([[1], [0]], 3)
    items = {"positive": ints([1, 1, 0]), "negative": ints([0, 2, 2])}
    return cohort, Plan.of(ints([0, 0, 1]), 2, None, None, items)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_bpr_eq_15_values_by_hand():
    # MF scores: client 0: 1, 4, 3; client 1: -1, 1, -0.5.
    # Client 0: margins 4 - 1 = 3 and 4 - 3 = 1: log(1 + e^-3) = .0485874, log(1 + e^-1) = .3132617.
    # Client 1: margin -1 - (-0.5) = -0.5: log(1 + e^.5) = .9740770.
    cohort, plan = pairs_of_two()
    work, batch = work_of(cohort, plan, ITEM, USER)
    total = ranking.loss(Recipe(reduce="sum"), MF(), work, batch, cohort).tolist()
    assert total == pytest.approx([0.3618491, 0.9740770], abs=1e-7)
    mean = ranking.loss(Recipe(), MF(), work, batch, cohort).tolist()
    assert mean == pytest.approx([0.1809245, 0.9740770], abs=1e-7)
    # Temperature .5 doubles the margins: 6, 2 and -1.
    warm = ranking.loss(Recipe(reduce="sum", temperature=0.5), MF(), work, batch, cohort).tolist()
    expected = [math.log1p(math.exp(-6)) + math.log1p(math.exp(-2)), math.log1p(math.e)]
    assert warm == pytest.approx(expected, abs=1e-12)


def test_bpr_eq_15_gradients_by_hand():
    # d softplus(-m) / dm = -sigmoid(-m).
    # Client 0: a = sigmoid(-3) = .0474, b = sigmoid(-1) = .2689;
    #   user: -a (q1 - q0) - b (q1 - q2);  q1: -(a + b) u;  q0: a u;  q2: b u.
    # Client 1: c = sigmoid(.5) = .6225;  user: -c (q0 - q2);  q0: -c u;  q2: c u.
    cohort, plan = pairs_of_two()
    work, batch = work_of(cohort, plan, ITEM, USER)
    loss = ranking.loss(Recipe(reduce="sum"), MF(), work, batch, cohort)
    user, rows = torch.autograd.grad(loss.sum(), [work.own["user"], work.rows["item"]])
    a, b, c = sigmoid(-3), sigmoid(-1), sigmoid(0.5)
    assert user.flatten().tolist() == pytest.approx([a + b, -2 * a - b, 0.0, c], abs=1e-12)
    # The shelf: client 0's rows 0, 1, 2, then client 1's rows 0 and 2.
    assert work.shelf.owner.tolist() == [0, 0, 0, 1, 1]
    assert work.shelf.item.tolist() == [0, 1, 2, 0, 2]
    expected = [a, 2 * a, -(a + b), -2 * (a + b), b, 2 * b, c, -c / 2, -c, c / 2]
    assert rows.flatten().tolist() == pytest.approx(expected, abs=1e-12)


def labelled() -> tuple[Cohort, Plan]:
    """Client 0: item 1 is a 1, item 0 a 0. Client 1: item 0 is a 1."""
    cohort = crowd([[1], [0]], 3)
    values = {"label": torch.tensor([1.0, 0.0, 1.0])}
    return cohort, Plan.of(ints([0, 0, 1]), 2, None, None, {"item": ints([1, 0, 0])}, values)


def test_bce_values_and_gradients_by_hand():
    # Scores 4 (label 1), 1 (label 0); -1 (label 1).
    # Client 0: log(1 + e^-4) + log(1 + e^1) = .0181499 + 1.3132617. Client 1: log(1 + e^1).
    # d / ds = sigmoid(s) - label: p = sigmoid(4) - 1 = -.0180, n = sigmoid(1) = .7311;
    # r = sigmoid(-1) - 1 = -.7311.
    cohort, plan = labelled()
    work, batch = work_of(cohort, plan, ITEM, USER)
    loss = ranking.loss(Recipe(loss="bce", reduce="sum"), MF(), work, batch, cohort)
    assert loss.tolist() == pytest.approx([1.3314116, 1.3132617], abs=1e-7)
    user, rows = torch.autograd.grad(loss.sum(), [work.own["user"], work.rows["item"]])
    p, n, r = sigmoid(4) - 1, sigmoid(1), sigmoid(-1) - 1
    assert user.flatten().tolist() == pytest.approx([n, 2 * p, r, 0.0], abs=1e-12)
    assert rows.flatten().tolist() == pytest.approx([n, 2 * n, p, 2 * p, -r, r / 2], abs=1e-12)
    mean = ranking.loss(Recipe(loss="bce"), MF(), work, batch, cohort)
    assert mean.tolist() == pytest.approx([1.3314116 / 2, 1.3132617], abs=1e-7)


def test_bce_with_temperature_divides_the_scores():
    cohort, plan = labelled()
    work, batch = work_of(cohort, plan, ITEM, USER)
    loss = ranking.loss(Recipe(loss="bce", temperature=2.0), MF(), work, batch, cohort)
    expected = [(math.log1p(math.exp(-2)) + math.log1p(math.exp(0.5))) / 2,
                math.log1p(math.exp(0.5))]  # fmt: skip
    assert loss.tolist() == pytest.approx(expected, abs=1e-12)


def test_decay_counts_the_sampled_rows_of_each_sample():
    # Squared lengths: q0 1, q1 4, q2 2. Client 0: (4 + 1) + (4 + 2) = 11; client 1: 1 + 2 = 3.
    cohort, plan = pairs_of_two()
    work, batch = work_of(cohort, plan, ITEM, USER)
    bare = ranking.loss(Recipe(reduce="sum"), MF(), work, batch, cohort)
    heavy = ranking.loss(Recipe(reduce="sum", decay=0.1), MF(), work, batch, cohort)
    assert (heavy - bare).tolist() == pytest.approx([1.1, 0.3], abs=1e-12)


def test_extreme_scores_give_finite_losses_and_gradients():
    cohort, plan = pairs_of_two()
    work, batch = work_of(cohort, plan, ITEM * 1e4, USER * 1e4)
    loss = ranking.loss(Recipe(reduce="sum"), MF(), work, batch, cohort)
    grads = torch.autograd.grad(loss.sum(), [work.own["user"], work.rows["item"]])
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_one_clients_loss_does_not_reach_anothers_values():
    cohort, plan = pairs_of_two()
    work, batch = work_of(cohort, plan, ITEM, USER)
    loss = ranking.loss(Recipe(), LightGCN(dim=2), work, batch, cohort)
    user, rows = torch.autograd.grad(loss[0], [work.own["user"], work.rows["item"]])
    assert user[1].tolist() == [0.0, 0.0]
    assert rows[work.shelf.owner == 1].abs().sum() == 0
    assert rows[work.shelf.owner == 0].abs().sum() > 0


def test_a_client_without_a_sample_in_the_wave_has_no_loss():
    cohort, plan = pairs_of_two()
    only = replace(plan, owner=plan.owner[:2], sizes=(2,),
                   items={n: c[:2] for n, c in plan.items.items()})  # fmt: skip
    work, batch = work_of(cohort, only, ITEM, USER)
    assert batch.active.tolist() == [True, False]
    assert ranking.loss(Recipe(), MF(), work, batch, cohort)[1].item() == 0.0


def test_ego_graph_eq_13_by_hand():
    # u = (3, 1), items v1 = (0, 2), v2 = (1, 1), n = 2:
    # u' = u / 2 + (v1 + v2) / (2 sqrt 2) = (1.5 + .353553, .5 + 1.060660) = (1.853553, 1.560660).
    # cos(u', v0) = 1.853553 / |u'|, |u'| = sqrt(3.435660 + 2.435660) = 2.423080: .764958.
    own = {"user": torch.tensor([[3.0, 1.0], [3.0, 4.0]], dtype=torch.float64)}
    mine = lot([1, 2], [])
    model = LightGCN(dim=2)
    inferred = model.infer({"item": ITEM[mine.item]}, own, mine)
    assert inferred["user"][0].tolist() == pytest.approx([1.853553, 1.560660], abs=1e-6)
    assert inferred["user"][1].tolist() == [1.5, 2.0]  # no neighbours: half of itself
    scores = model.scores({"item": ITEM}, inferred)
    assert float(scores[0, 0]) == pytest.approx(0.764958, abs=1e-6)
    assert scores[1].tolist() == pytest.approx([0.6, 0.8, 1.4 / math.sqrt(2)], abs=1e-12)
    flat = model.score({"item": ITEM[ints([2, 0])]}, inferred, ints([1, 0]))
    assert flat.tolist() == pytest.approx([1.4 / math.sqrt(2), float(scores[0, 0])], abs=1e-12)


def test_the_probe_of_audits_is_minus_log_sigmoid():
    cohort, scores = crowd([[1], []], 2), torch.tensor([[0.0, 2.0], [-800.0, 5.0]])
    owner, item = ints([0, 0, 1]), ints([0, 1, 0])
    losses = ranking.answer(scores, cohort, owner, item, "loss")
    assert losses.tolist() == pytest.approx([math.log(2), math.log1p(math.exp(-2)), 800.0])
    assert ranking.answer(scores, cohort, owner, item, "score").tolist() == [0.0, 2.0, -800.0]
    hidden = ranking.answer(scores, cohort, owner, item, "open").tolist()
    assert hidden == [0.0, -math.inf, -800.0]
    assert scores.tolist() == [[0.0, 2.0], [-800.0, 5.0]]
