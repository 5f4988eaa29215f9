"""InfoNCE between two tables of item rows, with its gradient in closed form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

COLD = 0.02
"""Below this temperature exp(1 / tau) nears the end of float32, so the maximum is taken out."""
LOG2_E = math.log2(math.e)


def infonce(local: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """InfoNCE between an item's local and global view, in-batch negatives (Eq. 17).

    The mean over i of -log(exp(cos(l_i, s_i) / tau) / sum over j of exp(cos(l_i, s_j) / tau)).
    local, seen: [n, d]
    """
    loss: Tensor = _InfoNCE.apply(local, seen, temperature)  # type: ignore[no-untyped-call]
    return loss


class _InfoNCE(torch.autograd.Function):
    """Cross-entropy of all pairs of unit rows, with one exponential and no softmax kept.

    With unit rows l and s, E = exp(l s^T / tau) and its row sums e, the gradients at the unit rows
    are (E s / e - s) / (n tau) and (E^T (l / e) - l) / (n tau).
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, seen: Tensor, temperature: float) -> Tensor:
        by_one, by_two = (_shorter(t) for t in (local, seen))
        one, two = local * by_one, seen * by_two
        right = torch.linalg.vecdot(one, two) / temperature
        powers = (one * (LOG2_E / temperature)) @ two.T  # of two, which is faster than of e
        if temperature < COLD:
            highest = powers.amax(1, keepdim=True)
            powers -= highest
            right = right - highest.squeeze(1) / LOG2_E
        each = powers.exp2_()
        total = each.sum(1, keepdim=True)
        scale = 1 / (len(one) * temperature)
        down = (each @ two).div_(total).sub_(two)
        back = (each.T @ (one / total)).sub_(one)
        ctx.down = (_across(down, one) * (by_one * scale), _across(back, two) * (by_two * scale))
        return (total.log().squeeze(1) - right).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *(grads[0] * g for g in ctx.down), None


def _shorter(rows: Tensor) -> Tensor:
    """1 / the length of each row, as `normalize` bounds it. [n, 1]"""
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=1e-12).reciprocal_()


def _across(pull: Tensor, unit: Tensor) -> Tensor:
    """What remains of a gradient at unit rows without its part along them. [n, d]"""
    return pull - torch.linalg.vecdot(pull, unit).unsqueeze(1) * unit
