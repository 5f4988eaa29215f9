"""KernelGram: near pairs, ratings and public ties, in whole numbers that can be taken back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core.about import about_items, alike
from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Erase, Event, Records, Share, Unshare, Withdraw
from rescind.errors import ConfigError, DataError
from rescind.methods.additive import _additive as events
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive._notes import RATED
from rescind.methods.additive._ordered import PairKernel
from rescind.methods.additive.kernel_gram import KernelGram
from rescind.storage.federations import load_federation, save_federation
from worlds import lendable, next_block, tiny_holdings

ITEMS = 14
LABELS = Labels(
    items=tuple(f"i{i}" for i in range(ITEMS)),
    titles=tuple(f"Film {i} ({1990 + i % 7})" if i != 5 else "Film" for i in range(ITEMS)),
    genres=tuple("|".join("abc"[k] for k in range(3) if i >> k & 1) for i in range(ITEMS)),
)
Marks = dict[int, dict[int, tuple[int, float]]]
"""When each client's items came, and how they were rated: marks[client][item]."""


def rated(records: Records) -> Records:
    """Records in which several items share a time, with ratings from a half to five stars."""
    stars = (records.item * 7 + records.client * 3) % 10 + 1
    return replace(records, time=records.time * 2 // 5, rating=stars.int())


def world(clients: int = 8) -> Holdings:
    holdings = tiny_holdings(clients, ITEMS)
    return replace(holdings, records=rated(holdings.records))


def later_block(clients: int, items: int, seed: int) -> Arrive:
    block = next_block(clients, items, seed)
    return replace(block, records=rated(block.records))


def marks_now(holdings: Holdings) -> Marks:
    now = (holdings.split == TRAIN) & (holdings.block == holdings.now)
    mine, out = holdings.records[now], Marks()
    assert mine.rating is not None
    columns = (mine.client, mine.item, mine.time, mine.rating / 2)
    for client, item, time, rating in zip(*(c.tolist() for c in columns), strict=True):
        out.setdefault(client, {})[item] = (time, rating)
    return out


def slow_sum(marks: Marks, items: int, kernel: PairKernel) -> np.ndarray:
    """The slow, obvious sum of near pairs. [I, I, 2]"""
    total = np.zeros((items, items, 2), dtype=np.int64)
    for mine in marks.values():
        weight = round(4096 / max(len(mine), 1) ** kernel.power)
        when = [time for time, _ in mine.values()]
        place = {
            i: sum(t < time for t in when) + (sum(t == time for t in when) - 1) / 2
            for i, (time, _) in mine.items()
        }
        for i, (_, one) in mine.items():
            for j, (_, other) in mine.items():
                like = kernel.unlike + (1 - kernel.unlike) * math.exp(-abs(one - other))
                near = math.exp(-abs(place[i] - place[j]) / kernel.reach)
                far = weight * round(4096 * like)
                total[i, j, 0] += math.floor(far / 4096 + 0.5)
                total[i, j, 1] += math.floor(far * round(4096 * near) / 4096**2 + 0.5)
    return total


def stored(total: np.ndarray) -> torch.Tensor:
    return torch.tensor(total[np.tril_indices(len(total))])


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [InProcess(), OneByOne(), InProcess(chunk=2)])
def test_the_sum_equals_the_slow_one(executor):
    method, holdings = KernelGram(reach=2.5, unlike=0.4, power=0.3), world()
    fed = Federation.start(holdings, method, executor=executor).run(1)
    slow = slow_sum(marks_now(holdings), ITEMS, method.counting)
    assert torch.equal(fed.now.state.own["gram/0000"].long(), stored(slow))
    assert not np.array_equal(slow[..., 0], slow[..., 1])


def test_weights_and_scores_equal_the_slow_ones():
    method, holdings = (
        KernelGram(ties=0.5, liking=0.2, ridge=2.0, near_ridge=1.0, near_share=0.3, years=4.0),
        world(),
    )
    fed = Federation.start(holdings, method, labels=LABELS).run(1)
    marks = marks_now(holdings)
    sums = slow_sum(marks, ITEMS, method.counting) / 4096
    words = np.array([[i >> k & 1 for k in range(3)] for i in range(ITEMS)], float)
    year = np.array([1990 + i % 7 if i != 5 else 0 for i in range(ITEMS)])
    tied = np.zeros((ITEMS, ITEMS))
    for i in range(ITEMS):
        for j in range(ITEMS):
            if words[i].any() and words[j].any() and sums[i, i, 0] and sums[j, j, 0]:
                norms = np.linalg.norm(words[i]) * np.linalg.norm(words[j])
                apart = abs(year[i] - year[j]) if 5 not in (i, j) else 0
                tied[i, j] = words[i] @ words[j] / norms * math.exp(-apart / 4.0)
    expected = np.zeros((ITEMS, ITEMS))
    for column, ridge, per, sharp, share in ((0, 2.0, 0.5, 1.1, 1.0), (1, 1.0, 0.3, 0.8, 0.3)):
        gram = sums[..., column]
        inverse = np.linalg.inv(gram + np.diag(ridge + per * np.diag(gram)) + 0.5 * tied)
        each = np.diag(inverse)
        weights = -inverse / each
        np.fill_diagonal(weights, 0)
        weights *= np.outer(each**0.2, each**0.1)
        expected += share * np.sign(weights) * np.abs(weights) ** sharp
    assert_close(fed.now.state.public["weights"], torch.tensor(expected).float())
    client = 2
    x = np.zeros(ITEMS)
    for item, (_, rating) in marks[client].items():
        x[item] = 1 + 0.2 * (rating - 3.6)
    ids = torch.tensor([client])
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    scores = method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort)
    assert_close(scores[0], torch.tensor(x @ expected).float())


