"""Releases of a running sum: what a schedule of them costs, with fresh or with correlated noise.

A schedule releases T sums, S_t = x_1 + ... + x_t, where x_t is what changed since the release
before: S = A x, with A the lower triangle of ones. Fresh noise counts every release once more. The
square root of A (Fichtenberger, Henzinger, Upadhyay, ICML 2023)
does better: A = R R, and R (R x + noise) is A x plus R noise, so that only R x needs protection.
R has c_(t - s) at row t and column s <= t: c_0 = 1, c_k = c_(k-1) (1 - 1 / 2k).
"""

from __future__ import annotations

import math

from rescind.errors import ConfigError


def root(releases: int) -> list[float]:
    """Return c_0, c_1, ...: the first column of the square root of the triangle of ones. [T]"""
    if releases < 1:
        raise ConfigError(f"a schedule needs 1 release or more, got {releases}.")
    out = [1.0]
    for k in range(1, releases):
        out.append(out[-1] * (1 - 1 / (2 * k)))
    return out


def reach(releases: int, leaving: bool = True) -> float:
    """Bound the norm of R x for one person, whose part of the sum has the norm 1 at most.

    A person comes before one release, x_a = v, and stays: |R e_a|. leaving: or is forgotten before
    a later one, x_b = -v: |R (e_a - e_b)|, the largest over a < b. Who changes a part more often
    is not covered: each further change is one more person.
    """
    column = root(releases)
    far = math.sqrt(sum(c * c for c in column))
    for gap in range(1, releases if leaving else 0):
        apart = (c - (column[k - gap] if k >= gap else 0.0) for k, c in enumerate(column))
        far = max(far, math.sqrt(sum(d * d for d in apart)))
    return far


def noise_of(noise: float, releases: int, leaving: bool = True) -> list[float]:
    """Return the standard deviation of each release's noise, for parts of the norm 1. [T]

    The whole schedule is then one Gaussian mechanism of this noise multiplier: its epsilon is
    `gaussian.epsilon_of(noise, delta)`.
    """
    column, far = root(releases), reach(releases, leaving)
    squares = [sum(c * c for c in column[: t + 1]) for t in range(releases)]
    return [noise * far * math.sqrt(total) for total in squares]


def over_blocks(noise: float, blocks: int) -> float:
    """Return the noise multiplier that a schedule has for people with a part in every block.

    What is drawn in block b (from 1) is for parts of the norm b. Each part comes and leaves once,
    not before its block, so it moves R x by 1 / (b noise) deviations at most; those of a person
    add. A fading part is a mean of parts that leave at different times.
    """
    return noise / sum(1 / b for b in range(1, blocks + 1))


def fresh_noise_of(noise: float, releases: int) -> float:
    """Return the same with fresh noise for each release: T mechanisms of noise sqrt(T)."""
    return noise * math.sqrt(releases)
