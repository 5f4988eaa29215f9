"""What may stand between a person's update and a server that looks: the lines of a leak table.

Guards are the product's own (`rescind.core.guards`). Pseudo-items and sums of a few people are
simulated here: they say what such a defence would hide, not that it is switched on anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rescind.audits.update_leak import View
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.guards import NOISE, Clip, Gaussian, Guard, Laplace
from rescind.core.update import Sum
from rescind.privacy.accountant import epsilon_of

SCALES = (0.1, 0.2, 0.5)  # F3CRec Table 8
TOGETHER = 10  # the smallest cohort of a secure sum, reliability.md section 4
Key = tuple[float, bool, float | None]


@dataclass(frozen=True)
class Defence:
    """What is done to a person's update before the server sees it."""

    name: str
    guards: tuple[Guard, ...] = ()
    dummies: float = 0.0
    """Pseudo-items for each record, trained like records (FedRec's and MultiVerse's idea)."""
    kept: bool = False
    """The same pseudo-items in every round; otherwise fresh ones."""
    summed: int = 1
    """How many people's updates are added up before the server sees anything."""
    shadowed: bool = False
    """Attack it with IMIA, too: twenty more trainings."""

    @property
    def noise(self) -> Guard | None:
        """The guard that adds noise, if there is one."""
        return next((g for g in self.guards if isinstance(g, NOISE)), None)

    @property
    def stream(self) -> Key:
        """Defences with the same stream differ in noise and sums only."""
        norm = next((g.norm for g in self.guards if isinstance(g, Clip)), None)
        return self.dummies, self.kept, norm


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """The noise multiplier with which `times` updates stay within epsilon, from above."""
    low, high = 1e-3, 1.0
    while epsilon_of(high, delta) > epsilon:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) > epsilon else (low, middle)
    return high * math.sqrt(times)  # T Gaussian mechanisms are one with z / sqrt(T)


def defences(
    rounds: int, epsilons: Sequence[float], clip: float, delta: float
) -> tuple[Defence, ...]:
    """The table's lines, the undefended control first."""
    laplace = [Defence(f"Laplace {s:g}", (Laplace(s),), shadowed=s == SCALES[0]) for s in SCALES]
    several = [
        Defence(
            f"clip {clip:g}, Gaussian, epsilon {e:g} in {times} round{'s' * (times > 1)}",
            (Clip(clip), Gaussian(noise_for(e, delta, times), clip)),
        )
        for times, e in [(1, max(epsilons)), *((rounds, e) for e in sorted(epsilons)[::-1])]
    ]
    return (
        Defence("none", shadowed=True),
        *laplace,
        *({d.name: d for d in several}).values(),
        Defence("1 pseudo-item per record, fresh", dummies=1.0, shadowed=True),
        Defence("1 pseudo-item per record, kept", dummies=1.0, kept=True),
        Defence(f"sum of {TOGETHER} people", summed=TOGETHER),
    )


# -- streams ---------------------------------------------------------------------------------------


@dataclass
class Stream:
    """A running sum of what people sent."""

    total: Tensor
    """[C, I, d]"""
    sent: Tensor
    """[C, I] bool"""
    votes: Tensor
    """[C, I] the sum of the single rounds' splits: where nothing is noisy, each is right by itself,
    and a person's vector may turn from round to round"""


def add(streams: dict[Key, Stream], key: Key, value: Tensor, sent: Tensor, votes: Tensor) -> None:
    """One more round of a stream. votes: as from `split`, of this round"""
    votes = votes.masked_fill(~sent, 0.0)
    if key in streams:
        mine = streams[key]
        mine.total += value
        mine.sent |= sent
        mine.votes += votes
    else:
        streams[key] = Stream(value.clone(), sent, votes)


def view_through(defence: Defence, stream: Stream, rounds: int) -> View:
    """What the server has of a stream after so many rounds."""
    total, sent = stream.total, stream.sent
    if defence.noise is not None:
        total = noisy_total(total, defence.noise, rounds)
        sent = torch.ones_like(sent)  # noise is on all rows, so that no row tells
        return View(total / rounds, sent, rounds, exact=False)
    if defence.summed > 1:
        total, sent = _of_groups(total, sent, defence.summed)
        return View(total / rounds, sent, rounds)
    return View(total / rounds, sent, rounds, votes=stream.votes.masked_fill(~sent, -torch.inf))


def noisy_total(total: Tensor, guard: Guard, rounds: int) -> Tensor:
    """Sums over rounds with one draw of the law that the noises of all rounds have together.

    T normal noises are one of sqrt(T) times the deviation; T Laplace noises are what
    `Laplace.total` draws for a sum of T clients. total: [C, I, d]
    """
    if isinstance(guard, Gaussian):
        guard = replace(guard, noise=guard.noise * math.sqrt(rounds))
    return guard.total(Sum({"rows": total}, float(rounds), rounds)).totals["rows"]


def _of_groups(total: Tensor, sent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Everybody's view is the sum of their group. total: [C, I, d]    sent: [C, I]"""
    groups = max(1, len(total) // size)
    group = torch.arange(len(total)) % groups
    summed = total.new_zeros((groups, *total.shape[1:])).index_add_(0, group, total)
    any_sent = torch.zeros(groups, sent.shape[1]).index_add_(0, group, sent.float()) > 0
    return summed[group], any_sent[group]


def with_dummies(cohort: Cohort, dummies: float, clock: Clock) -> Cohort:
    """The cohort with pseudo-items among its records: uniform among items nobody of theirs is.

    A device then trains them as positives and draws no negative from them. clock: a secret one
    """
    own = torch.zeros(len(cohort), cohort.items, dtype=torch.bool)
    own[cohort.own.owner, cohort.own.item] = True
    train = torch.zeros_like(own)
    train[cohort.train.owner, cohort.train.item] = True
    place = torch.arange(cohort.items)
    drawn = clock.uniform("pseudo-items", cohort.ids.unsqueeze(1), place).masked_fill(own, 2.0)
    wanted = torch.round(cohort.train.count * dummies).unsqueeze(1)
    added = (drawn.argsort(1).argsort(1) < wanted) & ~own
    return replace(cohort, train=_lot(train | added), own=_lot(own | added))


def _lot(chosen: Tensor) -> Lot:
    owner, item = chosen.nonzero(as_tuple=True)
    return Lot(owner, item, len(chosen))
