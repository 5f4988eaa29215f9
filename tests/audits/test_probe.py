"""The measures of the audit, held against slow and obvious twins."""

from __future__ import annotations

import pytest
import torch

from rescind.audits.case import (
    Case,
    PerPerson,
    Tail,
    Targets,
    auc_by_person,
    balanced,
    evidence,
    in_list,
    lists,
    ranks_within,
    scores_from_split,
)
from rescind.audits.verdict import resample
from rescind.core.clock import Clock
from rescind.core.records import Erase, Join, Records, Unshare, Withdraw
from rescind.errors import ConfigError, DataError
from worlds import randoms


def made(people: int = 7, seed: int = 0) -> Targets:
    """People with 1 to 5 forgotten and 1 to 4 held-out records each."""
    clock = Clock(seed)
    inside, outside = [], []
    for person in range(people):
        one = 1 + int(clock.integers("in", torch.tensor(person), 0, 5))
        two = 1 + int(clock.integers("out", torch.tensor(person), 0, 4))
        inside += [(3 * person, item) for item in range(one)]
        outside += [(3 * person, 100 + item) for item in range(two)]
    return Targets.of(*(Records.of(*zip(*rows, strict=True)) for rows in (inside, outside)))


def slow_auc(values, targets: Targets) -> list[float]:
    """Count the pairs of every person, one by one."""
    out = []
    for person in range(targets.people):
        mine = [
            (float(v), bool(m))
            for v, m, p in zip(values, targets.member, targets.person, strict=True)
            if int(p) == person
        ]
        inside, outside = ([v for v, m in mine if m is kind] for kind in (True, False))
        wins = sum((a > b) + (a == b) / 2 for a in inside for b in outside)
        out.append(wins / (len(inside) * len(outside)))
    return out


@pytest.mark.parametrize("rounded", [False, True])
def test_auc_of_each_person_is_the_share_of_pairs_in_the_right_order(rounded):
    targets = made()
    values = randoms(len(targets))
    values = values.round() if rounded else values  # rounding makes ties, which count half
    assert auc_by_person(values, targets).value.tolist() == pytest.approx(
        slow_auc(values, targets), abs=1e-12
    )


def test_ranks_are_shared_by_equal_values_and_counted_inside_a_person():
    person = torch.tensor([0, 1, 0, 0, 1])
    values = torch.tensor([2.0, 5.0, 1.0, 2.0, 4.0])
    assert ranks_within(values, person, 2).tolist() == [2.5, 2.0, 1.0, 2.5, 1.0]


def test_people_with_one_kind_of_record_only_are_left_out():
    targets = Targets.of(Records.of([0, 1, 1], [0, 0, 1]), Records.of([1, 2], [5, 5]))
    assert targets.ids.tolist() == [1]
    assert targets.member.tolist() == [True, True, False]


def test_a_person_weighs_alike_for_both_kinds():
    targets = made()
    weight = balanced(targets)
    for person in range(targets.people):
        mine = targets.person == person
        inside, outside = (float(weight[mine & (targets.member == k)].sum()) for k in (True, False))
        assert inside == pytest.approx(outside)


def slow_tail(values, weight, member, rate: float) -> float:
    """Go down the list and stop where the held-out records above pass the rate."""
    order = sorted(range(len(values)), key=lambda i: -float(values[i]))
    out = sum(float(w) for w, m in zip(weight, member, strict=True) if not m)
    wrong = right = 0.0
    for i in order:
        wrong += 0.0 if member[i] else float(weight[i])
        if wrong > rate * out + 1e-12:
            break
        right += float(weight[i]) if member[i] else 0.0
    return right / sum(float(w) for w, m in zip(weight, member, strict=True) if m)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_the_tail_is_the_share_found_before_too_many_are_wrong(rate):
    targets = made(40)
    values = randoms(len(targets)) + targets.member * 0.5
    sample = Tail(values, targets, rate)
    counts = resample(targets.people, Clock(1), "test", draws=3)
    found = sample.measure(counts)
    weight = balanced(targets)
    assert found.point == pytest.approx(slow_tail(values, weight, targets.member, rate))
    for draw in range(3):
        drawn = weight * counts[draw][targets.person]
        assert float(found.draws[draw]) == pytest.approx(
            slow_tail(values, drawn, targets.member, rate)
        )


