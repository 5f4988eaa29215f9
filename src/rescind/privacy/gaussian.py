"""Epsilon of Gaussian mechanisms, in closed form up to a root. Loads no torch.

T mechanisms of noise multiplier z are exactly one of z / sqrt(T) (Dong, Roth, Su 2019, corollary
3.3), for which epsilon is known up to a root (Balle and Wang 2018, theorem 8).
"""

from __future__ import annotations

import math

from rescind.errors import ConfigError

DELTA = 1e-5
"""Delta if none is given: below 1 / clients for all datasets here."""
CLOSE = 1e-10
"""Relative width at which the bisection for epsilon stops."""


def delta_of(noise: float, epsilon: float, times: int = 1) -> float:
    """Compute the delta of `times` Gaussian mechanisms at an epsilon.

    Balle and Wang, theorem 8, with mu = sqrt(T) / z:
    Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)
    """
    if not times:
        return 0.0
    mu = math.sqrt(times) / noise
    first = _log_cdf(mu / 2 - epsilon / mu)
    second = epsilon + _log_cdf(-mu / 2 - epsilon / mu)
    return max(0.0, math.exp(first) - math.exp(min(second, first)))


def epsilon_of(noise: float, delta: float, times: int = 1) -> float:
    """Compute the smallest epsilon of `times` Gaussian mechanisms at a delta, from above."""
    check_delta(delta)
    if delta_of(noise, 0.0, times) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(noise, high, times) > delta:
        low, high = high, 2 * high
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        too_low = delta_of(noise, middle, times) > delta
        low, high = (middle, high) if too_low else (low, middle)
    return high


def rounds_within(noise: float, delta: float, epsilon: float) -> int:
    """Return how many times a client may take part without exceeding epsilon."""
    check_delta(delta)
    low, high = 0, 1
    while delta_of(noise, epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        within = delta_of(noise, epsilon, middle) <= delta
        low, high = (middle, high) if within else (low, middle)
    return low


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        hint = "Choose one well below 1 / (number of clients), for example 1e-5."
        raise ConfigError(f"delta must lie between 0 and 1, got {delta}. {hint}")


def _log_cdf(x: float) -> float:
    """Compute log Phi(x), accurate also far in the tail."""
    from scipy.special import log_ndtr

    return float(log_ndtr(x))
