"""Q5, relearning: what was truly forgotten takes as long to learn again as it did for a stranger.

The records are given back, and rounds are counted until the model knows them again half as well
as it did. A model that hid what it knew is there at once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rescind.audits import membership, state_attacks
from rescind.audits.case import Case, PerPerson
from rescind.audits.finding import Finding
from rescind.core.federation import Federation

EVERY = 5  # rounds between two looks
SHARE = 0.5  # of the way from a retrain to the model before
LOW, HIGH = 0.8, 1.25
"""Rounds beside those of retrains: within these it counts as equal."""


def given_back(case: Case, fed: Federation) -> Federation:
    """The same model in the world and on the devices of before the request."""
    vault = replace(fed.now.vault, holdings=case.before.now.vault.holdings)
    return replace(fed, world=case.before.world, now=replace(fed.now, vault=vault))


def known(case: Case, fed: Federation) -> float:
    """How well the records are known: by the server's rows where it has any, else by the model."""
    sample: PerPerson | None = None
    if case.ranks:
        sample = state_attacks.kept_rows(case, fed)
    sample = sample or membership.population(case, fed)
    return float((sample.value * sample.weight).sum() / max(sample.size, 1e-12))


def rounds_until(case: Case, fed: Federation, target: float, most: int) -> float:
    """Rounds until the records are known this well, between two looks by a straight line."""
    now, spent = given_back(case, fed), 0
    before = known(case, now)
    if before >= target:
        return 0.0
    while spent < most:
        now = now.run(EVERY)
        after = known(case, now)
        if after >= target:
            return spent + EVERY * (target - before) / (after - before)
        spent, before = spent + EVERY, after
    return float(most)


def relearn(case: Case, fed: Federation) -> Finding:
    """Rounds of the subject over those of retrains, with an interval over retrains."""
    from scipy.stats import t as student

    asked = Case(case.before, case.event, case.clock, case.references)
    start = [known(asked, r) for r in case.references]
    top, bottom = known(asked, case.before), sum(start) / len(start)
    target, most = bottom + SHARE * (top - bottom), max(EVERY, case.before.now.state.round)
    theirs = [rounds_until(asked, r, target, most) for r in case.references]
    mine, no_op = (rounds_until(asked, f, target, most) for f in (fed, case.before))
    logs = [math.log(max(r, 0.5)) for r in theirs]
    middle = sum(logs) / len(logs)
    spread = (sum((x - middle) ** 2 for x in logs) / max(len(logs) - 1, 1)) ** 0.5
    many = len(logs)
    half = float(student.ppf(0.975, many - 1)) * spread * (1 + 1 / many) ** 0.5
    ratio = math.log(max(mine, 0.5)) - middle
    ends = (math.exp(ratio - half), math.exp(ratio + half))
    verdict = "INCONCLUSIVE"
    if ends[0] >= LOW and ends[1] <= HIGH:
        verdict = "PASS"
    elif ends[1] < LOW or ends[0] > HIGH:
        verdict = "FAIL"
    idle = math.exp(math.log(max(no_op, 0.5)) - middle)
    if idle * math.exp(half) >= LOW:
        verdict = "POWERLESS"
    return Finding(
        "Q5 relearn",
        verdict,
        math.exp(ratio),
        ends,
        1.0,
        HIGH - 1,
        {"no-op": idle},
        len(case.forgotten),
        f"Rounds to know the records again to {target:.3f}: {mine:.1f}, retrains "
        f"{min(theirs):.1f} to {max(theirs):.1f}; equal between {LOW} and {HIGH} times theirs.",
    )