def test_primal_and_dual_solutions_are_equal():
    # C = (X^T W X + ridge)^-1 = (I - X^T (W^-1 + X X^T / ridge)^-1 X / ridge) / ridge: without time
    # and ratings, all pairs of a user are of rank one.
    holdings = world()
    method = KernelGram(near_share=0.0, ridge=3.0, ridge_per_item=0.0, own_power=0, shown_power=0)
    method = replace(method, sharpen=1.0)
    fed = Federation.start(holdings, method).run(1)
    rows = [sorted(mine) for mine in marks_now(holdings).values()]
    owns = np.zeros((len(rows), ITEMS))
    for row, mine in enumerate(rows):
        owns[row, mine] = 1
    weight = np.array([round(4096 / math.sqrt(len(mine))) / 4096 for mine in rows])
    inside = np.linalg.inv(np.diag(1 / weight) + owns @ owns.T / 3.0)
    inverse = (np.eye(ITEMS) - owns.T @ inside @ owns / 3.0) / 3.0
    dual = -inverse / np.diag(inverse)
    np.fill_diagonal(dual, 0)
    assert_close(fed.now.state.public["weights"], torch.tensor(dual).float(), atol=1e-6, rtol=1e-4)


def test_the_compiled_loop_adds_what_the_readable_form_lists():
    clock, people, items = Clock(5), 40, 30
    has = clock.uniform("has", torch.arange(people).unsqueeze(1), torch.arange(items)) < 0.3
    owner, item = has.nonzero().unbind(1)
    time = clock.integers("time", torch.arange(len(owner)), 0, 9)
    stars = clock.integers("stars", torch.arange(len(owner)), 1, 11)
    lot, kernel = Lot(owner, item, people, time, stars), PairKernel(1.5, 0.5, 0.4)
    sign = torch.where(torch.arange(people) % 3 == 0, -1, 1)
    total, owners = ordered.ordered_sums(lot, sign, items, kernel)
    part, place, value = kernel.pairs(lot)
    slow = torch.zeros_like(total).index_add_(0, place, value * sign[part].unsqueeze(1))
    assert torch.equal(total, slow)
    assert torch.equal(owners, torch.bincount(place, minlength=len(total)))


def test_a_note_gives_back_order_and_rating():
    lot = Lot(*torch.tensor([[0, 0, 0, 1], [1, 3, 4, 0]]), 2, torch.tensor([9, 2, 2, 5]))
    lot = replace(lot, rating=torch.tensor([10, 1, 0, 7]))
    back = RATED.read(RATED.of(lot, 6))
    assert back.time is not None
    assert back.rating is not None
    assert back.time.tolist() == [2, 1, 1, 1]
    assert back.rating.tolist() == [10, 1, 0, 7]


# -- forgetting -----------------------------------------------------------------------------------


def request(fed: Federation, turn: int) -> Event | None:
    """Draw the next request: somebody withdraws, erases a record or two, or takes loans back."""
    clock, holdings = Clock(77), fed.now.vault.holdings
    at = torch.tensor(turn)
    kind = int(clock.integers("kind", at, 0, 6))
    people = holdings.available.nonzero().squeeze(1)
    if kind == 0 and len(people) > 12:
        return Withdraw(int(people[int(clock.integers("who", at, 0, len(people)))]))
    known = fed.world.shared if kind == 1 else lendable(holdings)
    if not len(known):
        return None
    first = int(clock.integers("which", at, 0, len(known)))
    return (Unshare if kind == 1 else Erase)(known[first : first + 2])


def test_120_random_requests_leave_what_never_was_there():
    clients = 60
    holdings, method = world(clients), KernelGram(ties=0.5, unlike=0.5, reach=2.0)
    fed = Federation.start(holdings, method, labels=LABELS).run(1)
    lenders = torch.arange(0, clients, 2).tolist()
    fed = method.follow(fed, Share(lendable(holdings, *lenders)))
    done = 0
    for turn in range(400):
        event = request(fed, turn)
        if event is None or done == 120:
            continue
        fed = method.follow(fed, event)
        done += 1
        if done % 6:
            continue
        left = fed.now.vault.holdings
        assert events.sum_digest(fed.now.state.own) == method.rebuilt(fed)
        slow = slow_sum(marks_now(left), ITEMS, method.counting)
        assert torch.equal(fed.now.state.own["gram/0000"].long(), stored(slow))
        never = Federation.start(left, method, labels=LABELS).run(1)
        assert events.sum_digest(never.now.state.own) == events.sum_digest(fed.now.state.own)
        assert torch.equal(never.now.state.public["weights"], fed.now.state.public["weights"])
    assert done == 120


