"""A small memory of hard negatives on each device, used by CFRU (Huynh et al., TOIS 2025).

Hard negatives score high now and had a varying score before. Entries are resampled in every round
in proportion to exp(score).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.tasks.ranking import draw_negatives

ITEM, TIMES, MEAN, SQUARES = (f"negatives/{part}" for part in ("item", "times", "mean", "squares"))
"""Per entry: item, number of scores, mean score, sum of squared deviations from the mean."""


def empty(clients: int, size: int, device: torch.device) -> dict[str, Tensor]:
    """Return a memory without entries. item: [C, M], -1 if empty    the others: [C, M]"""
    zero = torch.zeros(clients, size, device=device)
    return {ITEM: torch.full_like(zero, -1).long(), TIMES: zero, MEAN: zero, SQUARES: zero}


def refreshed(
    held: Params, scores: Tensor, cohort: Cohort, clock: Clock, fresh: int
) -> dict[str, Tensor]:
    """Resample the memory from its entries and `fresh` uniform ones, in proportion to exp(score).

    Without replacement: the largest of score + Gumbel noise. Mean and squares of an entry that
    stays are updated by Welford's recursion. Items that a client owns are removed.

    scores: [C, I] current scores of a client's model
    """
    clients, size = held[ITEM].shape
    slot = torch.arange(fresh, device=scores.device).expand(clients, -1)
    row = torch.arange(clients, device=scores.device).unsqueeze(1)
    new = draw_negatives(clock, cohort, row.expand_as(slot).reshape(-1), slot.reshape(-1))
    item = torch.cat([held[ITEM], new.view(clients, fresh)], 1)  # [C, M + fresh], old ones first
    valid = (item >= 0) & ~_owned(item, cohort) & ~_repeated(item)
    score = scores.gather(1, item.clamp(min=0))
    place = torch.arange(item.shape[1], device=scores.device).expand_as(item)
    drawn = clock.uniform("negative memory", cohort.ids.unsqueeze(1).expand_as(item), place)
    gumbel = -torch.log(-torch.log(drawn.clamp(1e-12, 1 - 1e-12))).to(score)
    keys = torch.where(valid, score + gumbel, -torch.inf)
    chosen = keys.topk(size, dim=1).indices
    kept = valid.gather(1, chosen)
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
    held: Params, scores: Tensor, owner: Tensor, positive: Tensor, k: int, spread_weight: float
) -> Tensor:
    """Return the k entries of each owner's memory with the largest value. [n, k]

    The value of entry j for positive i is sigma(s_j - s_i) + spread_weight * std(s_j). -1 if the
    memory has fewer than k entries.    owner, positive: [n]    scores: [C, I]
    """
    item = held[ITEM]
    std = (held[SQUARES] / held[TIMES].clamp(min=1)).sqrt()  # [C, M]
    score = scores.gather(1, item.clamp(min=0))
    above = score[owner] - scores[owner, positive].unsqueeze(1)
    value = torch.sigmoid(above) + spread_weight * std[owner].to(above)
    value = torch.where(item[owner] >= 0, value, -torch.inf)
    best = value.topk(min(k, item.shape[1]), dim=1)
    return torch.where(best.values > -torch.inf, item[owner].gather(1, best.indices), -1)


def _owned(item: Tensor, cohort: Cohort) -> Tensor:
    row = torch.arange(len(item), device=item.device).unsqueeze(1)
    mine = cohort.own.owner * cohort.items + cohort.own.item
    return torch.isin(row * cohort.items + item.clamp(min=0), mine) & (item >= 0)


def _repeated(item: Tensor) -> Tensor:
    order = torch.sort(item, dim=1, stable=True)
    repeat = torch.zeros_like(item, dtype=torch.bool)
    repeat[:, 1:] = order.values[:, 1:] == order.values[:, :-1]
    return torch.zeros_like(repeat).scatter_(1, order.indices, repeat)
