"""The word for a printed number beside ours, and the meaning of each word.

A printed number is one run, not a constant. Ours are several runs; if both are runs of the same
thing, 95 % of such numbers lie in the prediction interval of ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rescind.experiments.significance import prediction_margin
from rescind.experiments.tables import Entry
from rescind_papers.index import APART

REPRODUCED, BETTER, WORSE = "reproduced", "better", "worse"
BOTH_WORSE = "worse, and so is the authors' method here"
NOT_COMPARABLE = "not comparable"
OTHER = tuple(f"{NOT_COMPARABLE}: {why}" for why in APART)
ABSENT = f"{NOT_COMPARABLE}: data not at hand"
EXCLUSIVE = f"{NOT_COMPARABLE}: printed numbers exclude each other"
TRIVIAL = f"{NOT_COMPARABLE}: below a predictor without learning"
UNJUDGED, ONE_RUN, LATER = "no verdict", "one run, no verdict", "not run yet"
ALONE, QUICK = "no number printed", "quick, not judged"

MEANINGS = {
    REPRODUCED: "the printed number lies in the 95 % prediction interval of our runs",
    BETTER: "ours is better by more than that",
    WORSE: "ours is worse by more than that; the reason, or that we do not know it, is below the "
    "table",
    BOTH_WORSE: "and the method as its authors publish it, run here, is worse by the same rule",
    f"{NOT_COMPARABLE}: other data": "ours was measured on other data",
    f"{NOT_COMPARABLE}: other quantity": "ours is another method or measure; the reason is below "
    "the table",
    EXCLUSIVE: "no ranking of the test items has both the printed HR@20 and the printed NDCG@20",
    TRIVIAL: "a predictor without learning exceeds the printed number here",
    ABSENT: "the publisher's files cannot be had here",
    UNJUDGED: "the rate of an attack with a fixed threshold: lower is not better, so the distance "
    "to the rate of a retrained model is shown instead",
    ONE_RUN: "one run of ours has no spread",
    LATER: "the recipe or its row is waiting for a run",
}
"""Every word and its meaning."""


def beside(printed: float, runs: Sequence[float], lower: bool = False) -> str:
    """Return the word for a printed number beside our runs alone.

    lower: lower is better
    """
    margin = prediction_margin(runs)
    if margin is None:
        return ONE_RUN
    better = (printed - statistics.fmean(runs)) * (1 if lower else -1)
    return BETTER if better > margin else WORSE if better < -margin else REPRODUCED


def verdict(
    entry: Entry,
    *,
    authors: Sequence[float] = (),
    lower: bool = False,
    apart: str = "",
) -> str:
    """Return the word for a printed number.

    authors: runs of the method as its authors publish it    lower: lower is better    apart: why
    the numbers cannot be compared, if that is known before
    """
    if entry.mean is None and not entry.words:
        return apart if apart == ABSENT else LATER
    if entry.paper is None or entry.mean is None:
        return ALONE
    if apart:
        return apart
    if entry.paper_below_floor and not lower:
        return TRIVIAL
    found = beside(entry.paper, entry.values, lower)
    both = found == WORSE and beside(entry.paper, authors, lower) == WORSE
    return BOTH_WORSE if both else found


def least_ndcg(held: npt.NDArray[np.int64], hit_rate: float, k: int = 20) -> float:
    """Return the least mean NDCG@k of lists that hit this fraction of the users.

    A user counts as hit from the first of its n held-out items on. The worst such list has one
    hit, at place k: NDCG = (1 / log2(k + 1)) / sum over r <= min(n, k) of 1 / log2(r + 1). The
    least mean has all hits at the users with the most held-out items, whose ideal is highest.

    held: the number of held-out items of each user that has any; [users]
    """
    discount = 1 / np.log2(np.arange(k) + 2)
    least = np.sort(discount[-1] / np.cumsum(discount)[np.minimum(held, k) - 1])
    hit = hit_rate * len(held)
    whole = int(hit)
    rest = (hit - whole) * least[whole] if whole < len(least) else 0.0
    return float((least[:whole].sum() + rest) / len(held))
