"""Privacy accounting for runs with Gaussian noise: epsilon at a delta, and a budget.

The guarantee is user level: it compares the sums with the same sums where one client's updates are
empty in every round. Clients are sampled by a public hash, so sampling does not improve it: the run
is covered by the client that took part most often (`gaussian.delta_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rescind.core.guards import Clip, Gaussian, Guard, Laplace
from rescind.errors import ConfigError
from rescind.privacy.gaussian import DELTA, check_delta, epsilon_of

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.run_state import EarlyStop, RoundResult

ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512)
"""Orders of the Renyi divergences: the usual grid (Abadi et al. 2016 and later)."""


def renyi(noise: float, orders: Sequence[float] = ORDERS, times: int = 1) -> tuple[float, ...]:
    """Compute Renyi divergences: T order / (2 z^2) at each order (Mironov 2017, proposition 7)."""
    return tuple(times * order / (2 * noise**2) for order in orders)


def renyi_epsilon(values: Sequence[float], delta: float, orders: Sequence[float] = ORDERS) -> float:
    """Compute epsilon from Renyi divergences: looser, for comparison with other work.

    Canonne, Kamath, Steinke 2020, proposition 12.
    """
    check_delta(delta)
    epsilons = [
        value + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order, value in zip(orders, values, strict=True)
    ]
    return max(0.0, min(epsilons))


def count(took_part: list[int], ids: Tensor) -> list[int]:
    after = took_part + [0] * (int(ids.max()) + 1 - len(took_part) if len(ids) else 0)
    for client in ids.tolist():
        after[client] += 1
    return after


def most_often(took_part: list[int], ids: Tensor | None = None) -> int:
    """Return the highest participation count, of all clients or of `ids`."""
    if ids is None:
        return max(took_part, default=0)
    return max((took_part[c] for c in ids.tolist() if c < len(took_part)), default=0)


def run_within(
    fed: Federation,
    rounds: int,
    until: EarlyStop | None,
    on_round: Sequence[Callable[[RoundResult], Any]],
    allowed: Callable[[Tensor], bool],
) -> tuple[Federation, int | None]:
    """Run like `Federation.run`, but stop before a round with a client that is not allowed."""
    last = until

    def remember(result: RoundResult) -> None:
        nonlocal last
        last = result.until

    stopped = None
    for _ in range(rounds):
        if last and last.done:
            break
        state = fed.now.state
        if not allowed(fed.method.server_sample(state, fed.world, fed.clock.at(state.round + 1))):
            stopped = state.round
            break
        one_round = replace(last, restore=False) if last else None
        fed = fed.run(1, until=one_round, watch=(remember, *on_round))
    if until and until.restore and last and last.best:
        fed = replace(fed, now=last.best)
    return fed, stopped


def guarantee(fed: Federation, delta: float = DELTA) -> dict[str, Any]:
    """Return what a federation guarantees by noise: the section `privacy` of run.json.

    `epsilon` is None without Gaussian noise. All rounds under the guards count. Sums that are
    published with noise (`rs.methods.Gram(noise=...)`) state theirs, at the method's own delta.
    """
    check_delta(delta)
    guards, rounds = getattr(fed.executor, "guards", ()), fed.now.state.round
    if guards and rounds and fed.spent is None:
        raise ConfigError(
            f"it is not known who took part in the {rounds} rounds of this federation: they ran "
            f"without guards."
        )
    times = 0 if fed.spent is None else int(fed.spent.max())
    stated = statement(guards, fed.method.individual, times, delta, fed.world.sizes.clients)
    counted = {} if guards else {"participations": None}
    return stated | counted | fed.method.promise(fed)


def statement(
    guards: Sequence[Guard], leaves: bool, times: int, delta: float, clients: int
) -> dict[str, Any]:
    """Return the guarantee of a run's guards, in numbers and in words, for run.json.

    leaves: single updates leave the devices    times: highest participation count
    """
    clip = next((g.norm for g in guards if isinstance(g, Clip)), None)
    noise = next((g for g in guards if isinstance(g, Gaussian)), None)
    scale = next((g.scale for g in guards if isinstance(g, Laplace)), None)
    facts: dict[str, Any] = {"clip": clip, "laplace": scale, "participations": times}
    if noise is None:
        why = "no guard is set" if clip is None and scale is None else "there is no Gaussian noise"
        if scale is not None:
            why = "Laplace noise without a bound on updates is not differential privacy"
        return {"epsilon": None, **facts, "protects": f"No guarantee: {why}."}
    return {
        "epsilon": epsilon_of(noise.noise, delta, times),
        "epsilon_renyi": renyi_epsilon(renyi(noise.noise, times=times), delta),
        "delta": delta,
        "noise_multiplier": noise.noise,
        **facts,
        "where": "device" if leaves else "server",
        "protects": _protects(leaves, times),
        "not_covered": _not_covered(delta, clients),
    }


def _protects(leaves: bool, times: int) -> str:
    where = (
        "Local: each device adds the noise, so it also protects against the server."
        if leaves
        else "Central: the server adds the noise, so it must be trusted to add it and not "
        "to show a sum without it."
    )
    return (
        f"Each user's whole contribution (user level): the sums of all rounds, compared with the "
        f"same sums without one client's updates, for clients that took part at most {times} "
        f"times. {where} Nothing is gained from sampling: clients are drawn by a public hash."
    )


def _not_covered(delta: float, clients: int) -> str:
    text = (
        "Which clients were asked, which updates were refused, records lent to the server, and "
        "measured quality with every choice based on it (such as the best round)."
    )
    if delta * clients >= 1:
        text += f" Warning: delta {delta:g} is not below 1 / {clients} clients."
    return text
