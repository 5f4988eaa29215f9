"""Verdicts: compare a measure with models retrained without the records, with an interval."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.errors import ConfigError

DRAWS = 400  # bootstrap resamples; the standard error then varies by about 4 %
FEWEST = 5
"""Smallest number of retrains; with fewer, the variation by chance is unknown."""
FACTOR = 5.0
"""Standard errors in a margin: 1.96 for the interval, 1.96 for chance, times sqrt(1 + 1/K), rounded
up, so that a true retrain passes 19 times in 20 (tests/audits/test_known_answers.py)."""
SPREAD = 2.5
"""Half intervals of a retrain in the margin of a PASS: its own interval, and 1.5 for chance (t = 4
with four degrees of freedom), so that a true retrain passes 98 times in 100 whatever the data. A
FAIL needs one, and the interval outside it (t = 5.5: a retrain fails once in 200)."""
CERTAIN, SUSPECT = 0.999, 0.98
"""Certainty, for twenty tenths of the users together, of a FAIL and of forbidding a PASS. At .95 a
true retrain failed by luck in 1 of 26 audits (papers/audit_cheats.py)."""
MARGINS = Path(__file__).with_name("margins.toml")


@dataclass(frozen=True)
class Measure:
    """One number on one model, and the same number on resampled users."""

    point: float
    draws: Tensor
    """[B] float64"""


@dataclass(frozen=True)
class Difference:
    """A number with its reference and its 95 % interval."""

    value: float
    reference: float
    low: float
    high: float
    usual: float = 0.0
    """Half of the interval of a retrain: how far apart this data's own retrains are by chance."""


def resample(people: int, clock: Clock, purpose: str, draws: int = DRAWS) -> Tensor:
    """Draw how often each user is in each bootstrap sample. [B, people] float64"""
    if not people:
        return torch.zeros(draws, 0, dtype=torch.float64)
    one = torch.arange(people)
    drawn = clock.at(0).integers(f"audit {purpose}", torch.arange(draws)[:, None], one, people)
    out = torch.zeros(draws, people, dtype=torch.float64)
    return out.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def compare(mine: Measure, others: Sequence[Measure], chance: float = 0.0) -> Difference:
    """Compare the subject with the mean of the retrains, with a 95 % interval of the difference.

    Two variances are added. Users: the bootstrap of the difference, with the same draws for every
    model, so that common variation cancels. Seeds: the remaining variance between retrains,
    v = max(0, s^2 - the part explained by the bootstrap), times Student's quantile and (1 + 1/K),
    because a subject like a retrain is one more draw.

    chance: standard error that the calibration expects at this sample size. The interval is never
    narrower: the bootstrap of one user, or five retrains that happen to agree, show no variance
    """
    from scipy.stats import t as student

    n = len(others)
    if n < FEWEST - 1:  # a retrain under test is compared with one fewer
        raise ConfigError(f"a verdict needs {FEWEST} retrains or more; got {n}.")
    reference, people, explained, beyond = _variances(mine, others)
    of_seeds = float(student.ppf(0.975, n - 1)) ** 2 * max(0.0, beyond) * (1 + 1 / n)
    half_width = max((1.96**2 * people + of_seeds) ** 0.5, 1.96 * chance)
    usual = (1.96**2 * explained * (1 + 1 / n) + of_seeds) ** 0.5
    ends = (mine.point - half_width, mine.point + half_width)
    return Difference(mine.point, reference, *ends, usual)


