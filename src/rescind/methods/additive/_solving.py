"""Settings of a solve and the solve itself, in numpy: what works without torch.

A process that serves people loads no torch, and solves the same sum to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rescind.core.ranges import must_lie
from rescind.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

UNIT = 4096
"""Weights are integer multiples of 1 / 4096; rounding changes less than the fourth digit."""
ROWS = 512
"""Rows processed at a time; changes speed and memory only."""
Floats = NDArray[np.float64]
Count = TypeVar("Count", int, "Tensor", NDArray[np.int64])
Each = TypeVar("Each", "Tensor", Floats)


def half(count: Count) -> Count:
    """Return n (n + 1) / 2, the number of pairs i >= j of n items."""
    return count * (count + 1) // 2


@dataclass(frozen=True)
class Ridge:
    """Ridge on the diagonal: ridge_i = same + per_item * (G_ii / 4096) ** power.

    It depends on the item's own sum only, so changes of other items do not affect it.
    """

    same: float
    per_item: float = 0.0
    power: float = 1.0

    def of(self, each: Each) -> Each:
        """Return the ridge of every item. each: [I] the diagonal of G / 4096"""
        return self.same + self.per_item * each**self.power


@dataclass(frozen=True)
class Temper:
    """Rescaling of item weights before release; a function of C only.

    B_ij = -C_ij / C_jj is multiplied by C_ii^own C_jj^shown, then |B_ij| is raised to `sharp`. C_ii
    is small for popular items, so the powers reduce their influence and their score. (0, 0, 1)
    changes nothing.
    """

    own: float = 0.0
    shown: float = 0.0
    sharp: float = 1.0

    def rescale(self, weights: Tensor, own: Tensor, shown: Tensor) -> Tensor:
        """Rescale the weights in place, given C_ii of the owned and of the scored item."""
        if self.own:
            weights.mul_((own**self.own).to(weights.dtype))
        if self.shown:
            weights.mul_((shown**self.shown).to(weights.dtype))
        if self.sharp != 1:
            for begin in range(0, len(weights), ROWS):  # what is made on the way stays in the cache
                rows = weights[begin : begin + ROWS]
                rows.copy_(rows.abs().pow_(self.sharp).copysign_(rows))
        return weights


@dataclass(frozen=True, kw_only=True)
class Solving:
    """Settings of an additive learner for computing weights from the sum."""

    ridge: float = 45.0
    """Lambda, on the scale of G / 4096: additive.md section 3, tuned on ML-1M."""
    ridge_per_item: float = 0.0
    """Factor of (G_ii / 4096) ** ridge_power, added to an item's ridge; each change then solves
    again. With ridge 60 and power 1, .3 is the best of 0, .1, .3, .5, 1 on ML-1M validation."""
    ridge_power: float = 1.0
    own_power: float = 0.0
    """B_ij is multiplied by C_ii ** own_power: above 0, owned popular items count less."""
    shown_power: float = 0.0
    """B_ij is multiplied by C_jj ** shown_power: above 0, popular items score lower."""
    sharpen: float = 1.0
    """|B_ij| is raised to this power: above 1, large weights count more. See preset `tuned`."""
    resolve_every: int = 1000
    """Solve again after this many rank-one updates, to limit rounding errors."""
    solve_above: float = 0.25
    """Solve again if the rank of an update exceeds this fraction of the items."""

    def check_solving(self) -> None:
        must_lie(self, "(0, inf)", "ridge")
        must_lie(self, "[0, inf)", "ridge_per_item")
        must_lie(self, "(0, 2]", "ridge_power", "sharpen")
        must_lie(self, "[0, 1]", "own_power", "shown_power", "solve_above")
        must_lie(self, "[1, inf)", "resolve_every")

    @property
    def ridges(self) -> Ridge:
        return Ridge(self.ridge, self.ridge_per_item, self.ridge_power)

    @property
    def temper(self) -> Temper:
        return Temper(self.own_power, self.shown_power, self.sharpen)


TUNED: dict[str, Any] = {
    "ridge": 60.0,
    "ridge_per_item": 0.5,
    "own_power": 0.2,
    "shown_power": 0.1,
    "sharpen": 1.1,
}
"""Best HR@20 + NDCG@20 on ML-1M validation, mean of three seeds."""


def inverted(gram: Floats, items: int) -> Floats:
    """Invert a symmetric matrix given as its lower half; `gram` is freed. [I (I + 1) / 2]

    LAPACK's rectangular packed form (Gustavson et al. 2010) is as fast as a full matrix with half
    its memory. LAPACK is column-major, so our lower rows are its upper columns.
    """
    from scipy.linalg.lapack import dpftrf, dpftri, dtfttp, dtpttf

    folded, failed = dtpttf(items, gram, uplo="U")
    del gram
    factor, failed = dpftrf(items, folded, uplo="U", overwrite_a=1)
    must_have_inverse(failed)
    inverse, failed = dpftri(items, factor, uplo="U", overwrite_a=1)
    must_have_inverse(failed)
    assert np.shares_memory(inverse, folded), "LAPACK worked on a copy"
    out: Floats = dtfttp(items, inverse, uplo="U")[0]
    return out


def must_have_inverse(failed: int) -> None:
    if failed:
        raise DataError("the sum has no inverse, so it is not a sum over users. Train again.")