def test_a_bootstrap_draw_has_as_many_people_as_there_are():
    counts = resample(9, Clock(0), "test", draws=50)
    assert counts.sum(1).tolist() == [9.0] * 50
    assert float(counts.std()) > 0.5  # some twice, some not at all


def test_the_mean_over_people_follows_the_weights_in_every_draw():
    sample = PerPerson(torch.tensor([1.0, 4.0]).double(), torch.tensor([3.0, 1.0]).double())
    found = sample.measure(torch.tensor([[1.0, 1.0], [0.0, 2.0]]).double())
    assert found.point == pytest.approx(7 / 4)
    assert found.draws.tolist() == pytest.approx([7 / 4, 4.0])


def test_a_case_knows_who_asked_and_which_records_were_trained(tiny_fed):
    held = tiny_fed.now.vault.holdings
    mine = held.records[held.records.client == 1]
    case = Case.of(tiny_fed, Erase(mine))
    assert case.people.tolist() == [1]
    assert 1 not in case.bystanders.tolist()
    split = held.split[held.records.client == 1]
    assert len(case.forgotten) == int((split == 0).sum()) < len(mine)
    assert Case.of(tiny_fed, Withdraw(1)).forgotten.digest() == case.forgotten.digest()


def test_what_cannot_be_audited_is_refused_by_name(tiny_fed):
    with pytest.raises(ConfigError, match="Join does not ask to forget anything"):
        Case.of(tiny_fed, Join(3))
    held = tiny_fed.now.vault.holdings
    with pytest.raises(DataError, match="names no record that the model was trained on"):
        Case.of(tiny_fed, Unshare(held.records[held.split == 2]))


def test_evidence_is_higher_where_the_score_is(tiny_fed):
    records = Case.of(tiny_fed, Withdraw(1)).targets.records
    score = tiny_fed.query(records)
    assert torch.equal(torch.argsort(evidence(tiny_fed, records)), torch.argsort(score))


def test_lists_leave_out_what_people_own_and_are_the_best_of_the_rest(tiny_fed):
    fed = tiny_fed.run(2)
    ids = torch.tensor([1, 3])
    top, served = lists(fed, ids, k=3), lists(fed, ids, k=3, mask=("had",))
    assert not torch.equal(top, served), "an attacker sees held-out items, too"
    for row, client in enumerate(ids.tolist()):
        items = torch.arange(fed.world.sizes.items)
        everything = Records.of(torch.full_like(items, client), items)
        own = fed.now.vault.holdings.of_clients("own", ids[row : row + 1]).item
        open_ = fed.query(everything).index_fill(0, own, -torch.inf)
        for shown, scores in ((top, open_), (served, fed.query(everything, "open"))):
            best = torch.argsort(scores, descending=True, stable=True)[:3]
            assert shown[row].tolist() == best.tolist()
    record = Records.of([1, 1], [int(top[0, 0]), int(fed.now.vault.holdings.lot("own")[2][0])])
    assert in_list(top, ids, record)[0]


def test_the_table_attack_knows_a_person_by_validation_items_alone(tiny_fed):
    fed = tiny_fed.run(2)
    case = Case.of(fed, Withdraw(1))
    found = scores_from_split(fed, "valid", case.tested, fed)
    item = torch.nn.functional.normalize(fed.now.state.public["item"].double(), dim=-1)
    valid = case.valid.item[case.valid.client == 1]
    user = torch.nn.functional.normalize(
        fed.now.state.public["item"][valid].double().sum(0), dim=-1
    )
    assert found.tolist() == pytest.approx(
        (item[case.tested.records.item] @ user).tolist(), abs=1e-6
    )
