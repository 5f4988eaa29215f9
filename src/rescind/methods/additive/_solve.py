"""Inverse of a Gram matrix, its updates, and the item weights computed from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.doing import step
from rescind.methods.additive._pairs import Parts, halved, items_of, mirrored
from rescind.methods.additive._solving import (
    ROWS,
    UNIT,
    Ridge,
    Temper,
    half,
    inverted,
    must_have_inverse,
)

WEIGHTS = "weights"
FEW = 4
"""Up to this many parts use compiled loops; changes speed only."""
SOLVE_SECONDS = 3e-11
"""CPU time of a solve, divided by the cube of the items: measured on one core with 3,500 items."""


def seconds_to_solve(items: int) -> float:
    """Return about how much CPU time all pairs of a catalogue take to solve."""
    return SOLVE_SECONDS * items**3


def inverse_of(
    grams: Sequence[tuple[Tensor, float]], items: int, ridge: Ridge, ties: Tensor | None = None
) -> Tensor:
    """Compute the lower half of C = (G / 4096 + ridge)^-1, Cholesky in float64. [I (I + 1) / 2]

    G is the sum of factor * half in the given order, so the same integers give the same bits.
    ties: half of a matrix that is added to the ridge
    """
    if grams[0][0].device.type == "cpu":
        with step(f"solving {items:,} x {items:,}", seconds=seconds_to_solve(items)):
            # no other reference: the sum is freed
            return torch.from_numpy(inverted(_ridged(grams, items, ridge, ties).numpy(), items))
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
    """Compute B = I - C / diag(C): B_ij = -C_ij / C_jj, 0 on the diagonal. [I, I] float32"""
    weights = (inverse * inverse.diagonal().reciprocal().neg()).float()
    weights.fill_diagonal_(0.0)
    each = inverse.diagonal()
    return weights if temper is None else temper.rescale(weights, each.unsqueeze(1), each)
