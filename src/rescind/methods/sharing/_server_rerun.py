"""The server's own steps again, from first values: what it would have become without some loans.

Nobody has to be online. What devices sent is kept as one sum per round, which names nobody; two
runs of the server side by side, with the loans that go and without, tell how far apart it leads.
"""

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
"""What devices sent, as a mean by round. Dated by the table it was made from: one round earlier."""

USUAL_PULL = 0.015
"""How strongly devices pull back unless they are asked. Two runs of ML-100K, and ML-1M, show .0075
to .016; of .01, .015, .02 and .03 this leaves an old row what a retraining leaves it."""

S = TypeVar("S", bound=RankingMethod)


def with_sum(memory: Memory, round_: int, mean: Params) -> Memory:
    """The memory with the mean of one more round."""
    return memory.keep(SUMS, round_ - 1, mean)


def sums_of(memory: Memory, rounds: int) -> list[Params] | None:
    """The mean of every round so far, the first round first; None where one is missing."""
    found = sorted(memory.named(SUMS), key=lambda s: s.round)
    return [s.values for s in found] if [s.round for s in found] == list(range(rounds)) else None


def paths(
    method: S, before: Federation, after: Federation, sums: Sequence[Params], damping: float
) -> tuple[ServerState, ServerState]:
    """The server's states at the end of two runs: in the world before a request, and after it.

    V_t = S(V_t-1, A_t; G) and V'_t = S(V'_t-1, A_t - h (V'_t-1 - V_t-1); G'), both from the same
    first values. S is the server's step, A_t what devices sent, G what is lent. Devices would have
    pulled a table that went astray back to where their records want it: h is how strongly. Without
    it (h = 0) what they did to make up for the loans stays when the loans go, which over-forgets.

    The second run writes down what it assumes devices to have sent, for the next request.
    """
    quiet = replace(method, snapshots=0, keep_sums=False)  # type: ignore[call-arg]
    one, two = (fed.restart(method=method).now.state for fed in (before, after))
    for turn, mean in enumerate(sums, 1):
        clock = before.clock.at(turn)
        felt = {n: a - damping * (two.public[n] - one.public[n]).to(a) for n, a in mean.items()}
        one = quiet.server_step(one, _sent(mean), before.world, clock)
        two = method.server_step(two, _sent(felt), after.world, clock)
    return one, two


def _sent(mean: Params) -> dict[str, Sum]:
    return {"train": Sum(mean, 1.0, 1)} if mean else {}


def pull(
    method: S, before: Federation, after: Federation, state: ServerState, sums: Sequence[Params]
) -> float:
    """How strongly devices pull back a table that went astray, asked of the people of one round: h.

    A replay that assumes nothing of them (h = 0) leads d away from the table V. The same people
    train at V and at V + d with the same draws, and h = -<A(V + d) - A(V), d> / <d, d>. Where
    nobody answers it is the usual one.
    """
    one, two = paths(method, before, after, sums, 0.0)
    astray = {n: (two.public[n] - one.public[n]).to(v) for n, v in state.public.items()}
    there = {n: v + astray[n] for n, v in state.public.items()}
    at, off = (_asked(method, after, replace(state, public=t)) for t in (state.public, there))
    if not (at and off):
        return USUAL_PULL
    along = sum(float(((off[n] - at[n]).double() * astray[n].double()).sum()) for n in off)
    square = sum(float(d.double().square().sum()) for d in astray.values())
    return min(max(-along / square, 0.0), 1.0) if square else 0.0


def _asked(method: S, fed: Federation, state: ServerState) -> Params:
    """What the people of the next round send from a table; nothing comes of it."""
    heard: list[Params] = []
    still = replace(method, refine_bpr=0.0, contrast=0.0, keep_sums=False)  # type: ignore[call-arg]
    watch = [lambda moment: heard.append(method.server_mean(moment.sums))]
    fed.with_(state=state).run(1, still, watch=watch)
    return heard[0]


def moved(
    state: ServerState,
    method: S,
    before: Federation,
    after: Federation,
    request: Request,
    sums: Sequence[Params],
    damping: float,
) -> ServerState:
    """A state moved by as much as the two runs are apart, with the second's rows and moments.

    The first run is the one that was, so V + V' - V_t is V'. Where an earlier request was answered
    by other steps, what those did stays.

    Sums in which the records of the request are go; otherwise those of the second run stay.
    """
    one, two = paths(method, before, after, sums, damping)
    public = {n: v + (two.public[n] - one.public[n]).to(v) for n, v in state.public.items()}
    memory = Memory(tuple(s for s in state.memory if s.name != SUMS))
    if not len(targets(before, request, method)):
        memory = Memory((*memory, *two.memory.named(SUMS)))
    return replace(state, public=public, own={**state.own, **two.own}, memory=memory)


def one_story(fed: Federation) -> bool:
    """Whether nothing happened between the rounds, so that they can be made again in one go."""
    past = fed.past
    return past is not None and past.base is None and all(at == 0 for at, _ in past.story)


def targets(fed: Federation, request: Request, method: Method) -> Tensor:
    """Whose own updates were made with the records: the others only lent them. [n]"""
    event = request.event
    if isinstance(event, Withdraw):
        return request.people
    if not isinstance(event, Erase):  # a device keeps what is unshared
        return torch.zeros(0, dtype=torch.int64)
    records = event.records
    local = records if method.local_includes_shared else records[~records.among(fed.world.shared)]
    return torch.unique(local.client)
