"""The audit on scores whose leak is known: it must be right about as often as it says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rescind.audits.case import Tail, Targets, auc_by_person
from rescind.audits.verdict import Margin, Measure, compare, equal, resample
from rescind.core.clock import Clock
from rescind.core.records import Records

PEOPLE, INSIDE, OUTSIDE, RETRAINS = 60, 16, 8, 5
MARGIN = Margin(noise=0.3, least=0.01, most=0.1)  # 60 people x 5.3 balanced pairs: .0839


def targets() -> Targets:
    client = torch.arange(PEOPLE).repeat_interleave(INSIDE + OUTSIDE)
    item = torch.arange(INSIDE + OUTSIDE).repeat(PEOPLE)
    every = Records.of(client, item)
    return Targets.of(every[item < INSIDE], every[item >= INSIDE])


TARGETS = targets()
COUNTS = resample(PEOPLE, Clock(0), "known answers", draws=60)


def scores(seed: int, leak: float = 0.0, tilt: float = 0.0) -> Tensor:
    """One model's scores: half of the spread is the record's own in every model, half is chance.

    leak: how far members stand out, in standard deviations    tilt: the same, drawn by the seed
    """
    n = torch.arange(len(TARGETS))
    own = Clock(0).normal("record", n)
    chance = Clock(seed).normal("model", n)
    seeds = float(Clock(seed).normal("seed", torch.tensor(0)))
    return (own + chance) / math.sqrt(2) + TARGETS.member * (leak + tilt * seeds)


def measured(seed: int, leak: float = 0.0, tilt: float = 0.0) -> Measure:
    return auc_by_person(scores(seed, leak, tilt), TARGETS).measure(COUNTS)


def verdict_on(trial: int, leak: float, tilt: float = 0.0) -> str:
    seeds = range(1000 * trial + 1, 1000 * trial + 1 + RETRAINS)
    found = compare(measured(1000 * trial, leak, tilt), [measured(s, tilt=tilt) for s in seeds])
    return equal(found, MARGIN.at(float(auc_by_person(scores(0), TARGETS).size)))


def test_perfect_forgetting_passes_and_a_leak_of_the_same_sample_size_fails():
    # The law of a retrain, one hundred times. Power at this size: an AUC .19 above is found.
    perfect = [verdict_on(trial, leak=0.0) for trial in range(1, 101)]
    assert perfect.count("PASS") >= 95
    assert perfect.count("FAIL") == 0
    leak = 0.7  # Phi(.7 / sqrt(2)) = .690
    leaking = [verdict_on(trial, leak) for trial in range(201, 301)]
    assert leaking.count("FAIL") >= 95


def test_over_forgetting_fails_as_well():
    below = [verdict_on(trial, leak=-0.7) for trial in range(1, 21)]
    assert below.count("FAIL") >= 19


def test_a_leak_smaller_than_the_interval_is_not_called_a_pass():
    between = [verdict_on(trial, leak=0.3) for trial in range(1, 41)]  # AUC .584: at the margin
    assert between.count("PASS") <= 4


@pytest.mark.parametrize("tilt", [0.0, 0.1])
def test_the_interval_holds_a_planted_leak_about_as_often_as_it_says(tilt):
    # Members are shifted by .2: AUC = Phi(.2 / sqrt(2)) = .5562 against .5. With a tilt, seeds
    # differ by more than people can explain, and the interval must know.
    truth = 0.5 * (1 + math.erf(0.2 / 2)) - 0.5
    held = 0
    for trial in range(1, 101):
        seeds = range(5000 * trial + 1, 5000 * trial + 1 + RETRAINS)
        found = compare(measured(5000 * trial, 0.2, tilt), [measured(s, tilt=tilt) for s in seeds])
        gap = found.reference + truth
        held += found.low <= gap <= found.high
    assert held >= 90


def test_random_labels_give_one_half():
    order = torch.argsort(Clock(3).bits("labels", torch.arange(len(TARGETS))))
    mixed = Targets(TARGETS.records, TARGETS.member[order], TARGETS.person, TARGETS.ids)
    found = auc_by_person(scores(1, leak=1.0), mixed).measure(COUNTS)
    assert abs(found.point - 0.5) < 3 * float(found.draws.std())
    assert float(found.draws.std()) < 0.03  # so that the line above says something


def test_the_tail_finds_a_leak_that_sits_in_a_few_records():
    few = TARGETS.member & (torch.arange(len(TARGETS)) % 20 == 0)  # one member in twenty is known
    sample = Tail(scores(1) + few * 10.0, TARGETS, rate=0.01)
    found = sample.measure(COUNTS)
    share = float((few & TARGETS.member).sum() / TARGETS.member.sum())
    # All of them, and the 1 % of the others that chance lets through.
    assert found.point == pytest.approx(share + 0.01 * (1 - share), abs=0.01)
