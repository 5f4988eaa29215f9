"""Q5, relearning: forgotten records must take as long to relearn as for a retrained model."""

from __future__ import annotations

import math
from dataclasses import replace

from rescind.audits import membership, state_attacks
from rescind.audits.case import Case, PerPerson
from rescind.audits.finding import Finding
from rescind.core.doing import step
from rescind.core.federation import Federation

EVERY = 5  # rounds between two measurements
FRACTION = 0.5  # fraction of the way from a retrain to the model before the request
LOW, HIGH = 0.8, 1.25
"""Ratio to the rounds of retrains that counts as equal."""


def restore_records(case: Case, fed: Federation) -> Federation:
    """Return the model with the world and the devices of before the request."""
    vault = replace(fed.now.vault, holdings=case.before.now.vault.holdings)
    return replace(fed, world=case.before.world, now=replace(fed.now, vault=vault))


def records_auc(case: Case, fed: Federation) -> float:
    """Compute the AUC of the records, from user rows on the server if any, else from the model."""
    sample: PerPerson | None = None
    if case.ranks:
        sample = state_attacks.kept_rows(case, fed)
    sample = sample or membership.population(case, fed)
    return float((sample.value * sample.weight).sum() / max(sample.size, 1e-12))


def rounds_until(case: Case, fed: Federation, target: float, most: int) -> float:
    """Count rounds until the AUC reaches the target, interpolating between measurements."""
    now, spent = restore_records(case, fed), 0
    before = records_auc(case, now)
    if before >= target:
        return 0.0
    while spent < most:
        now = now.run(EVERY)
        after = records_auc(case, now)
        if after >= target:
            return spent + EVERY * (target - before) / (after - before)
        spent, before = spent + EVERY, after
    return float(most)


def relearn(case: Case, fed: Federation) -> Finding:
    """Compare rounds of the subject with those of retrains, with an interval over retrains."""
    from scipy.stats import t as student

    fresh = Case(case.before, case.event, case.clock, case.references)
    start = [records_auc(fresh, r) for r in case.references]
    top, bottom = records_auc(fresh, case.before), sum(start) / len(start)
    target, most = bottom + FRACTION * (top - bottom), max(EVERY, case.before.now.state.round)
    models, spent = (fed, case.before, *case.references), []
    with step("learning the records again", len(models), "models") as shown:
        for model in models:
            spent.append(rounds_until(fresh, model, target, most))
            shown.count()
    subject, no_op, *retrains = spent
    logs = [math.log(max(r, 0.5)) for r in retrains]
    middle = sum(logs) / len(logs)
    spread = (sum((x - middle) ** 2 for x in logs) / max(len(logs) - 1, 1)) ** 0.5
    n = len(logs)
    half_width = float(student.ppf(0.975, n - 1)) * spread * (1 + 1 / n) ** 0.5
    ratio = math.log(max(subject, 0.5)) - middle
    ends = (math.exp(ratio - half_width), math.exp(ratio + half_width))
    verdict = "INCONCLUSIVE"
    if ends[0] >= LOW and ends[1] <= HIGH:
        verdict = "PASS"
    elif ends[1] < LOW or ends[0] > HIGH:
        verdict = "FAIL"
    no_op_ratio = math.exp(math.log(max(no_op, 0.5)) - middle)
    if no_op_ratio * math.exp(half_width) >= LOW:
        verdict = "POWERLESS"
    return Finding(
        "Q5 relearn",
        verdict,
        math.exp(ratio),
        ends,
        1.0,
        HIGH - 1,
        {"no-op": no_op_ratio},
        len(case.forgotten),
        f"Rounds until the AUC of the records is {target:.3f}: {subject:.1f}, retrains "
        f"{min(retrains):.1f} to {max(retrains):.1f}; equal if {LOW} to {HIGH} times as many.",
    )
