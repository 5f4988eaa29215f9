"""From measurements to verdicts: two-sided against retrains, with an interval, never by feel.

A check measures one number on a model, with bootstrap draws over people. The subject's number is
held against the mean of K models that were trained without the records, under other seeds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.errors import ConfigError, suggest

DRAWS = 400  # bootstrap resamples; the standard error then wobbles by about 4 %
FEWEST = 5
"""Retrains a verdict needs: with fewer, nobody knows how much models differ by chance."""
FACTOR = 5.0
"""Standard errors in a margin: 1.96 of the interval, as much again of chance, times sqrt(1 + 1/K)
and a little, so that a true retrain passes 19 times in 20 (tests/audits/test_known_answers.py)."""
MARGINS = Path(__file__).with_name("margins.toml")


@dataclass(frozen=True)
class Measure:
    """One number on one model, and the same on resampled people."""

    point: float
    draws: Tensor
    """[B] float64"""


@dataclass(frozen=True)
class Difference:
    """A number beside its reference, with the ends of its 95 % interval."""

    value: float
    reference: float
    low: float
    high: float


def resample(people: int, clock: Clock, purpose: str, draws: int = DRAWS) -> Tensor:
    """How often each person is in each bootstrap draw. [B, people] float64"""
    if not people:
        return torch.zeros(draws, 0, dtype=torch.float64)
    one = torch.arange(people)
    drawn = clock.at(0).integers(f"audit {purpose}", torch.arange(draws)[:, None], one, people)
    out = torch.zeros(draws, people, dtype=torch.float64)
    return out.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def compare(mine: Measure, others: Sequence[Measure]) -> Difference:
    """The subject beside the mean of the retrains, with a 95 % interval for the difference.

    Two sources of doubt are added in squares. People: the bootstrap of the difference, the same
    draws for every model, so that what is common cancels. Seeds: what retrains differ by beyond
    that, v = max(0, s^2 - what the bootstrap explains of it), times Student's quantile and
    (1 + 1/K), since the subject is one more draw if it is like a retrain.
    """
    from scipy.stats import t as student

    many = len(others)
    if many < FEWEST - 1:  # the retrain that is judged itself stands beside one fewer
        raise ConfigError(
            f"a verdict needs {FEWEST} retrains or more; got {many}. With fewer, nobody knows how "
            f"much models differ by chance."
        )
    reference, people, beyond = _doubt(mine, others)
    of_seeds = float(student.ppf(0.975, many - 1)) ** 2 * max(0.0, beyond) * (1 + 1 / many)
    half = (1.96**2 * people + of_seeds) ** 0.5
    return Difference(mine.point, reference, mine.point - half, mine.point + half)


def compare_groups(
    mine: Mapping[str, Measure], others: Sequence[Mapping[str, Measure]]
) -> dict[str, Difference]:
    """The same for groups that are looked at together: 95 % that all of them are inside.

    Of one group a few retrains say little, and by luck they agree in some of twenty; so v is the
    mean over groups of a kind (the first word of the name), each relative to its reference, with as
    many times the degrees of freedom.
    """
    from scipy.stats import norm
    from scipy.stats import t as student

    many, far = len(others), 1 - 0.025 / max(len(mine), 1)
    found = {name: _doubt(one, [other[name] for other in others]) for name, one in mine.items()}
    out = {}
    for name, (reference, people, _) in found.items():
        alike = [d for other, d in found.items() if other.split()[0] == name.split()[0] and d[0]]
        pooled = max(0.0, sum(beyond / mean**2 for mean, _, beyond in alike) / max(len(alike), 1))
        freedom = max(len(alike), 1) * (many - 1)
        of_seeds = float(student.ppf(far, freedom)) ** 2 * pooled * (1 + 1 / many) * reference**2
        half = (float(norm.ppf(far)) ** 2 * people + of_seeds) ** 0.5
        point = mine[name].point
        out[name] = Difference(point, reference, point - half, point + half)
    return out


def _doubt(mine: Measure, others: Sequence[Measure]) -> tuple[float, float, float]:
    """The retrains' mean, the variance of the difference over people, and v before it is cut at 0.

    v: the variance between retrains less what the bootstrap explains of it.
    """
    many = len(others)
    points = torch.tensor([o.point for o in others], dtype=torch.float64)
    draws = torch.stack([o.draws for o in others])  # [K, B]
    mean = draws.mean(0)
    # A retrain less the mean of the others is (K / (K - 1)) times it less the mean of all.
    explained = float((draws - mean).var(1).mean()) * many / (many - 1)
    people = float((mine.draws - mean).var())
    return float(points.mean()), people, float(points.var()) - explained


def equal(found: Difference, margin: float) -> str:
    """PASS inside reference +- margin, FAIL outside of it (below, too), else INCONCLUSIVE."""
    bottom, top = found.reference - margin, found.reference + margin
    if bottom <= found.low and found.high <= top:
        return "PASS"
    return "FAIL" if found.high < bottom or found.low > top else "INCONCLUSIVE"


def not_above(found: Difference, margin: float) -> str:
    """For harm: PASS below reference + margin, FAIL above, else INCONCLUSIVE."""
    top = found.reference + margin
    if found.high <= top:
        return "PASS"
    return "FAIL" if found.low > top else "INCONCLUSIVE"


def worst(verdicts: Sequence[str]) -> str:
    """The verdict over several: FAIL, then INCONCLUSIVE, then PASS; of none, INCONCLUSIVE."""
    return next((v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in verdicts), "INCONCLUSIVE")


@dataclass(frozen=True)
class Margin:
    """How far from the retrains still counts as equal: calibrated once, then frozen.

    Chance alone moves a measure by about noise / sqrt(n), n the balanced pairs (or people) it is
    taken over. FACTOR times that is what a true retrain needs to pass nearly always; below `least`
    a difference does not matter, above `most` equality would mean nothing.
    """

    noise: float
    least: float
    most: float

    def at(self, n: float) -> float:
        """The margin for a measure over this many pairs."""
        return min(max(FACTOR * self.noise / max(n, 1.0) ** 0.5, self.least), self.most)


@lru_cache(maxsize=1)
def margins() -> Mapping[str, Margin]:
    """By check, as the calibration wrote them down."""
    with open(MARGINS, "rb") as file:
        tables = tomllib.load(file)["check"]
    return {n: Margin(t["noise"], t["least"], t["most"]) for n, t in tables.items()}


def margin_of(check: str, n: float) -> float:
    """The margin of one check over n pairs."""
    known = margins()
    if check not in known:
        raise ConfigError(f"no margin was calibrated for '{check}': {suggest(check, known)}")
    return known[check].at(n)
