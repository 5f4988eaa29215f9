"""The audit of a release: can whoever has the file tell what was taken back since the last one?

All records taken back since the last release are one request. The attacker has the file and knows
the rest of what a person lent. The attack scores each record with the file and subtracts the score
of a model that never had it; the AUC is that of records taken back over as popular ones that the
person never lent. Where nothing is left it is .5. Models of known answer are judged beside it:

    no-op          the records are still in the sum           must FAIL
    score shift    the no-op with all scores lowered          must FAIL
    retrain        added up from zero, solved in another order  must PASS

Otherwise the verdict is VOID. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rescind.audits.finding import Finding
from rescind.ledger.release_counts import FEWEST, why_not_judged
from rescind.methods.additive._live_release import Form, Weights, cut
from rescind.methods.additive._live_sum import Items, added_up

MARGIN = 0.1
"""Largest distance of the AUC from .5 that counts as none: chance makes .08 of 100 records."""
ROUNDING = 1e-5
"""Differences of scores below this part of the largest weight are rounding, and count as ties."""
SHIFT = 2.0
JUDGED = "taken back since the last release, and not lent again,"
LEFT_OUT = (
    "What was taken back before the service was started again is not judged: nothing of it is kept."
)
LATER_PASSED = (
    " What was taken back later passed; which of the two this request is, the receipt does not say."
)
Floats = NDArray[np.float64]
Score = Callable[[Items], Floats]


@dataclass(frozen=True)
class Person:
    """Somebody who took something back."""

    kept: Items
    gone: Items
    never: Items
    """As many items that they never lent, each about as popular as one that is gone."""
    number: int = 0


def audited(
    weights: Weights,
    kept: Sequence[Items],
    gone: Sequence[Items],
    form: Form,
    lost: int | None = 0,
) -> list[Finding]:
    """Judge a release. kept, gone: of each person, what they lend and what they took back

    lost: how many were taken back before a start, at most; None: that was not counted
    """
    records = sum(map(len, gone))
    if records < FEWEST:
        return [Finding("audit", "UNAUDITED", note=why_not_judged(records, lost, JUDGED))]
    people = matched(kept, gone, weights.items)
    reference = _solved(kept, weights.items, form, np.arange(weights.items)[::-1])
    retrain = _solved(kept, weights.items, form, np.roll(np.arange(weights.items), 7))
    before = [np.union1d(one, two).astype(np.int32) for one, two in zip(kept, gone, strict=True)]
    no_op = _solved(before, weights.items, form, np.arange(weights.items))
    found = {
        "subject": _measure(weights, reference, people),
        "no-op": _measure(no_op, reference, people),
        "score shift": _measure(no_op, reference, people, SHIFT),
        "retrain": _measure(retrain, reference, people),
    }
    wanted = {"no-op": "FAIL", "score shift": "FAIL", "retrain": "PASS"}
    return with_lost(judged(found, wanted, records), lost)


def with_lost(finding: Finding, lost: int | None) -> list[Finding]:
    """Return what is said of all requests, if of some nothing is left to judge.

    A receipt does not say on which side of a restart its request was, so none of them may say PASS.
    """
    if lost == 0:
        return [finding]
    if finding.verdict == "PASS":
        return [Finding("audit", "UNAUDITED", note=LEFT_OUT + LATER_PASSED)]
    return [finding, Finding("audit", "UNAUDITED", note=LEFT_OUT)]


def judged(
    found: Mapping[str, tuple[float, float]], wanted: Mapping[str, str], records: int
) -> Finding:
    """Judge the subject by its AUC, if every control gets the verdict that is wanted of it.

    found: of the subject and of each control, the AUC and half of its interval
    """
    verdicts = {name: _verdict(*one) for name, one in found.items()}
    wrong = [name for name, right in wanted.items() if verdicts[name] != right]
    value, half_width = found["subject"]
    return Finding(
        "taken back",
        "VOID" if wrong else verdicts["subject"],
        value=value,
        interval=(value - half_width, value + half_width),
        reference=0.5,
        margin=MARGIN,
        controls={name: one[0] for name, one in found.items() if name != "subject"},
        n=records,
        note="; ".join(f"{name}: {verdicts[name]}" for name in wanted)
        + (f". Wrong: {', '.join(wrong)}." if wrong else "."),
    )


def _solved(loans: Sequence[Items], items: int, form: Form, order: NDArray[np.int64]) -> Weights:
    """Make a release from zero with the items in another order, and put them back in theirs."""
    place = np.empty(items, np.int32)
    place[order] = np.arange(items, dtype=np.int32)
    sums = added_up((np.sort(place[one]) for one in loans), items)
    made = cut(sums.inverse(form.solving.ridges), sums.owners, form)
    source = order[np.repeat(np.arange(items), np.diff(made.first))]
    target = order[made.target]
    sort = np.lexsort((target, source))
    first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=items))])
    return Weights(first, target[sort].astype(np.int32), made.weight[sort], made.popular)


def matched(kept: Sequence[Items], gone: Sequence[Items], items: int) -> list[Person]:
    """Choose for each record that is gone an item of about the same popularity, never lent."""
    owners = np.bincount(np.concatenate([*kept, *gone]), minlength=items)
    order = np.argsort(owners, kind="stable")
    place = np.empty(items, np.int64)
    place[order] = np.arange(items)
    people = []
    for number, (mine, back) in enumerate(zip(kept, gone, strict=True)):
        free = np.ones(items, np.bool_)
        free[place[mine]] = free[place[back]] = False
        never = []
        for each in place[back]:
            open_places = np.flatnonzero(free)
            if not len(open_places):
                break
            nearest = open_places[np.argmin(np.abs(open_places - each))]
            free[nearest] = False
            never.append(order[nearest])
        if len(back) and never:
            people.append(Person(mine, back, np.array(never, np.int32), number))
    return people


def _measure(
    model: Weights, reference: Weights, people: Sequence[Person], shift: float = 0.0
) -> tuple[float, float]:
    """Return the AUC of the difference in score, and half of its 95 % interval."""
    rounding = ROUNDING * float(np.abs(reference.weight).max(initial=0.0))
    drops = []
    for one in people:
        own = np.union1d(one.kept, one.gone).astype(np.int32)
        drop = model.scores(own).astype(np.float64) - shift - reference.scores(own)
        drops.append(np.where(np.abs(drop + shift) <= rounding, -shift, drop))
    return measured(drops, people)


def measured(drops: Sequence[Floats], people: Sequence[Person]) -> tuple[float, float]:
    """Return the mean AUC over people, and half of its 95 % interval.

    drops: of each person, how much more a model likes each item than one without the records
    """
    values, weights, chance = [], [], 0.0
    for drop, one in zip(drops, people, strict=True):
        values.append(_auc(drop[one.gone], drop[one.never]))
        m, h = len(one.gone), len(one.never)
        weights.append(m * h / (m + h))
        chance += weights[-1] ** 2 * (m + h + 1) / (12 * m * h)  # Mann and Whitney 1947
    value, weight = np.array(values), np.array(weights)
    mean = float((weight * value).sum() / weight.sum())
    seen = float((weight**2 * (value - mean) ** 2).sum())
    return mean, 1.96 * max(seen, chance) ** 0.5 / float(weight.sum())


def _auc(inside: Floats, outside: Floats) -> float:
    ordered = np.sort(outside)
    above = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    return float(above.sum() / (2 * len(inside) * len(outside)))


def _verdict(value: float, half_width: float) -> str:
    apart = abs(value - 0.5)
    if apart + half_width <= MARGIN:
        return "PASS"
    return "FAIL" if apart - half_width > MARGIN else "INCONCLUSIVE"