def test_an_erasure_in_a_stream_reaches_the_notes_of_earlier_blocks():
    holdings, method = world(), KernelGram(unlike=0.5, reach=2.0)
    old = holdings.records[(holdings.split == TRAIN) & (holdings.records.client == 3)][:2]
    gone = Federation.start(holdings, method).run(1)
    gone = method.follow(gone, later_block(9, 16, seed=3))
    gone = method.follow(gone, Erase(old))
    gone = method.follow(gone, Withdraw(1))
    never = Federation.start(holdings.without(old).without_client(1), method).run(1)
    block = later_block(9, 16, seed=3)
    new = block.records.among(old) | (block.records.client == 1)
    block = replace(block, records=block.records[~new], split=block.split[~new])
    never = method.follow(never, block)
    assert events.sum_digest(gone.now.state.own) == events.sum_digest(never.now.state.own)
    assert torch.equal(gone.now.state.public["weights"], never.now.state.public["weights"])


def test_ratings_too_large_for_a_note_are_taken_back_as_they_were_counted():
    holdings, method = tiny_holdings(8, ITEMS), KernelGram(unlike=0.5, reach=2.0)
    plays = (holdings.records.item * 7 + holdings.records.client * 3) % 10 + 16_380
    holdings = replace(holdings, records=replace(holdings.records, rating=2 * plays))
    left = Federation.start(holdings, method).run(1)
    left = method.follow(left, Withdraw(1))
    never = Federation.start(holdings.without_client(1), method).run(1)
    assert torch.equal(left.now.state.own["gram/0000"], never.now.state.own["gram/0000"])
    assert torch.equal(left.now.state.public["weights"], never.now.state.public["weights"])


def test_an_item_that_nobody_has_ties_nothing():
    holdings, method = world(), KernelGram(ties=2.0)
    owned = holdings.records[(holdings.split == TRAIN) & (holdings.records.item == 3)]
    fed = Federation.start(holdings, method, labels=LABELS).run(1)
    fed = method.follow(fed, Erase(owned))
    unknown = LABELS.without_items([3])
    never = Federation.start(fed.now.vault.holdings, method, labels=unknown).run(1)
    assert torch.equal(fed.now.state.public["weights"], never.now.state.public["weights"])
    assert not fed.now.state.public["weights"][3].any()


def test_a_saved_federation_keeps_ratings_and_facts(tmp_path):
    method = KernelGram(ties=0.5, liking=0.1, unlike=0.5)
    fed = Federation.start(world(), method, labels=LABELS).run(1)
    again = load_federation(save_federation(fed, tmp_path / "run"))
    assert again.evaluate(k=5) == fed.evaluate(k=5)
    event = Withdraw(2)
    both = [method.follow(each, event).now.state.public["weights"] for each in (fed, again)]
    assert torch.equal(*both)


# -- data and settings ----------------------------------------------------------------------------


def test_how_alike_items_are_is_read_from_genres_and_years():
    labels = Labels(
        titles=("A (1990)", "B (1995)", "C"),
        genres=("Comedy|War", "Comedy", "War"),
        items=("0", "1", "2"),
    )
    tied = alike(about_items(labels), 4, 5.0)
    half_way = 1 / math.sqrt(2)
    assert_close(tied[0, 1], torch.tensor(half_way * math.exp(-1)))
    assert_close(tied[0, 2], torch.tensor(half_way))  # no year: words alone
    assert tied[1, 2] == 0
    assert not tied[3].any()
    assert about_items(Labels(titles=("A (1990)",))) == {}


def test_ties_need_genres():
    with pytest.raises(ConfigError, match=r"needs genres.*Set ties = 0"):
        Federation.start(world(), KernelGram.films())


@pytest.mark.parametrize("wrong", [2e9, float("nan"), -float("inf")])
def test_a_rating_that_cannot_be_kept_is_named(wrong):
    kept = Records.of([0, 1], [2, 3], rating=torch.tensor([52_686.0, -1e9]))
    assert kept.rating is not None
    assert (kept.rating / 2).tolist() == [52_686, -1e9]
    with pytest.raises(DataError, match=f"record 2 has the rating {wrong:g}".replace("+", r"\+")):
        Records.of([0, 1], [2, 3], rating=torch.tensor([5.0, wrong]))


def test_records_without_ratings_join_records_with_them():
    some, none = Records.of([0], [1], rating=torch.tensor([4.5])), Records.of([1], [2])
    both = some + none
    assert both.rating is not None
    assert both.rating.tolist() == [9, 0]
    assert (none + none).rating is None
    assert some.digest() == Records.of([0], [1]).digest()
