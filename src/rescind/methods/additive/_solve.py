"""Inverse of a Gram matrix, its updates, and the item weights computed from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.errors import ConfigError, DataError
from rescind.methods.additive._pairs import ROWS, UNIT, Parts, half, halved, items_of, mirrored

WEIGHTS = "weights"
FEW = 4
"""Up to this many parts use compiled loops; changes speed only."""


@dataclass(frozen=True)
class Ridge:
    """Ridge on the diagonal: ridge_i = same + per_item * (G_ii / 4096) ** power.

    It depends on the item's own sum only, so changes of other items do not affect it.
    """

    same: float
    per_item: float = 0.0
    power: float = 1.0

    def of(self, each: Tensor) -> Tensor:
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


def must_be(settings: object, allowed: Mapping[str, tuple[bool, str]]) -> None:
    """Raise if a setting is out of range. allowed: (whether it fits, what fits) by field"""
    for field, (fits, what) in allowed.items():
        if not fits:
            name, given = type(settings).__name__, getattr(settings, field)
            raise ConfigError(f"{name}.{field} must be {what}; got {given}.")


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
        """Raise if a setting is out of range."""
        allowed = {
            "ridge": (0 < self.ridge < math.inf, "above 0 and finite"),
            "ridge_per_item": (0 <= self.ridge_per_item < math.inf, "0 or above and finite"),
            "ridge_power": (0 < self.ridge_power <= 2, "above 0 and at most 2"),
            "own_power": (0 <= self.own_power <= 1, "between 0 and 1"),
            "shown_power": (0 <= self.shown_power <= 1, "between 0 and 1"),
            "sharpen": (0 < self.sharpen <= 2, "above 0 and at most 2"),
            "resolve_every": (self.resolve_every >= 1, "1 or more"),
            "solve_above": (0 <= self.solve_above <= 1, "between 0 and 1"),
        }
        must_be(self, allowed)

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


def inverse_of(
    grams: Sequence[tuple[Tensor, float]], items: int, ridge: Ridge, ties: Tensor | None = None
) -> Tensor:
    """Compute the lower half of C = (G / 4096 + ridge)^-1, Cholesky in float64. [I (I + 1) / 2]

    G is the sum of factor * half in the given order, so the same integers give the same bits.
    ties: half of a matrix that is added to the ridge
    """
    if grams[0][0].device.type == "cpu":
        return _inverted(_ridged(grams, items, ridge, ties), items)  # no other reference: freed
    factor, failed = torch.linalg.cholesky_ex(mirrored(_ridged(grams, items, ridge, ties)))
    must_have_inverse(int(failed))
    return halved(torch.cholesky_inverse(factor))


def _ridged(
    grams: Sequence[tuple[Tensor, float]], items: int, ridge: Ridge, ties: Tensor | None
) -> Tensor:
    """Return G / 4096 with the ridge on its diagonal. [I (I + 1) / 2]"""
    gram = torch.zeros(0)
    for total, factor in grams:
        part = total.to(torch.float64, copy=True).mul_(factor / UNIT)
        gram = gram.add_(part) if gram.numel() else part
    own = half(torch.arange(1, items + 1, device=gram.device)) - 1  # the diagonal in the half
    gram[own] += ridge.of(gram[own])
    return gram if ties is None else gram.add_(ties)


def _inverted(gram: Tensor, items: int) -> Tensor:
    """Invert a symmetric matrix given as its lower half. [I (I + 1) / 2]

    LAPACK's rectangular packed form (Gustavson et al. 2010) is as fast as a full matrix with half
    its memory. LAPACK is column-major, so our lower rows are its upper columns.
    """
    from scipy.linalg.lapack import dpftrf, dpftri, dtfttp, dtpttf

    folded, failed = dtpttf(items, gram.numpy(), uplo="U")
    del gram
    factor, failed = dpftrf(items, folded, uplo="U", overwrite_a=1)
    must_have_inverse(failed)
    inverse, failed = dpftri(items, factor, uplo="U", overwrite_a=1)
    must_have_inverse(failed)
    assert np.shares_memory(inverse, folded), "LAPACK worked on a copy"
    return torch.from_numpy(dtfttp(items, inverse, uplo="U")[0])


def must_have_inverse(failed: int) -> None:
    """Raise if LAPACK could not factor a sum."""
    if failed:
        raise DataError(
            f"the sum has no inverse (LAPACK error {failed}), so it is not a sum over users. "
            f"Train again from the first round, or set a larger ridge."
        )


def changed(inverse: Tensor, parts: Parts, scale: Tensor) -> Tensor:
    """Update C after G changed by the parts: C - C U (D^-1 + U^T C U)^-1 U^T C.

    Sherman and Morrison 1950 for one part, Woodbury 1950 for several. U has a column of ones at
    the items of each part, D their signed weights. Never delayed: a pending change would reveal
    what was forgotten.

    inverse: [I (I + 1) / 2]    scale: [P] decay of each part, 1 for none
    """
    reach, among = _reach(inverse, parts.lot)
    inside = (among + among.T) / 2
    inside.diagonal().add_(UNIT / (parts.weight.double() * scale))
    return _less_products(inverse, reach, torch.linalg.inv(inside) @ reach)


def _reach(inverse: Tensor, lot: Lot) -> tuple[Tensor, Tensor]:
    """Return U^T C, the sum of C's rows at each part's items, and U^T C U. [P, I], [P, P]"""
    reach = inverse.new_zeros(lot.clients, items_of(inverse))
    among = inverse.new_zeros(lot.clients, lot.clients)
    if inverse.device.type == "cpu" and lot.clients <= FEW:
        from rescind.methods.additive._kernels import sum_rows

        first = torch.cat([lot.first, lot.first.new_tensor([len(lot)])])
        sum_rows(inverse.numpy(), first.numpy(), lot.item.numpy(), reach.numpy(), among.numpy())
        return reach, among
    full = mirrored(inverse)
    reach = torch.nn.functional.embedding_bag(lot.item, full, lot.first, mode="sum")
    return reach, among.index_add_(0, lot.owner, reach[:, lot.item].T.contiguous())


def _less_products(inverse: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the lower half of C - left^T right. left, right: [P, I]"""
    out = torch.empty_like(inverse)
    if inverse.device.type == "cpu" and len(left) <= FEW:
        from rescind.methods.additive._kernels import less_one, less_two

        before, after, a, b = inverse.numpy(), out.numpy(), left.numpy(), right.numpy()
        for k in range(0, len(left) - 1, 2):
            less_two(before, a[k : k + 2], b[k : k + 2], after)
            before = after
        if len(left) % 2:
            less_one(before, a[-1], b[-1], after)
        return out
    items = left.shape[1]
    for row in range(0, items, ROWS):
        end = min(row + ROWS, items)
        lower = torch.ones(end - row, end, dtype=torch.bool, device=left.device).tril_(row)
        here = slice(half(row), half(end))
        torch.sub(inverse[here], (left[:, row:end].T @ right[:, :end])[lower], out=out[here])
    return out


