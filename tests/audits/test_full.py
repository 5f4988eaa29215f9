"""The slow checks on a small world: what they plant is found, and not found once it is gone."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from rescind.audits import backdoor as trigger
from rescind.audits import canary, durability, relearn, sequence
from rescind.audits import user_membership as people
from rescind.audits.battery import NO_OP, SHIFT, SUBJECT
from rescind.audits.case import Case, lists
from rescind.core.clock import Clock
from rescind.errors import DataError
from rescind.forgetting.examine import examine, forgotten


@pytest.fixture
def case(story):
    before, event, refs = story
    return Case.of(before, event, 0, refs)


EXACT = partial(forgotten, None)
NOTHING = partial(forgotten, "nothing")


# -- Q2 -------------------------------------------------------------------------------------------


def test_a_bound_refutes_no_smaller_epsilon_than_the_guesses_allow():
    from scipy.stats import binom

    for right, made in ((60, 100), (95, 100), (180, 200)):
        found = canary.epsilon(right, made)
        chance = math.exp(found) / (1 + math.exp(found))
        # At the bound itself, so many right guesses happen one time in twenty.
        assert binom.sf(right - 1, made, chance) == pytest.approx(0.05, abs=1e-6)
    assert canary.epsilon(50, 100) == canary.epsilon(0, 100) == 0.0
    assert canary.epsilon(100, 100) < 4  # a hundred guesses cannot refute more than they are worth


@pytest.mark.parametrize("true", [0.0, 1.0, 2.0])
def test_the_bound_lies_below_a_planted_epsilon_nineteen_times_in_twenty(true):
    chance = math.exp(true) / (1 + math.exp(true))
    below, mean = 0, 0.0
    for trial in range(200):
        right = int((Clock(trial).uniform("guess", torch.arange(200)) < chance).sum())
        found = canary.epsilon(right, 200)
        below += found <= true
        mean += found / 200
    assert below >= 180  # .95 of 200, less three standard deviations of chance
    assert mean > true - 0.5  # and not by saying nothing


def test_guesses_are_about_both_ends():
    told = torch.arange(100.0)
    trained = told >= 50
    assert canary.guesses(told, trained) == (20, 20)
    assert canary.guesses(-told, trained) == (0, 20)


def test_planted_records_are_lent_and_trained_and_nothing_else_moves(story, case):
    before, _, _ = story
    records = canary.draw(case, 40)
    held = before.now.vault.holdings
    assert not bool(records.among(held.records).any())
    fed = canary.plant(before, records, seed=5)
    after = fed.now.vault.holdings
    assert len(after.records) == len(held.records) + len(records)
    assert bool(records.among(fed.world.shared).all())
    old = after.records.among(held.records)
    assert torch.equal(after.records[old].sorted().pairs(), held.records.sorted().pairs())
    assert fed.now.state.round == 0


def test_few_records_are_planted_so_that_the_model_stays_what_it_is(case):
    drawn = canary.draw(case)
    assert 0 < len(drawn) <= canary.SHARE * len(case.trained) + canary.EACH
    assert int(torch.bincount(drawn.client).max()) <= canary.EACH


def test_canaries_are_found_where_nothing_is_forgotten_and_not_after_a_retrain(case):
    found, idle = (canary.judged(case, by).outcomes for by in (EXACT, NOTHING))
    assert idle[SUBJECT].value == pytest.approx(found[NO_OP].value)
    assert idle[SUBJECT].verdict == found[NO_OP].verdict == found[SHIFT].verdict == "FAIL"
    assert found[SUBJECT].verdict != "FAIL"
    assert abs(found[SUBJECT].value - 0.5) < found[NO_OP].value - 0.5


def test_fair_coins_pass_and_a_known_coin_fails():
    coin = Clock(1).uniform("coin", torch.arange(4000)) < 0.5
    noise = Clock(2).normal("score", torch.arange(4000))
    assert canary.outcome({"output": noise}, coin).verdict == "PASS"
    told = canary.outcome({"output": noise + coin, "kept": noise}, coin)
    assert told.verdict == "FAIL"
    assert told.value == pytest.approx(0.76, abs=0.02)  # Phi(1 / sqrt(2))
    pushed = canary.outcome({"output": noise - coin.double()}, coin)
    assert pushed.verdict == "FAIL", "records that were pushed away are found as well"


# -- Q5 -------------------------------------------------------------------------------------------


def test_a_model_that_hid_what_it_knew_knows_it_again_at_once(story, case):
    before, _, refs = story
    target = (relearn.records_auc(case, before) + relearn.records_auc(case, refs[0])) / 2
    assert relearn.rounds_until(case, before, target, 30) == 0.0
    assert relearn.rounds_until(case, refs[0], target, 30) > 0.0


def test_relearning_is_counted_beside_retrains(story, case):
    before, _, refs = story
    idle = relearn.relearn(case, before)
    assert idle.value < 0.8
    assert idle.verdict in ("FAIL", "POWERLESS")
    mine = relearn.relearn(case, refs[0])
    assert mine.value > idle.value
    assert mine.verdict != "FAIL"


def test_the_records_are_back_and_the_model_is_not(story, case):
    _, event, refs = story
    back = relearn.restore_records(case, refs[0])
    assert bool(event.records.among(back.world.shared).all())
    assert back.now.state is refs[0].now.state


# -- Q7 -------------------------------------------------------------------------------------------


def test_triggers_are_films_that_nobody_has_with_the_target(case):
    sets = trigger.trigger_sets(case)
    held = case.before.now.vault.holdings.records
    special = [i for few, target in sets for i in (*few.tolist(), target)]
    assert len(set(special)) == len(special) == trigger.SETS * (trigger.TRIGGERS + 1)
    loans = trigger.planted_loans(case, sets)
    assert set(loans.item.tolist()) <= set(special)
    assert not bool(loans.among(held).any())


def test_a_trigger_is_learnt_and_gone_after_a_retrain(case):
    found, idle = trigger.backdoor(case, EXACT), trigger.backdoor(case, NOTHING)
    assert idle.value == idle.controls["no-op"] == found.controls["no-op"] > found.value
    assert found.verdict != "FAIL"
    assert idle.verdict in ("FAIL", "POWERLESS")


# -- Q9 -------------------------------------------------------------------------------------------


def test_doing_nothing_still_fails_after_more_rounds(story, case):
    before, _, _ = story
    found = {f.check: f for f in durability.durability(case, before, steps=2, rounds=3)}
    assert found["Q9 kept"].verdict == "FAIL"
    assert "After 3, 6 more rounds" in found["Q9 kept"].note


def test_rows_that_were_never_deleted_are_found_later_too(story, case):
    # The data is gone and the rows of the people stay: nobody trains them, so they stay for good.
    before, event, _ = story
    found = {f.check: f for f in durability.durability(case, before.apply(event), 2, 2)}
    assert found["Q9 kept rows"].verdict == "FAIL"


# -- Q10 ------------------------------------------------------------------------------------------


def test_a_sequence_has_small_requests_and_one_person_twice(story):
    before, _, _ = story
    asked = sequence.draw(before, Clock(1), 12)
    assert len(asked) == 12
    sizes = [len(e.records) for e in asked]
    assert 1 <= min(sizes) <= max(sizes) <= sequence.LARGEST
    owners = [int(e.records.client[0]) for e in asked]
    assert owners[0] == owners[-1]
    assert len(set(owners)) == 11
    every = torch.cat([e.records.pairs() for e in asked])
    assert len(torch.unique(every)) == len(every)
    with pytest.raises(DataError, match="Ask for fewer requests"):
        sequence.draw(before, Clock(1), 500)


def test_requests_one_by_one_end_in_the_world_of_one_request(story):
    before, _, _ = story
    asked = sequence.draw(before, Clock(1), 4)
    after, whole = sequence.answer_all(before, asked, lambda fed, event: fed.apply(event))
    assert after.world.digest() == before.apply(whole).world.digest()
    assert len(whole.records) == sum(len(e.records) for e in asked)


# -- people ---------------------------------------------------------------------------------------


def test_the_trained_attack_tells_members_of_its_own_shadow_from_strangers(case):
    network = people._fit(case)
    ids = case.bystanders
    top = lists(case.references[-1], ids, people.LIST)
    crowd = people.popular(case).expand(len(ids), -1)
    told = [
        people._predict(network, people._contrast(case, case.trained, ids, shown))[:, 1]
        for shown in (top[:, : crowd.shape[1]], crowd)
    ]
    assert float((told[0] > told[1]).double().mean()) > 0.7


def test_features_separate_items_that_different_people_have(case):
    feature = people.item_features(case)
    rest = case.trained[~torch.isin(case.trained.client, case.people)]
    assert torch.linalg.matrix_rank(feature) == min(people.FEATURES, *feature.shape)
    assert bool((feature[torch.unique(rest.item)].abs().sum(1) > 0).all())


@pytest.mark.slow
def test_a_full_audit_has_all_its_checks_and_fails_the_no_op(story):
    before, event, refs = story
    report = examine(before, before, event, refs, level="full", unlearner="nothing", workers=1)
    names = {f.check for f in report.findings}
    assert {"Q2 canaries", "Q5 relearn", "Q7 trigger", "Q9 kept", "Q10 kept"} <= names
    assert report.verdict == "FAIL"
