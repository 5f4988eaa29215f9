"""The instant form: C = (G / 4096 + ridge)^-1 as a square that follows every change at once.

Comparing answers before and after reveals what left: for demonstrations and groups that trust each
other. Loads no torch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rescind.errors import ConfigError
from rescind.methods.additive import _live_kernels as kernels
from rescind.methods.additive._kernels import unfold
from rescind.methods.additive._live_release import (
    FEWEST,
    Form,
    Reasoned,
    Weights,
    chosen_reasons,
    cut,
    filled,
    listed,
    most_lent,
    popular,
)
from rescind.methods.additive._live_sum import Items, LiveSum, Moved, Totals
from rescind.methods.additive._solving import ROWS, UNIT, Floats, Solving

FEW = 2
"""Parts that one compiled pass subtracts: those of one person's change."""


@dataclass
class LiveInverse:
    """C of the loans of this moment. One thread changes it; any thread makes lists."""

    sums: Totals
    """The sum that C belongs to; it changes before C does."""
    form: Form = field(default_factory=lambda: Form(Solving()))
    square: Floats = field(init=False, repr=False)
    """[I, I]"""
    changes: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        solving = self.form.solving
        if solving.ridge_per_item or solving.temper != type(solving.temper)():
            raise ConfigError(
                "the instant form needs ridge_per_item, own_power and shown_power 0, and sharpen 1."
            )
        self.solve()

    def solve(self) -> None:
        """Compute C from the sum, which ends the rounding errors of earlier changes."""
        square = np.empty((self.sums.items, self.sums.items))
        unfold(self.sums.inverse(self.form.solving.ridges), square)
        with self._lock:
            self.square, self.changes = square, 0

    def change(self, moved: Moved) -> None:
        """Follow a change that the sum has made already: C - C U (D^-1 + U^T C U)^-1 U^T C."""
        parts = moved.parts
        if not parts:
            return
        self.changes += len(parts)
        if self.changes > self.form.solving.resolve_every:
            self.solve()
            return
        with self._lock:
            self._subtract(parts)
            gone = moved.old[self.sums.owners[moved.old] == 0]
            # As a solve has it, without rounding: no trace of the item's last owner remains.
            self.square[gone], self.square[:, gone] = 0.0, 0.0
            self.square[gone, gone] = 1 / self.form.solving.ridge

    def _subtract(self, parts: list[tuple[Items, int]]) -> None:
        reach = np.zeros((len(parts), len(self.square)))
        for row, (items, _) in zip(reach, parts, strict=True):
            kernels.sum_of_rows(self.square, items, row)
        among = np.array([[row[items].sum() for items, _ in parts] for row in reach])
        inside = (among + among.T) / 2 + np.diag([UNIT / weight for _, weight in parts])
        right = np.linalg.inv(inside) @ reach
        if len(parts) == 1:
            kernels.less_one_square(self.square, reach[0], right[0])
        elif len(parts) == FEW:
            kernels.less_two_square(self.square, reach, right)
        else:
            for begin in range(0, len(self.square), ROWS):
                rows = slice(begin, begin + ROWS)
                self.square[rows] -= reach[:, rows].T @ right

    def weights(self) -> Weights:
        with self._lock:
            square, owners = self.square.copy(), self.sums.owners.copy()
        return cut(square, owners, self.form)

    def recommend(self, own: Items, k: int = 20) -> list[Reasoned]:
        """Return the k best items that are not owned, with their reasons. own: sorted"""
        if len(own) < FEWEST:
            return popular(self._shown(), own, k)
        with self._lock:  # a change of C takes some milliseconds: no list is made in its midst
            factor = -1 / self.square.diagonal()
            score = np.zeros(len(self.square))
            kernels.sum_of_rows(self.square, own, score)
            score *= factor
            score[own] = score[self.sums.owners < self.form.min_count] = -np.inf
            best = np.empty(min(k, len(score)), np.int64)
            best = best[: kernels.best_of(score, best)]
            parts = self.square[np.ix_(own, best)] * factor[best]
            chosen, share = chosen_reasons(parts.astype(np.float32))
            rank = np.zeros_like(chosen)
            for n in np.unique(chosen[chosen >= 0]):
                without = score - self.square[own[n]] * factor
                for line, r in zip(*np.nonzero(chosen == n), strict=True):
                    rank[line, r] = np.count_nonzero(without > without[best[line]]) + 1
        found = listed(own, best, chosen, share, rank)
        return found if len(found) == k else filled(found, self._shown(), own, k)

    def _shown(self) -> NDArray[np.int32]:
        return most_lent(self.sums.owners, self.form.min_count)


@dataclass
class InstantSum(LiveSum):
    """A live sum with its inverse: what is served follows every change."""

    form: Form = field(default_factory=lambda: Form(Solving()))
    inverse: LiveInverse | None = field(init=False, default=None)
    """Made at the first list after a start, when the loans are loaded."""

    def change(self, person: bytes, old: Items, new: Items) -> None:
        super().change(person, old, new)
        if self.inverse is not None:
            self.inverse.change(Moved(old, new))

    def ready(self) -> LiveInverse:
        if self.inverse is None:
            form = replace(self.form, min_count=self.min_count)
            self.inverse = LiveInverse(self.sums, form)
        return self.inverse
