"""Peeling: complete histories read out of a sum of pairs, and out of what is made of it.

An item that one person alone has carries that person's whole history as its row. Subtract it, and
other items have one owner left (additive.md section 4). Nothing here needs a guess: what is found
is certain up to coincidence, and a test holds it against the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.methods.additive._pairs import UNIT, weight_of

SLACK = 0.05
"""Weights read off published numbers may be wrong by so much of themselves; exact sums by none."""


SINGLE = 0.05
"""Share of items, at least, that only people who share another item have: their diagonal exceeds
their largest entry by nothing but the ridge. Not the smallest, which rounding makes too small."""


@dataclass(frozen=True)
class Peeled:
    """What was read out of a sum."""

    histories: tuple[frozenset[int], ...]

    def right(self, truth: set[frozenset[int]]) -> int:
        """How many of them are histories that people have, each counted once."""
        return len(truth & set(self.histories))


def peel(gram: Tensor, slack: float = 0.0, longest: int = 0) -> Peeled:
    """Take people out of a sum one by one, as long as some item has a single owner.

    Such an item's row holds one number, n times: the weight of n items, `weight_of`. After a person
    is taken out only the rows of their items are looked at again. longest: the setting, which is
    public

    gram: [I, I] symmetric, in units of 1 / 4096; whole numbers, or real ones read with slack
    """
    left = gram.double().clone()
    many = (left > _floor(left, slack, longest)).sum(1)
    top = left.amax(1)
    found: list[frozenset[int]] = []
    open_rows = torch.ones(len(left), dtype=torch.bool)
    while True:
        row = _single(left, many, top, open_rows, slack, longest)
        if row is None:
            return Peeled(tuple(found))
        there = (left[row] > _floor(left, slack, longest)).nonzero().squeeze(1)
        mine = weight_of(torch.tensor(len(there)), longest).double()
        left[there[:, None], there[None, :]] -= mine
        if slack:
            left[row], left[:, row] = 0.0, 0.0  # whatever rounding left behind
        found.append(frozenset(there.tolist()))
        many[there] = (left[there] > _floor(left, slack, longest)).sum(1)
        top[there] = left[there].amax(1)
        open_rows[there] = True


def _floor(left: Tensor, slack: float, longest: int) -> float:
    """What is taken for zero: half the weight of somebody who has every item."""
    return float(weight_of(torch.tensor(len(left)), longest)) / 2 if slack else 0.0


def _single(
    left: Tensor, many: Tensor, top: Tensor, open_rows: Tensor, slack: float, longest: int
) -> int | None:
    """An item with one owner: its largest number is the weight of as many items as it meets."""
    due = weight_of(many, longest).double()
    likely = open_rows & (many > 0) & ((top - due).abs() <= slack * due)
    for row in likely.nonzero().squeeze(1).tolist():
        there = left[row] > _floor(left, slack, longest)
        same = (left[row][there] - due[row]).abs() <= slack * due[row]
        if bool(same.all()) and bool(there[row]):
            return int(row)
        open_rows[row] = False  # until somebody who has it is taken out
    return None


# -- what is published ----------------------------------------------------------------------------


def gram_from_weights(weights: Tensor, ridge: float) -> Tensor:
    """G in units of 1 / 4096, computed from published item weights. [I, I] -> [I, I] float64

    B = I - C / diag(C), so (I - B)^-1 = diag(C) (G / 4096 + ridge): row i is C_ii times the row of
    G. The sum is symmetric, which gives the C_ii up to one factor; the ridge, a public setting,
    gives that: an item's diagonal exceeds its largest entry by the ridge where one person alone
    has it, and by more elsewhere.
    """
    items = len(weights)
    apart = torch.eye(items, dtype=torch.float64) - weights.double()
    try:
        rows = torch.linalg.inv(apart)
    except RuntimeError:  # what was cut off may leave no inverse
        rows = torch.linalg.pinv(apart)
    scale = _scales(rows)
    even = rows / scale[:, None]
    even = (even + even.T) / 2
    apart = even.diagonal() - (even - torch.diag(even.diagonal())).amax(1)
    met = (even.abs().sum(1) > even.diagonal().abs() * (1 + 1e-9)) & (apart > 0)
    likely = apart[met]
    factor = ridge / float(likely.quantile(SINGLE)) if len(likely) else 1.0
    gram = (even * factor - ridge * torch.eye(items, dtype=torch.float64)) * UNIT
    gram[~met], gram[:, ~met] = 0.0, 0.0
    return gram


def _scales(rows: Tensor) -> Tensor:
    """s with rows_ij / s_i symmetric, by walking from the best known item outwards. [I]

    Breadth first along the largest pairs: a scale is read off rows_ij / rows_ji = s_i / s_j.
    """
    items = len(rows)
    both = torch.minimum(rows.abs(), rows.abs().T)
    both.fill_diagonal_(0.0)
    scale = torch.ones(items, dtype=torch.float64)
    start = int(both.sum(1).argmax())
    known = torch.zeros(items, dtype=torch.bool)
    known[start] = True
    best, via = both[start].clone(), torch.full((items,), start)
    for _ in range(items - 1):
        best[known] = -1.0
        new = int(best.argmax())
        if best[new] <= 0:  # related to nothing that is known: its own diagonal must do
            break
        old = int(via[new])
        scale[new] = scale[old] * rows[new, old] / rows[old, new]
        known[new] = True
        better = both[new] > best
        best = torch.where(better, both[new], best)
        via = torch.where(better, new, via)
    scale[~known] = rows.diagonal()[~known] / rows.diagonal()[start] * scale[start]
    return torch.where(scale.abs() > 1e-300, scale, 1.0)
