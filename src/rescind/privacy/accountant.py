"""What a run with Gaussian noise promises to each person: epsilon at a delta, and a budget.

The promise is user level: the sums as they are, against the same sums with one client's updates
left empty in every round. Who is asked in a round is drawn by a public hash, so nothing is gained
from sampling: a client that took part T times is covered by T Gaussian mechanisms, and the run by
the client that took part most often. T mechanisms of noise multiplier z are exactly one of
z / sqrt(T) (Dong, Roth, Su 2019, corollary 3.3), for which epsilon is known in closed form up to
a root (Balle and Wang 2018, theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rescind.core.guards import Clip, Gaussian, Guard, Laplace
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.run_state import EarlyStop, RoundResult

ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512)
"""Orders at which Renyi divergences are taken: the usual grid (Abadi et al. 2016 and later)."""

CLOSE = 1e-10
"""How narrow, relative to epsilon, the interval of the bisection ends."""


def delta_of(noise: float, epsilon: float, times: int = 1) -> float:
    """The delta of `times` Gaussian mechanisms at an epsilon.

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
    """The smallest epsilon that `times` Gaussian mechanisms have at a delta, from above."""
    check_delta(delta)
    if delta_of(noise, 0.0, times) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(noise, high, times) > delta:
        low, high = high, 2 * high
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        if delta_of(noise, middle, times) > delta:
            low = middle
        else:
            high = middle
    return high


def rounds_within(noise: float, delta: float, epsilon: float) -> int:
    """How often a client may take part before epsilon is passed."""
    check_delta(delta)
    low, high = 0, 1
    while delta_of(noise, epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if delta_of(noise, epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def renyi(noise: float, orders: Sequence[float] = ORDERS, times: int = 1) -> tuple[float, ...]:
    """The Renyi divergence of each order: T order / (2 z^2) (Mironov 2017, proposition 7)."""
    return tuple(times * order / (2 * noise**2) for order in orders)


def renyi_epsilon(values: Sequence[float], delta: float, orders: Sequence[float] = ORDERS) -> float:
    """The epsilon that follows from Renyi divergences: looser, for comparison with others.

    Canonne, Kamath, Steinke 2020, proposition 12.
    """
    check_delta(delta)
    found = [
        value + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order, value in zip(orders, values, strict=True)
    ]
    return max(0.0, min(found))


def check_delta(delta: float) -> None:
    """Refuse a delta that is no probability."""
    if not 0 < delta < 1:
        raise ConfigError(
            f"delta must lie between 0 and 1, got {delta}. "
            f"Choose one well below 1 over the number of clients, such as 1e-5."
        )


def count(took_part: list[int], who: Tensor) -> list[int]:
    """How often each client took part, with one more round. who: [clients]"""
    after = took_part + [0] * (int(who.max()) + 1 - len(took_part) if len(who) else 0)
    for client in who.tolist():
        after[client] += 1
    return after


def most_often(took_part: list[int], ids: Tensor | None = None) -> int:
    """How often the one took part who did so most, of all or of these clients."""
    if ids is None:
        return max(took_part, default=0)
    return max((took_part[c] for c in ids.tolist() if c < len(took_part)), default=0)


def run_within(
    fed: Federation,
    rounds: int,
    until: EarlyStop | None,
    watch: Sequence[Callable[[RoundResult], Any]],
    may: Callable[[Tensor], bool],
) -> tuple[Federation, int | None]:
    """`Federation.run`, but stop before a round in which somebody may not take part.

    Returns the round it stopped after, None if it ran to its end. may: whether all of `ids` may
    """
    last = until

    def see(moment: RoundResult) -> None:
        nonlocal last
        last = moment.until

    stopped = None
    for _ in range(rounds):
        if last and last.done:
            break
        state = fed.now.state
        if not may(fed.method.server_sample(state, fed.world, fed.clock.at(state.round + 1))):
            stopped = state.round
            break
        one = replace(last, restore=False) if last else None
        fed = fed.run(1, until=one, watch=(see, *watch))
    if until and until.restore and last and last.best:
        fed = replace(fed, now=last.best)
    return fed, stopped


def statement(
    guards: Sequence[Guard], leaves: bool, times: int, delta: float, clients: int
) -> dict[str, Any]:
    """What the guards of a run promise, in numbers and in words, for run.json.

    leaves: single updates leave the devices    times: the most that any client took part
    """
    clip = next((g.norm for g in guards if isinstance(g, Clip)), None)
    noise = next((g for g in guards if isinstance(g, Gaussian)), None)
    scale = next((g.scale for g in guards if isinstance(g, Laplace)), None)
    said: dict[str, Any] = {"clip": clip, "laplace": scale, "participations": times}
    if noise is None:
        why = "no guard is set" if clip is None and scale is None else "there is no Gaussian noise"
        if scale is not None:
            why = "Laplace noise without a bound on updates is no differential privacy"
        return {"epsilon": None, **said, "protects": f"Nothing is promised: {why}."}
    return {
        "epsilon": epsilon_of(noise.noise, delta, times),
        "epsilon_renyi": renyi_epsilon(renyi(noise.noise, times=times), delta),
        "delta": delta,
        "noise_multiplier": noise.noise,
        **said,
        "where": "device" if leaves else "server",
        "protects": _protects(leaves, times),
        "not_covered": _not_covered(delta, clients),
    }


def _protects(leaves: bool, times: int) -> str:
    place = (
        "Local: each device adds the noise, so it holds against the server too."
        if leaves
        else "Central: the server adds the noise, so it must be trusted to add it and to show "
        "nobody a sum without it."
    )
    return (
        f"Each person's whole contribution (user level): the sums of all rounds, against the same "
        f"sums with one client's updates left empty, for whoever took part up to {times} times. "
        f"{place} Nothing is claimed from sampling: who takes part is a public hash."
    )


def _not_covered(delta: float, clients: int) -> str:
    said = (
        "Who was asked, whose update was refused, records lent to the server, and measured "
        "quality with every choice made by it (such as the best round)."
    )
    if delta * clients >= 1:
        said += f" Mind: delta {delta:g} is not below 1 / {clients} clients."
    return said


def _log_cdf(x: float) -> float:
    """log Phi(x), also far out in the tail."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
