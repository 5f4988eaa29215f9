"""InfoNCE between two tables of item rows, with a closed-form gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

COLD = 0.02
"""Below this temperature exp(1 / tau) may overflow float32, so the maximum is subtracted."""
LOG2_E = math.log2(math.e)


def infonce(local: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """Compute InfoNCE of local and global item views, in-batch negatives (Eq. 17).

    The mean over i of -log(exp(cos(l_i, s_i) / tau) / sum over j of exp(cos(l_i, s_j) / tau)).
    local, seen: [n, d]
    """
    loss: Tensor = _InfoNCE.apply(local, seen, temperature)  # type: ignore[no-untyped-call]
    return loss


class _InfoNCE(torch.autograd.Function):
    """Cross-entropy of all pairs of unit rows, with one exponential and no stored softmax.

    With unit rows l and s, E = exp(l s^T / tau) and its row sums e, the gradients at the unit rows
    are (E s / e - s) / (n tau) and (E^T (l / e) - l) / (n tau).
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, seen: Tensor, temperature: float) -> Tensor:
        by_one, by_two = (_inverse_norm(t) for t in (local, seen))
        one, two = local * by_one, seen * by_two
        right = torch.linalg.vecdot(one, two) / temperature
        powers = (one * (LOG2_E / temperature)) @ two.T  # exp2 is faster than exp
        if temperature < COLD:
            highest = powers.amax(1, keepdim=True)
            powers -= highest
            right = right - highest.squeeze(1) / LOG2_E
        each = powers.exp2_()
        total = each.sum(1, keepdim=True)
        scale = 1 / (len(one) * temperature)
        down = (each @ two).div_(total).sub_(two)
        back = (each.T @ (one / total)).sub_(one)
        ctx.down = (_tangent(down, one) * (by_one * scale), _tangent(back, two) * (by_two * scale))
        return (total.log().squeeze(1) - right).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *(grads[0] * g for g in ctx.down), None


def _inverse_norm(rows: Tensor) -> Tensor:
    """Return 1 / the norm of each row, clamped as in `normalize`. [n, 1]"""
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=1e-12).reciprocal_()


def _tangent(grad: Tensor, unit: Tensor) -> Tensor:
    """Remove the part of a gradient that is parallel to unit rows. [n, d]"""
    return grad - torch.linalg.vecdot(grad, unit).unsqueeze(1) * unit