def cleared(inverse: Tensor, parts: Parts, grams: Sequence[Tensor], ridge: float) -> Tensor:
    """Reset C to 1 / ridge at items without owners, in place; return it.

    This equals a full solve there, without the rounding errors of updates: no trace of the item's
    last owner remains. inverse: [I (I + 1) / 2]
    """
    item = parts.lot.item
    own = half(item + 1) - 1  # index of (i, i) in the half
    gone = item[torch.stack([gram[own] for gram in grams]).sum(0) == 0]
    if not len(gone):
        return inverse
    every = torch.arange(items_of(inverse), device=item.device)
    for each in torch.unique(gone).tolist():  # rarely more than a few
        inverse[torch.where(every < each, half(each) + every, half(every) + each)] = 0.0
        inverse[half(each + 1) - 1] = 1 / ridge
    return inverse


def weights_of(inverse: Tensor, temper: Temper | None = None) -> Tensor:
    """Compute B = I - C / diag(C): B_ij = -C_ij / C_jj, 0 on the diagonal. [I, I] float32

    inverse: [I, I]
    """
    weights = (inverse * inverse.diagonal().reciprocal().neg()).float()
    weights.fill_diagonal_(0.0)
    each = inverse.diagonal()
    return weights if temper is None else temper.rescale(weights, each.unsqueeze(1), each)
