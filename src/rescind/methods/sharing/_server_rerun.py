"""Replay of the server's steps from the first round, without some loans; no device is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from rescind.core.gradient import RankingMethod
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Erase, Withdraw
from rescind.core.request import Request
from rescind.core.state import Memory, ServerState
from rescind.core.update import Sum

if TYPE_CHECKING:
    from rescind.core.federation import Federation

SUMS = "sums"
"""Name of the stored means of updates; dated one round earlier, by the table they started from."""

USUAL_PULL = 0.015
"""Default damping. Two runs of ML-100K, and ML-1M, measure .0075 to .016; of .01, .015, .02 and .03
this value is closest to retraining for an old row."""

S = TypeVar("S", bound=RankingMethod)


def with_sum(memory: Memory, round_: int, mean: Params) -> Memory:
    """Add the mean of one more round to the memory."""
    return memory.keep(SUMS, round_ - 1, mean)


def sums_of(memory: Memory, rounds: int) -> list[Params] | None:
    """Return the means of all rounds in order; None if one is missing."""
    found = sorted(memory.named(SUMS), key=lambda s: s.round)
    return [s.values for s in found] if [s.round for s in found] == list(range(rounds)) else None


def paths(
    method: S, before: Federation, after: Federation, sums: Sequence[Params], damping: float
) -> tuple[ServerState, ServerState]:
    """Replay the server in the world before a request and after it; return both final states.

    V_t = S(V_t-1, A_t; G) and V'_t = S(V'_t-1, A_t - h (V'_t-1 - V_t-1); G'), both from the same
    initial values. S is the server's step, A_t the mean of updates, G the loans. Devices would have
    pulled a different table back towards their own records: h (`damping`) is how strongly. With
    h = 0 their compensation for the loans stays when the loans go, which over-forgets.

    The second run stores its corrected means for the next request.
    """
    plain = replace(method, snapshots=0, keep_sums=False)  # type: ignore[call-arg]
    one, two = (fed.restart(method=method).now.state for fed in (before, after))
    for turn, mean in enumerate(sums, 1):
        clock = before.clock.at(turn)
        damped = {n: a - damping * (two.public[n] - one.public[n]).to(a) for n, a in mean.items()}
        one = plain.server_step(one, _sent(mean), before.world, clock)
        two = method.server_step(two, _sent(damped), after.world, clock)
    return one, two


def _sent(mean: Params) -> dict[str, Sum]:
    return {"train": Sum(mean, 1.0, 1)} if mean else {}


def pull(
    method: S, before: Federation, after: Federation, state: ServerState, sums: Sequence[Params]
) -> float:
    """Measure the damping h with the clients of one round.

    A replay with h = 0 ends at a distance d from the table V. The same clients train at V and at
    V + d with the same draws, and h = -<A(V + d) - A(V), d> / <d, d>. USUAL_PULL if no client
    answers.
    """
    one, two = paths(method, before, after, sums, 0.0)
    shift = {n: (two.public[n] - one.public[n]).to(v) for n, v in state.public.items()}
    shifted = {n: v + shift[n] for n, v in state.public.items()}
    at, off = (_mean_at(method, after, replace(state, public=t)) for t in (state.public, shifted))
    if not (at and off):
        return USUAL_PULL
    product = sum(float(((off[n] - at[n]).double() * shift[n].double()).sum()) for n in off)
    square = sum(float(d.double().square().sum()) for d in shift.values())
    return min(max(-product / square, 0.0), 1.0) if square else 0.0


def _mean_at(method: S, fed: Federation, state: ServerState) -> Params:
    """Return the mean update of the next round's clients at a table; the round is discarded."""
    means: list[Params] = []
    plain = replace(method, refine_bpr=0.0, contrast=0.0, keep_sums=False)  # type: ignore[call-arg]
    progress = [lambda result: means.append(method.server_mean(result.sums))]
    fed.with_(state=state).run(1, plain, watch=progress)
    return means[0]


def moved(
    state: ServerState,
    method: S,
    before: Federation,
    after: Federation,
    request: Request,
    sums: Sequence[Params],
    damping: float,
) -> ServerState:
    """Add the difference of the two runs to a state, with the second run's rows and moments.

    The first run repeats the real one, so V + V' - V_t is V'; the effect of earlier requests stays.
    Means that contain the request's records are dropped; otherwise the second run's are kept.
    """
    one, two = paths(method, before, after, sums, damping)
    public = {n: v + (two.public[n] - one.public[n]).to(v) for n, v in state.public.items()}
    memory = Memory(tuple(s for s in state.memory if s.name != SUMS))
    if not len(targets(before, request, method)):
        memory = Memory((*memory, *two.memory.named(SUMS)))
    return replace(state, public=public, own={**state.own, **two.own}, memory=memory)


def one_story(fed: Federation) -> bool:
    """Return whether no event came between rounds, so that they can be replayed in one run."""
    past = fed.past
    return past is not None and past.base is None and all(at == 0 for at, _ in past.story)


def targets(fed: Federation, request: Request, method: Method) -> Tensor:
    """Return the clients that trained on the records themselves, not only lent them. [n]"""
    event = request.event
    if isinstance(event, Withdraw):
        return request.people
    if not isinstance(event, Erase):  # a device keeps unshared records
        return torch.zeros(0, dtype=torch.int64)
    records = event.records
    local = records if method.local_includes_shared else records[~records.among(fed.world.shared)]
    return torch.unique(local.client)
