"""Exponential mechanism on items: a device sends a random similar item instead of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 1024
"""Items per batch: [block, I] float64 is 30 MB on ML-1M. Changes memory only."""


def law(table: Tensor, item: Tensor, epsilon: float) -> Tensor:
    """Return Pr[M(i) = j] over the catalogue for each given i. [n, I] float64

    exp(epsilon q(i, j) / 2) / sum, with q(i, j) = (1 + cos(v_i, v_j)) / 2 in [0, 1]: sensitivity 1,
    so it is epsilon-LDP (McSherry and Talwar 2007).
    """
    unit = functional.normalize(table.double(), dim=-1)
    alike = (1 + (unit[item] @ unit.T).clamp(-1, 1)) / 2
    return torch.softmax(alike * (epsilon / 2), dim=1)


def perturbed(table: Tensor, item: Tensor, chance: Tensor, epsilon: float) -> Tensor:
    """Draw M(i) for each item by inverse sampling with `chance` in [0, 1). [n]"""
    out = torch.empty_like(item)
    for start in range(0, len(item), BLOCK):
        cut = slice(start, start + BLOCK)
        up_to = torch.cumsum(law(table, item[cut], epsilon), 1)
        at = (chance[cut].unsqueeze(1) * up_to[:, -1:]).to(up_to)
        out[cut] = torch.searchsorted(up_to, at, right=True).squeeze(1).clamp(max=len(table) - 1)
    return out
