"""Defences of a user's update against a curious server: the rows of a leak table."""

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
from rescind.privacy.gaussian import epsilon_of

SCALES = (0.1, 0.2, 0.5)  # F3CRec Table 8
TOGETHER = 10  # the smallest cohort of a secure sum, reliability.md section 4
Key = tuple[float, bool, float | None]


@dataclass(frozen=True)
class Defence:
    """A transformation of a user's update before the server sees it."""

    name: str
    guards: tuple[Guard, ...] = ()
    dummies: float = 0.0
    """Pseudo-items per record, trained like records (as in FedRec and MultiVerse)."""
    kept: bool = False
    """Use the same pseudo-items in every round; otherwise new ones."""
    summed: int = 1
    """Number of users whose updates are summed before the server sees them."""
    shadowed: bool = False
    """Also attack with IMIA, which needs twenty more trainings."""

    @property
    def noise(self) -> Guard | None:
        return next((g for g in self.guards if isinstance(g, NOISE)), None)

    @property
    def stream(self) -> Key:
        """Key of the stream; defences with the same key differ only in noise and sums."""
        norm = next((g.norm for g in self.guards if isinstance(g, Clip)), None)
        return self.dummies, self.kept, norm


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """Compute the smallest noise multiplier with which `times` updates stay within epsilon."""
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
    laplace = [Defence(f"Laplace {s:g}", (Laplace(s),), shadowed=s == SCALES[0]) for s in SCALES]
    gaussian = [
        Defence(
            f"clip {clip:g}, Gaussian, epsilon {e:g} in {times} round{'s' * (times > 1)}",
            (Clip(clip), Gaussian(noise_for(e, delta, times), clip)),
        )
        for times, e in [(1, max(epsilons)), *((rounds, e) for e in sorted(epsilons)[::-1])]
    ]
    return (
        Defence("none", shadowed=True),
        *laplace,
        *({d.name: d for d in gaussian}).values(),
        Defence("1 pseudo-item per record, fresh", dummies=1.0, shadowed=True),
        Defence("1 pseudo-item per record, kept", dummies=1.0, kept=True),
        Defence(f"sum of {TOGETHER} people", summed=TOGETHER),
    )


@dataclass
class Stream:
    """A running sum of the updates of users."""

    total: Tensor
    """[C, I, d]"""
    sent: Tensor
    """[C, I] bool"""
    votes: Tensor
    """[C, I] the sum of the splits of single rounds: without noise each round can be split alone,
    and a user's vector may change direction between rounds"""


def add(streams: dict[Key, Stream], key: Key, value: Tensor, sent: Tensor, votes: Tensor) -> None:
    """Add a round to a stream. votes: the result of `split` for this round"""
    votes = votes.masked_fill(~sent, 0.0)
    if key in streams:
        stream = streams[key]
        stream.total += value
        stream.sent |= sent
        stream.votes += votes
    else:
        streams[key] = Stream(value.clone(), sent, votes)


def view_through(defence: Defence, stream: Stream, rounds: int) -> View:
    total, sent = stream.total, stream.sent
    if defence.noise is not None:
        total = noisy_total(total, defence.noise, rounds)
        sent = torch.ones_like(sent)  # all rows have noise, so sent rows are hidden
        return View(total / rounds, sent, rounds, exact=False)
    if defence.summed > 1:
        total, sent = _of_groups(total, sent, defence.summed)
        return View(total / rounds, sent, rounds)
    return View(total / rounds, sent, rounds, votes=stream.votes.masked_fill(~sent, -torch.inf))


def noisy_total(total: Tensor, guard: Guard, rounds: int) -> Tensor:
    """Add the noise of all rounds to sums over rounds, in one draw.

    The sum of T Gaussian noises is Gaussian with sqrt(T) times the deviation. The sum of T Laplace
    noises is what `Laplace.total` draws for T clients. total: [C, I, d]
    """
    if isinstance(guard, Gaussian):
        guard = replace(guard, noise=guard.noise * math.sqrt(rounds))
    return guard.total(Sum({"rows": total}, float(rounds), rounds)).totals["rows"]


def _of_groups(total: Tensor, sent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Replace each user's update by the sum of the group. total: [C, I, d]    sent: [C, I]"""
    groups = max(1, len(total) // size)
    group = torch.arange(len(total)) % groups
    summed = total.new_zeros((groups, *total.shape[1:])).index_add_(0, group, total)
    any_sent = torch.zeros(groups, sent.shape[1]).index_add_(0, group, sent.float()) > 0
    return summed[group], any_sent[group]


def with_dummies(cohort: Cohort, dummies: float, clock: Clock) -> Cohort:
    """Add pseudo-items to the records of a cohort, drawn uniformly from the other items.

    A device trains them as positives and never draws them as negatives. clock: must be secret
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
