"""The same round in flat tensor operations, without autograd and without a shelf: for a GPU.

One batch, one SGD step: everything is taken at the broadcast table, so that a client's step is
linear in its gradient and can be added to the sum where it arises. Arrays are [pairs, d] at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rescind import jagged
from rescind.clock import Clock
from rescind.cohort import Cohort
from rescind.params import Params
from rescind.state import Private
from rescind.tasks.ranking import draw_negatives
from rescind.update import Sum

if TYPE_CHECKING:
    from rescind.method import Method


def ego_bpr(
    method: Method, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Ego-LightGCN with cosine BPR (FedShare Eq. 13-15), as `kernels.ego_bpr` computes it.

    `up` counts every sampled row, a row sampled twice by one client twice: an upper bound.
    """
    table, first = public["item"], private["user"]
    owner, item = cohort.train.owner, cohort.train.item
    many, count = method.negatives, cohort.train.count
    norm = torch.linalg.vector_norm(table, dim=1).clamp_(min=1e-12)
    unit = table / norm.unsqueeze(1)
    root = torch.rsqrt(count.clamp(min=1).to(table.dtype)).unsqueeze(1)
    near_sum = _by_owner(table.index_select(0, item), count)
    user = (first + near_sum * root) / 2
    shorter = 1 / torch.linalg.vector_norm(user, dim=1, keepdim=True).clamp_(min=1e-12)
    direction = user * shorter

    drawn = _draws(method, cohort, clock.step(0))
    mine = unit.index_select(0, item)
    towards = direction.index_select(0, owner)
    near = torch.linalg.vecdot(towards, mine)
    weight = cohort.weight.to(table.dtype)
    scale = torch.full_like(weight, 1 / method.temperature)
    if method.reduce == "mean":
        scale /= (count * many).clamp(min=1)
    step = (method.rate * (len(table) if method.rate_per_item else 1) * weight)[owner]
    total, inward = torch.zeros_like(table), torch.zeros_like(norm)
    slope, pulled = torch.zeros_like(near), torch.zeros_like(mine)
    for column in drawn.unbind(1):  # one negative at a time keeps memory at [pairs, d]
        there = column >= 0
        column = column.clamp(min=0)
        other = unit.index_select(0, column)
        far = torch.linalg.vecdot(towards, other)
        g = torch.sigmoid((far - near) / method.temperature) * scale[owner] * there
        slope += g
        pulled.addcmul_(other, g.unsqueeze(1))
        inward.index_add_(0, column, step * g * far)
        total.index_add_(0, column, towards * (-step * g).unsqueeze(1))
    pulled.addcmul_(mine, slope.unsqueeze(1), value=-1)
    inward.index_add_(0, item, -step * slope * near)
    pull = _by_owner(pulled, count)
    pull = (pull - torch.linalg.vecdot(pull, direction).unsqueeze(1) * direction) * shorter / 2
    back = (pull * root).index_select(0, owner)
    move = towards * (step * slope).unsqueeze(1) - back * (step * norm[item]).unsqueeze(1)
    total.index_add_(0, item, move)
    total = (total + inward.unsqueeze(1) * unit) / norm.unsqueeze(1)
    rows = len(item) * (1 + many)
    return Sum(
        totals={"item": total},
        weight=float(cohort.weight.double().sum()),
        clients=len(cohort),
        up=rows * (table.shape[1] * table.element_size() + 4),
    ), private.with_(user=first - method.private_rate * pull)


def _draws(method: Method, cohort: Cohort, clock: Clock) -> Tensor:
    """The negatives of every training record. [n, negatives]"""
    train, many = cohort.train, method.negatives
    place = torch.arange(len(train), device=train.item.device) - train.first[train.owner]
    k = place.unsqueeze(1) * many + torch.arange(many, device=place.device)
    owner = train.owner.unsqueeze(1).expand_as(k).reshape(-1)
    return draw_negatives(clock, cohort, owner, k.reshape(-1)).view(-1, many)


def _by_owner(values: Tensor, count: Tensor) -> Tensor:
    """Sums of consecutive rows, `count[c]` for client c: no atomic additions are needed."""
    if values.device.type == "cuda":
        return torch.segment_reduce(values, "sum", lengths=count, axis=0, initial=0.0)
    return jagged.segment_sum(values, jagged.owners_of(count), len(count))
