"""Peeling: reconstruct complete histories from a sum of item pairs, or from published weights.

If only one user has an item, its row is the whole history of that user. After subtracting it,
other items have a single owner (additive.md section 4). The attack makes no guesses: what it finds
is correct up to coincidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.methods.additive._ordered import Nearness, add_sequences, items_of, shell
from rescind.methods.additive._pairs import weight_of
from rescind.methods.additive._solving import UNIT

SLACK = 0.05
"""Allowed relative error of reconstructed weights; 0 for exact sums."""
SINGLE = 0.05
"""Fraction of items, at least, whose owners all have one other item in common: their diagonal
exceeds their largest entry by the ridge. Not the minimum, because rounding makes it too small."""


@dataclass(frozen=True)
class Peeled:
    """The histories found in a sum."""

    histories: tuple[frozenset[int], ...]

    def right(self, truth: set[frozenset[int]]) -> int:
        """Count the histories that are correct, each once."""
        return len(truth & set(self.histories))


def peel(gram: Tensor, slack: float = 0.0, longest: int = 0) -> Peeled:
    """Subtract users from a sum one by one, while some item has a single owner.

    The row of such an item holds one number n times: the weight of n items, `weight_of`. After a
    user is subtracted, only the rows of their items are checked again.
    longest: the setting longest_history, which is public

    gram: [I, I] symmetric, in units of 1 / 4096; integers, or real numbers with slack
    """
    left = gram.double().clone()
    counts = (left > _floor(left, slack, longest)).sum(1)
    top = left.amax(1)
    found: list[frozenset[int]] = []
    open_rows = torch.ones(len(left), dtype=torch.bool)
    while True:
        row = _single(left, counts, top, open_rows, slack, longest)
        if row is None:
            return Peeled(tuple(found))
        items = (left[row] > _floor(left, slack, longest)).nonzero().squeeze(1)
        weight = weight_of(torch.tensor(len(items)), longest).double()
        left[items[:, None], items[None, :]] -= weight
        if slack:
            left[row], left[:, row] = 0.0, 0.0  # remove rounding errors
        found.append(frozenset(items.tolist()))
        counts[items] = (left[items] > _floor(left, slack, longest)).sum(1)
        top[items] = left[items].amax(1)
        open_rows[items] = True


def _floor(left: Tensor, slack: float, longest: int) -> float:
    """Return the threshold for zero: half the weight of a user who has every item."""
    return float(weight_of(torch.tensor(len(left)), longest)) / 2 if slack else 0.0


def _single(
    left: Tensor, counts: Tensor, top: Tensor, open_rows: Tensor, slack: float, longest: int
) -> int | None:
    """Find an item with one owner: all entries of its row are the weight of that many items."""
    weight = weight_of(counts, longest).double()
    likely = open_rows & (counts > 0) & ((top - weight).abs() <= slack * weight)
    for row in likely.nonzero().squeeze(1).tolist():
        present = left[row] > _floor(left, slack, longest)
        same = (left[row][present] - weight[row]).abs() <= slack * weight[row]
        if bool(same.all()) and bool(present[row]):
            return int(row)
        open_rows[row] = False  # until one of its owners is subtracted
    return None


def gram_from_weights(weights: Tensor, ridge: float) -> Tensor:
    """Compute G in units of 1 / 4096 from published item weights. [I, I] -> [I, I] float64

    B = I - C / diag(C), so (I - B)^-1 = diag(C) (G / 4096 + ridge): row i is C_ii times the row of
    G. The sum is symmetric, which gives the C_ii up to one factor. The ridge, a public setting,
    gives this factor: the diagonal of an item with one owner exceeds its largest entry by the
    ridge, that of other items by more.
    """
    items = len(weights)
    apart = torch.eye(items, dtype=torch.float64) - weights.double()
    try:
        rows = torch.linalg.inv(apart)
    except RuntimeError:  # a truncated release may be singular
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
    """Compute s with rows_ij / s_i symmetric, starting at the item with the largest sum. [I]

    Follows the largest pairs, as in a spanning tree: rows_ij / rows_ji = s_i / s_j.
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
        if best[new] <= 0:  # not connected to a known item: use its diagonal
            break
        old = int(via[new])
        scale[new] = scale[old] * rows[new, old] / rows[old, new]
        known[new] = True
        better = both[new] > best
        best = torch.where(better, both[new], best)
        via = torch.where(better, new, via)
    scale[~known] = rows.diagonal()[~known] / rows.diagonal()[start] * scale[start]
    return torch.where(scale.abs() > 1e-300, scale, 1.0)


def peel_ordered(total: Tensor, near: Nearness) -> list[tuple[int, ...]]:
    """Subtract whole sequences from a sum of ordered pairs, while some item has a single owner.

    Row i of the far pairs of such an item is the weight of n items times the decay of 1, 2, 3, ...
    places, each once, and column i likewise for what came before: items and their order can be
    read. Far from i several places have the same whole number; then the order is a guess, and the
    sequence is not subtracted. Sequences longer than the reach are not read at all.

    total: [I^2, 2] whole numbers, as a learner of ordered pairs keeps them
    """
    left, items = total.long().clone(), items_of(total)
    found: list[tuple[int, ...]] = []
    lengths: dict[int, list[int]] = {}
    for n in range(1, items + 1):
        lengths.setdefault(int(near.weight(torch.tensor(n))), []).append(n)
    decay = near.table()[::2, 1]
    waiting = set(range(items))
    while waiting:
        item = waiting.pop()
        mine, certain = _sequence_at(left, item, items, lengths, decay)
        if not mine:
            continue
        found.append(mine)
        if not certain:
            continue
        order = torch.argsort(torch.tensor(mine))
        lot = Lot(torch.zeros_like(order), torch.tensor(mine)[order], 1, order)
        add_sequences(left, lot, torch.tensor([-1]), near)
        waiting |= set(mine) - {item}
    return found


def _sequence_at(
    total: Tensor, item: int, items: int, lengths: dict[int, list[int]], decay: Tensor
) -> tuple[tuple[int, ...], bool]:
    """Return the whole sequence around an item, and whether its order is certain.

    Empty if one person alone does not explain the item's row and column.
    """
    every = torch.arange(items)
    weight = int(total[item * item + 2 * item, 1])
    sides, certain = [], True
    for later in (True, False):
        pair = (torch.full_like(every, item), every) if later else (every, every.new_tensor(item))
        value = total[shell(pair[0], pair[1].expand_as(every)), 1].clone()
        value[item] = 0
        order = torch.argsort(value, descending=True, stable=True)[: int((value > 0).sum())]
        expected = weight * decay[1 : len(order) + 1] // UNIT
        if len(expected) < len(order) or not torch.equal(value[order], expected):
            return (), False
        certain &= bool((expected[1:] < expected[:-1]).all())
        sides.append(order.tolist())
    before, after = sides[1][::-1], sides[0]
    whole = len(before) + 1 + len(after)
    return ((*before, item, *after), certain) if whole in lengths.get(weight, []) else ((), False)