def compare_groups(
    mine: Mapping[str, Measure],
    others: Sequence[Mapping[str, Measure]],
    chance: Mapping[str, float] | None = None,
    certainty: float = CERTAIN,
) -> dict[str, Difference]:
    """Like `compare`, for several groups at once: all intervals hold with this certainty.

    A few retrains give a poor estimate of v for one group, so v / reference^2 is averaged over
    groups of the same kind (first word of the name), with as many times the degrees of freedom.
    """
    from scipy.stats import norm
    from scipy.stats import t as student

    n, quantile = len(others), 1 - (1 - certainty) / 2 / max(len(mine), 1)
    found = {name: _variances(one, [other[name] for other in others]) for name, one in mine.items()}
    out = {}
    for name, (reference, people, _, _) in found.items():
        group = [d for other, d in found.items() if other.split()[0] == name.split()[0] and d[0]]
        pooled = max(
            0.0, sum(beyond / mean**2 for mean, _, _, beyond in group) / max(len(group), 1)
        )
        freedom = max(len(group), 1) * (n - 1)
        of_seeds = float(student.ppf(quantile, freedom)) ** 2 * pooled * (1 + 1 / n) * reference**2
        z = float(norm.ppf(quantile))
        half_width = max((z**2 * people + of_seeds) ** 0.5, z * (chance or {}).get(name, 0.0))
        point = mine[name].point
        out[name] = Difference(point, reference, point - half_width, point + half_width)
    return out


def _variances(mine: Measure, others: Sequence[Measure]) -> tuple[float, float, float, float]:
    """Return the mean of the retrains, the variance of the difference over users, and two more.

    The part of the variance between retrains that the bootstrap explains, and v, the rest; v may
    be negative.
    """
    n = len(others)
    points = torch.tensor([o.point for o in others], dtype=torch.float64)
    draws = torch.stack([o.draws for o in others])  # [K, B]
    mean = draws.mean(0)
    # (a retrain - mean of the others) is K / (K - 1) times (the retrain - mean of all).
    explained = float((draws - mean).var(1).mean()) * n / (n - 1)
    people = float((mine.draws - mean).var())
    return float(points.mean()), people, explained, float(points.var()) - explained


def equal(found: Difference, margin: float) -> str:
    """Return PASS inside reference +- margin, FAIL outside (on either side), else INCONCLUSIVE."""
    bottom, top = found.reference - margin, found.reference + margin
    if bottom <= found.low and found.high <= top:
        return "PASS"
    return "FAIL" if found.high < bottom or found.low > top else "INCONCLUSIVE"


def not_above(found: Difference, margin: float) -> str:
    """Return PASS below reference + margin, FAIL above, else INCONCLUSIVE (for harm)."""
    top = found.reference + margin
    if found.high <= top:
        return "PASS"
    return "FAIL" if found.low > top else "INCONCLUSIVE"


def worst(verdicts: Sequence[str]) -> str:
    """Return the worst verdict: FAIL, INCONCLUSIVE, PASS; INCONCLUSIVE if there are none."""
    return next((v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in verdicts), "INCONCLUSIVE")


@dataclass(frozen=True)
class Margin:
    """Largest difference from retrains that counts as equal: calibrated once, then frozen.

    Chance moves a measure by about noise / sqrt(n), n the number of balanced pairs (or users).
    With FACTOR times that, a true retrain passes nearly always. A difference below `least` does
    not matter; a margin above `most` would mean nothing.
    """

    noise: float
    least: float
    most: float

    def at(self, n: float, apart: float = 0.0, widest: float = 1.0) -> float:
        """Return the margin for n pairs.

        apart: how far this data's own retrains are apart. Where it is more than in the calibration,
        it is the margin, at most `widest` times `most`. It does not depend on the model under
        audit, so a noisy model gains nothing
        """
        fixed = min(max(FACTOR * self.chance(n), self.least), self.most)
        return max(fixed, min(apart, widest * self.most))

    def chance(self, n: float) -> float:
        """Return the standard error that is expected with n pairs."""
        return self.noise / max(n, 1.0) ** 0.5


@lru_cache(maxsize=1)
def margins() -> Mapping[str, Margin]:
    with open(MARGINS, "rb") as file:
        tables = tomllib.load(file)["check"]
    return {n: Margin(t["noise"], t["least"], t["most"]) for n, t in tables.items()}


def margin_of(check: str) -> Margin:
    known = margins()
    if check not in known:
        raise ConfigError(f"no margin was calibrated for '{check}'.")
    return known[check]
