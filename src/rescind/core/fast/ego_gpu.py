"""The round of `ego_kernel` on a GPU, without autograd or row copies.

With one batch and one SGD step, all values are taken at the broadcast table, so a client's update
is linear in its gradient and is added to the sum directly. `step` says it in flat tensor
operations, at most [pairs, d]; `ego_triton` computes the same in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.tasks.ranking import draw_negatives
from rescind.core.update import Sum


def ego_bpr(
    method: Any, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Run one round of ego-LightGCN with cosine BPR (FedShare Eq. 13-15), like `ego_kernel`.

    `up` counts a row twice if a client samples it twice: an upper bound.
    """
    table, first, train = public["item"], private["user"], cohort.train
    weight = cohort.weight.to(table.dtype)
    scale = torch.full_like(weight, 1 / method.temperature)
    if method.reduce == "mean":
        scale /= (train.count * method.negatives).clamp(min=1)
    rate = method.rate * (len(table) if method.rate_per_item else 1)
    given = table, first, cohort, clock.step(0), method.negatives
    total, grad = step_for(table)(*given, weight * rate, scale, method.temperature)
    rows = len(train) * (1 + method.negatives)
    return Sum(
        totals={"item": total},
        weight=float(cohort.weight.double().sum()),
        clients=len(cohort),
        up=rows * (table.shape[1] * table.element_size() + 4),
    ), private.with_(user=first - method.private_rate * grad)


def step_for(table: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the kernel where it runs, else the tensor operations."""
    if table.device.type == "cuda" and table.dtype == torch.float32 and find_spec("triton"):
        from rescind.core.fast import ego_triton

        return ego_triton.step
    return step


def step(
    table: Tensor,
    first: Tensor,
    cohort: Cohort,
    clock: Clock,
    negatives: int,
    by: Tensor,
    scale: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return (sum of all clients' updates of the table, gradient at each initial user vector).

    by, scale: [C] factors of the updates and of the slopes
    """
    owner, item, count = cohort.train.owner, cohort.train.item, cohort.train.count
    drawn = draws(cohort, clock, negatives)
    norm = torch.linalg.vector_norm(table, dim=1).clamp(min=1e-12)
    unit = table / norm.unsqueeze(1)
    root = torch.rsqrt(count.clamp(min=1).to(table.dtype)).unsqueeze(1)
    user = (first + _by_owner(table[item], count) * root) / 2
    inv_norm = 1 / torch.linalg.vector_norm(user, dim=1, keepdim=True).clamp(min=1e-12)
    direction = user * inv_norm

    user_dir, positive, by = direction[owner], unit[item], by[owner]
    pos_score = (user_dir * positive).sum(1)
    total, radial = torch.zeros_like(table), torch.zeros_like(norm)
    slope, row_grad = torch.zeros_like(pos_score), torch.zeros_like(positive)
    for column in drawn.unbind(1):  # one negative at a time limits memory to [pairs, d]
        index = column.clamp(min=0)
        negative = unit[index]
        neg_score = (user_dir * negative).sum(1)
        g = torch.sigmoid((neg_score - pos_score) / temperature) * scale[owner] * (column >= 0)
        slope = slope + g
        row_grad = row_grad + negative * g.unsqueeze(1)
        radial = radial.index_add(0, index, by * g * neg_score)
        total = total.index_add(0, index, user_dir * (-by * g).unsqueeze(1))
    row_grad = row_grad - positive * slope.unsqueeze(1)
    radial = radial.index_add(0, item, -by * slope * pos_score)
    grad = _by_owner(row_grad, count)
    grad = (grad - (grad * direction).sum(1, keepdim=True) * direction) * inv_norm / 2
    propagated = (grad * root)[owner]
    move = user_dir * (by * slope).unsqueeze(1) - propagated * (by * norm[item]).unsqueeze(1)
    total = total.index_add(0, item, move)
    return (total + radial.unsqueeze(1) * unit) / norm.unsqueeze(1), grad


def draws(cohort: Cohort, clock: Clock, each: int) -> Tensor:
    """Draw the negatives of every training record; -1 if there is none. [n, each]"""
    train = cohort.train
    k = train.place.unsqueeze(1) * each + torch.arange(each, device=train.item.device)
    owner = train.owner.unsqueeze(1).expand_as(k).reshape(-1)
    return draw_negatives(clock, cohort, owner, k.reshape(-1)).view(-1, each)


def _by_owner(values: Tensor, count: Tensor) -> Tensor:
    """Sum consecutive rows, `count[c]` for client c, without atomic additions."""
    if values.device.type == "cuda":
        return torch.segment_reduce(values, "sum", lengths=count, axis=0, initial=0.0)
    return jagged.segment_sum(values, jagged.owners_of(count), len(count))
