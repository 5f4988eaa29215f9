"""The same round in flat tensor operations, without autograd and without a shelf: for a GPU.

One batch, one SGD step: everything is taken at the broadcast table, so that a client's step is
linear in its gradient and can be added to the sum where it arises. Arrays are [pairs, d] at most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.fast.local import LocalTraining
from rescind.core.params import Params
from rescind.core.state import Private
from rescind.core.tasks.ranking import draw_negatives
from rescind.core.update import Sum


def ego_bpr(
    method: LocalTraining, public: Params, private: Private, cohort: Cohort, clock: Clock
) -> tuple[Sum, Private]:
    """Ego-LightGCN with cosine BPR (FedShare Eq. 13-15), as `ego_kernel.ego_bpr` computes it.

    `up` counts every sampled row, a row sampled twice by one client twice: an upper bound.
    """
    table, first, train = public["item"], private["user"], cohort.train
    weight = cohort.weight.to(table.dtype)
    scale = torch.full_like(weight, 1 / method.temperature)
    if method.reduce == "mean":
        scale /= (train.count * method.negatives).clamp(min=1)
    rate = method.rate * (len(table) if method.rate_per_item else 1)
    drawn = _draws(method, cohort, clock.step(0))
    total, pull = _step_for(table.device.type)(
        table,
        first,
        train.owner,
        train.item,
        train.count,
        drawn,
        weight * rate,
        scale,
        method.temperature,
    )
    rows = len(train) * (1 + method.negatives)
    return Sum(
        totals={"item": total},
        weight=float(cohort.weight.double().sum()),
        clients=len(cohort),
        up=rows * (table.shape[1] * table.element_size() + 4),
    ), private.with_(user=first - method.private_rate * pull)


def _step(
    table: Tensor,
    first: Tensor,
    owner: Tensor,
    item: Tensor,
    count: Tensor,
    drawn: Tensor,
    step: Tensor,
    scale: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """(the sum of all clients' steps on the table, the gradient at every user's first vector).

    step, scale: [C] what a slope is multiplied by    drawn: [n, negatives], -1 where there is none
    """
    norm = torch.linalg.vector_norm(table, dim=1).clamp(min=1e-12)
    unit = table / norm.unsqueeze(1)
    root = torch.rsqrt(count.clamp(min=1).to(table.dtype)).unsqueeze(1)
    user = (first + _by_owner(table[item], count) * root) / 2
    shorter = 1 / torch.linalg.vector_norm(user, dim=1, keepdim=True).clamp(min=1e-12)
    direction = user * shorter

    towards, mine, by = direction[owner], unit[item], step[owner]
    near = (towards * mine).sum(1)
    total, inward = torch.zeros_like(table), torch.zeros_like(norm)
    slope, pulled = torch.zeros_like(near), torch.zeros_like(mine)
    for column in drawn.unbind(1):  # one negative at a time keeps memory at [pairs, d]
        there = column.clamp(min=0)
        other = unit[there]
        far = (towards * other).sum(1)
        g = torch.sigmoid((far - near) / temperature) * scale[owner] * (column >= 0)
        slope = slope + g
        pulled = pulled + other * g.unsqueeze(1)
        inward = inward.index_add(0, there, by * g * far)
        total = total.index_add(0, there, towards * (-by * g).unsqueeze(1))
    pulled = pulled - mine * slope.unsqueeze(1)
    inward = inward.index_add(0, item, -by * slope * near)
    pull = _by_owner(pulled, count)
    pull = (pull - (pull * direction).sum(1, keepdim=True) * direction) * shorter / 2
    back = (pull * root)[owner]
    move = towards * (by * slope).unsqueeze(1) - back * (by * norm[item]).unsqueeze(1)
    total = total.index_add(0, item, move)
    return (total + inward.unsqueeze(1) * unit) / norm.unsqueeze(1), pull


@lru_cache(maxsize=2)
def _step_for(device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The step, compiled into a few passes where the machine can: gathers cost more than sums."""
    if device == "cuda" and find_spec("triton") is not None:
        return torch.compile(_step)
    return _step


def _draws(method: LocalTraining, cohort: Cohort, clock: Clock) -> Tensor:
    """The negatives of every training record. [n, negatives]"""
    train, many = cohort.train, method.negatives
    k = train.place.unsqueeze(1) * many + torch.arange(many, device=train.item.device)
    owner = train.owner.unsqueeze(1).expand_as(k).reshape(-1)
    return draw_negatives(clock, cohort, owner, k.reshape(-1)).view(-1, many)


def _by_owner(values: Tensor, count: Tensor) -> Tensor:
    """Sums of consecutive rows, `count[c]` for client c: no atomic additions are needed."""
    if values.device.type == "cuda":
        return torch.segment_reduce(values, "sum", lengths=count, axis=0, initial=0.0)
    return jagged.segment_sum(values, jagged.owners_of(count), len(count))
