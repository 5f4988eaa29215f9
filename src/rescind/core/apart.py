"""Clients do not mix: what a client computes is the same alone as among others.

A mean over all clients has the right shape and runs well in a simulation, but no device could
compute it: it would need the data of all others. So some clients of a method from outside rescind
are asked again in two halves. Methods of rescind are held to this by tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getattr_static, isfunction

import torch
from torch import Tensor

from rescind.core.cohort import Cohort
from rescind.core.own_code import outside
from rescind.core.params import Params
from rescind.core.returns import ours
from rescind.core.state import Private
from rescind.core.update import Sum
from rescind.errors import BoundaryError

ASKED = 64
"""Clients that are asked again, so that it costs little."""
SHARE = 1e-4
"""Of how far clients move: sums of single precision in another order differ by far less."""
ROUNDING = 1e-6
"""Of the values that are moved, which limit how exactly a small step can be written."""
WRITTEN = ("client_sum", "client_train", "client_loss", "client_plan", "client_weight")
"""Where an author may have mixed clients: the first of these that is theirs is named."""


@dataclass(frozen=True)
class Trained:
    """What some clients made of a round."""

    cohort: Cohort
    before: Private
    sum: Sum
    after: Private


def tried(method: object, round_: int, clients: int) -> bool:
    """Return whether to ask again: of code from outside, in rounds 1, 2, 4, 8, and so on.

    In the first rounds all clients may be so alike that a mean over them is that of each.
    """
    noise = getattr(method, "additive", False) and getattr(method, "noise", 0)
    return clients > 1 and round_ & (round_ - 1) == 0 and not noise and outside(method)


def check_training(
    method: object, train: Callable[[Tensor], Trained], public: Params, ids: Tensor
) -> None:
    """Refuse a method whose clients train otherwise in two halves than together.

    Those with few records and those with many: a mean over the records of all differs most there.
    """
    ids = ids[:ASKED]
    whole = train(ids)
    order = whole.cohort.train.count.argsort(stable=True)
    places = [half.sort().values for half in order.chunk(2)]
    halves = [(place, train(ids[place])) for place in places]
    for together, apart, allowed in _compared(whole, halves, public):
        if not _near(together, apart, allowed):
            name = next((n for n in WRITTEN if _is_theirs(method, n)), "client_train")
            raise BoundaryError(
                f"{type(method).__name__}.{name} gives something else for {len(ids)} clients "
                f"together than for two halves of them, so clients mix. Sum by client "
                f"(jagged.segment_sum), and draw by cohort.ids."
            )


def check_scores(method: object, together: Tensor, alone: Tensor) -> None:
    """Refuse a method that scores a client otherwise alone than among others. [1, ...] each"""
    if not _near(together, alone, SHARE * _length(alone)):
        raise BoundaryError(
            f"{type(method).__name__}.client_scores gives a client other scores alone than among "
            f"others, so clients mix. Make each row from that client's own values."
        )


def _compared(
    whole: Trained, halves: Sequence[tuple[Tensor, Trained]], public: Params
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Return what must agree, and how far it may differ. halves: with their places in the whole"""
    for name, total in whole.sum.totals.items():
        sums = [half.sum.totals[name] for _, half in halves if name in half.sum.totals]
        if any(one.shape != total.shape for one in sums):
            continue  # has room for single clients, and fails where sums are added
        allowed = SHARE * sum(map(_length, sums))
        allowed += ROUNDING * _length(public[name]) if name in public else 0.0
        yield total, sum(sums, torch.zeros_like(total)), allowed
    for place, half in halves:
        yield whole.cohort.weight[place], half.cohort.weight, SHARE * _length(half.cohort.weight)
        for name, rows in half.after.values.items():
            old = half.before.values.get(name, torch.zeros_like(rows))
            moved = _length(rows.double() - old.double())
            allowed = SHARE * moved + ROUNDING * _length(rows)
            yield whole.after.values[name][place], rows, allowed


def _near(one: Tensor, two: Tensor, allowed: float) -> bool:
    """Whether two answers differ by rounding only."""
    return _length(one.double() - two.double()) <= allowed


def _length(values: Tensor) -> float:
    """Return the norm of what is finite; the rest is told by those who check updates and scores."""
    values = values.double()
    return float(torch.where(values.isfinite(), values, 0.0).norm())


def _is_theirs(method: object, name: str) -> bool:
    function = getattr_static(type(method), name, None)
    return isfunction(function) and not ours(function)
