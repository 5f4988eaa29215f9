"""A small memory of hard negatives on each device, as CFRU learns with (Huynh et al., TOIS 2025).

Items that score high now, and whose score wavered, are the likeliest to teach something without
being what the person would like. Entries are drawn anew at every turn, in proportion to exp(score).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.tasks.ranking import draw_negatives

ITEM, TIMES, MEAN, SQUARES = (f"negatives/{part}" for part in ("item", "times", "mean", "squares"))
"""By entry: the item, how often it was scored, its mean score, the sum of squares about that."""


def empty(clients: int, size: int, device: torch.device) -> dict[str, Tensor]:
    """A memory without entries. item: [C, M], -1 where empty    the others: [C, M]"""
    zero = torch.zeros(clients, size, device=device)
    return {ITEM: torch.full_like(zero, -1).long(), TIMES: zero, MEAN: zero, SQUARES: zero}


def refreshed(
    held: Params, scores: Tensor, cohort: Cohort, clock: Clock, fresh: int
) -> dict[str, Tensor]:
    """The memory drawn anew from its entries and `fresh` uniform ones: in proportion to exp(score).

    Without replacement, by the largest of score + Gumbel noise. An entry that stays has its score
    noted: mean and squares by Welford's recursion. Items that a client owns fall out.

    scores: [C, I] what a client's model says now
    """
    clients, size = held[ITEM].shape
    slot = torch.arange(fresh, device=scores.device).expand(clients, -1)
    row = torch.arange(clients, device=scores.device).unsqueeze(1)
    new = draw_negatives(clock, cohort, row.expand_as(slot).reshape(-1), slot.reshape(-1))
    item = torch.cat([held[ITEM], new.view(clients, fresh)], 1)  # [C, M + fresh], old ones first
    there = (item >= 0) & ~_owned(item, cohort) & ~_repeated(item)
    score = scores.gather(1, item.clamp(min=0))
    place = torch.arange(item.shape[1], device=scores.device).expand_as(item)
    luck = clock.uniform("negative memory", cohort.ids.unsqueeze(1).expand_as(item), place)
    gumbel = -torch.log(-torch.log(luck.clamp(1e-12, 1 - 1e-12))).to(score)
    keys = torch.where(there, score + gumbel, -torch.inf)
    chosen = keys.topk(size, dim=1).indices
    kept = there.gather(1, chosen)
    known = {n: torch.cat([held[n], row.new_zeros(clients, fresh).to(held[n])], 1).gather(1, chosen)
             for n in (TIMES, MEAN, SQUARES)}  # fmt: skip
    now = score.gather(1, chosen).to(known[MEAN])
    times = known[TIMES] + 1
    mean = known[MEAN] + (now - known[MEAN]) / times
    squares = known[SQUARES] + (now - known[MEAN]) * (now - mean)
    return {
        ITEM: torch.where(kept, item.gather(1, chosen), -1),
        TIMES: torch.where(kept, times, 0.0),
        MEAN: torch.where(kept, mean, 0.0),
        SQUARES: torch.where(kept, squares, 0.0),
    }


def hardest(
    held: Params, scores: Tensor, owner: Tensor, positive: Tensor, many: int, doubt: float
) -> Tensor:
    """Of each pair's memory the `many` largest sigma(s_k - s_i) + doubt std(s_k). [n, many]

    -1 where a memory has fewer.    owner, positive: [n]    scores: [C, I]
    """
    item = held[ITEM]
    wavered = (held[SQUARES] / held[TIMES].clamp(min=1)).sqrt()  # [C, M]
    here = scores.gather(1, item.clamp(min=0))
    above = here[owner] - scores[owner, positive].unsqueeze(1)
    value = torch.sigmoid(above) + doubt * wavered[owner].to(above)
    value = torch.where(item[owner] >= 0, value, -torch.inf)
    best = value.topk(min(many, item.shape[1]), dim=1)
    return torch.where(best.values > -torch.inf, item[owner].gather(1, best.indices), -1)


def _owned(item: Tensor, cohort: Cohort) -> Tensor:
    """Which entries a client has by now. [C, n]"""
    row = torch.arange(len(item), device=item.device).unsqueeze(1)
    mine = cohort.own.owner * cohort.items + cohort.own.item
    return torch.isin(row * cohort.items + item.clamp(min=0), mine) & (item >= 0)


def _repeated(item: Tensor) -> Tensor:
    """Which entries stand further in front already. [C, n]"""
    order = torch.sort(item, dim=1, stable=True)
    twice = torch.zeros_like(item, dtype=torch.bool)
    twice[:, 1:] = order.values[:, 1:] == order.values[:, :-1]
    return torch.zeros_like(twice).scatter_(1, order.indices, twice)
