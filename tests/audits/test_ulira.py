"""U-LiRA on laws that are known, and on shadows of a small world."""

from __future__ import annotations

import math

import pytest
import torch

from rescind.audits.case import Case
from rescind.audits.ulira import (
    NEGATIVES,
    attack,
    halves,
    judge,
    likelihood_ratio,
    negatives,
    phi,
    shadow,
)
from rescind.core.clock import Clock
from rescind.core.records import Withdraw
from rescind.errors import ConfigError
from rescind.forgetting.examine import examine_records
from worlds import randoms

PAIRS, RECORDS, PEOPLE = 8, 400, 40


def planted(leak: float, seed: int = 0):
    """Shadows' phi of records with a mean of their own; a record that was in stands out by leak."""
    inside = halves(RECORDS, PAIRS, Clock(seed))
    own = randoms(RECORDS, seed=seed, purpose="own") * 3
    phis = own + randoms(2 * PAIRS, RECORDS, seed=seed, purpose="chance") + leak * inside
    return phis, inside, torch.arange(RECORDS) % PEOPLE


def test_partners_share_the_records_out():
    inside = halves(1000, 5, Clock(0))
    assert torch.equal(inside[0::2], ~inside[1::2])
    assert abs(float(inside[0].double().mean()) - 0.5) < 0.05
    assert not torch.equal(inside[0], inside[2])


def test_a_leak_of_known_size_is_found_within_its_interval():
    # Means are estimated from 7 numbers a side, so d' = leak / sqrt(1 + 1/7) at most:
    # the best AUC is Phi(leak / sqrt(2)); the attack, which must learn the means, stays below it.
    leak = 2.0
    found = attack(*planted(leak), Clock(1))
    best = 0.5 * (1 + math.erf(leak / 2))
    assert found.auc[1] <= found.auc[0] <= found.auc[2]
    assert best - 0.03 < found.auc[0] <= best + 0.01
    assert found.tpr_1[0] > 0.1


def test_no_leak_gives_one_half_and_no_more_true_than_false_positives():
    inside, worst = 0, []
    for seed in range(20):
        found = attack(*planted(0.0, seed), Clock(1))
        inside += found.auc[1] <= 0.5 <= found.auc[2]
        assert abs(found.auc[0] - 0.5) < 0.03
        assert found.tpr_1[0] < 0.03
        worst.append(found.worst[0])
    assert inside >= 17
    assert abs(sum(worst) / 20 - 0.5) < 0.02  # picking the worst is paid for by other shadows


def test_a_leak_of_a_few_records_shows_in_the_worst_tenth():
    phis, inside, person = planted(0.0)
    few = torch.arange(RECORDS) < RECORDS // 20
    found = attack(phis + 4.0 * (inside & few), inside, person, Clock(1))
    assert found.auc[0] < 0.6
    assert found.worst[0] > found.auc[0] + 0.1


def test_records_that_never_vary_give_no_side_away():
    # A person without a vector scores 0 everywhere. Leaving one shadow out, and not its partner,
    # would leave fewer numbers on its own side, and the ratio would tell.
    phis, inside, person = planted(0.0)
    phis[:, ::2] = 0.0
    assert abs(attack(phis, inside, person, Clock(1)).auc[0] - 0.5) < 0.03


def test_a_shadow_is_judged_by_the_laws_of_the_others():
    phis, inside, _ = planted(1.0)
    ratio, _ = likelihood_ratio(phis, inside, torch.ones_like(inside))
    shadow_, record = 3, 5
    rest = [m for m in range(2 * PAIRS) if m // 2 != shadow_ // 2]
    expected = 0.0
    for sign, kind in ((1, True), (-1, False)):
        mine = [float(phis[m, record]) for m in rest if bool(inside[m, record]) is kind]
        pooled, many = 0.0, 0
        for r in range(RECORDS):
            every = [float(phis[m, r]) for m in range(2 * PAIRS) if bool(inside[m, r]) is kind]
            mean = sum(every) / len(every)
            pooled += sum((x - mean) ** 2 for x in every)
            many += len(every) - 1
        variance = pooled / many * (1 + 1 / len(mine))
        gap = float(phis[shadow_, record]) - sum(mine) / len(mine)
        expected -= sign * (gap**2 / (2 * variance) + math.log(variance) / 2)
    assert float(ratio[shadow_, record]) == pytest.approx(expected)


# -- shadows of a small world ---------------------------------------------------------------------


def test_negatives_are_items_a_person_has_no_record_of(story):
    before, event, _ = story
    case = Case.of(before, event)
    drawn = negatives(before, case.people, case.clock)
    held = before.now.vault.holdings.records
    assert not bool(drawn.among(held).any())
    assert torch.bincount(drawn.client).max() == NEGATIVES


def test_phi_is_a_score_less_the_mean_over_negatives(story):
    before, event, _ = story
    case = Case.of(before, event)
    wrong = negatives(before, case.people, case.clock)
    who = int(case.forgotten.client[0])
    mine = wrong[wrong.client == who]
    expected = before.query(case.forgotten[:1])[0] - before.query(mine).mean()
    assert float(phi(before, case.forgotten, wrong)["output"][0]) == pytest.approx(float(expected))


def test_a_pipeline_that_does_nothing_fails_and_exact_retraining_does_not(story, tmp_path):
    before, event, _ = story
    one, two = (
        examine_records(before, event, who, pairs=2, workers=1, folder=tmp_path)
        for who in ("nothing", None)
    )
    by_probe = {f.check: f for f in one}
    assert by_probe["Q3 U-LiRA kept"].verdict == "FAIL"
    assert by_probe["Q3 U-LiRA kept"].value == by_probe["Q3 U-LiRA kept"].controls["no-op"]
    for finding in two:
        assert finding.verdict != "FAIL"
        assert finding.interval[0] < 0.52
        assert finding.controls["no-op"] > 0.55


def test_a_stopped_audit_goes_on_where_it_was(story, tmp_path):
    before, event, _ = story
    seen = []
    given = {"pairs": 2, "workers": 1, "folder": tmp_path}
    first = examine_records(before, event, "nothing", progress=lambda *n: seen.append(n), **given)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    lost = sorted(tmp_path.glob("shadow-*"))[1]
    lost.unlink()
    seen.clear()
    again = examine_records(before, event, "nothing", progress=lambda *n: seen.append(n), **given)
    assert seen == [(3, 4), (4, 4)]
    assert [f.facts() for f in first] == [f.facts() for f in again]


def test_a_request_too_small_to_share_out_is_refused(tiny_fed):
    fed = tiny_fed.run(1)
    case = Case.of(fed, Withdraw(1))
    lonely = (halves(len(case.forgotten), 20, case.clock).sum(1) == 0).nonzero()
    with pytest.raises(ConfigError, match="one got none"):
        shadow(case, int(lonely[0]), 20, lambda f, e: f)
    with pytest.raises(ConfigError, match="at least two pairs of shadows, got 1"):
        examine_records(fed, Withdraw(1), pairs=1)


def test_random_labels_are_a_control_of_every_finding(story):
    before, event, _ = story
    case = Case.of(before, event)
    inside = halves(len(case.forgotten), 4, case.clock)
    chance = randoms(8, len(case.forgotten))
    shadows = [
        {"output/before": chance[m] + 9.0 * inside[m], "output/after": chance[m]} for m in range(8)
    ]
    (found,) = judge(case, shadows, 4)
    assert abs(found.controls["random labels"] - 0.5) < 0.05
    assert found.controls["no-op"] > 0.95
    assert found.verdict in ("PASS", "INCONCLUSIVE")
