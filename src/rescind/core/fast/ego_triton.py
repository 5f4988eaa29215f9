"""The round of `ego_kernel` as one Triton kernel: draws, scores, gradients and the sum.

A program trains one client. Rows of the table stay in the GPU's cache, draws are made where they
are used, and an addition to the sum is one instruction for four numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rescind.core.clock import _ID_STRIDE, _K_STRIDE, _MIX_1, _MIX_2, Clock
from rescind.core.cohort import Cohort

TILE, WARPS = 32, 1
"""Records of a client that are processed at once, and by how many warps (measured)."""


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
    """Return what `ego_gpu.step` returns."""
    (items, dim), train, own = table.shape, cohort.train, cohort.own
    inv_norm = 1 / torch.linalg.vector_norm(table, dim=1).clamp(min=1e-12)
    total, radial = torch.zeros_like(table), torch.zeros_like(inv_norm)
    grad, slope = torch.empty_like(first), torch.empty(len(train), device=table.device)
    if len(cohort):
        _ego[(len(cohort),)](
            table, inv_norm, first, cohort.ids,
            train.item, train.first, train.count, own.item, own.first, own.count,
            by, scale, total, radial, grad, slope,
            items, clock.key("negatives"), 1 / temperature,
            negatives, dim, triton.next_power_of_2(dim), TILE,
            num_warps=WARPS,
        )  # fmt: skip
    return total.addcmul_(table, (radial * inv_norm * inv_norm).unsqueeze(1)), grad


@triton.jit
def _ego(
    table, inv_norm, first, ids,
    train, train_first, train_count, own, own_first, own_count,
    steps, scales, total, radial, grad, slopes,
    items, key, inv_temp,
    NEGATIVES: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Train client `program_id`; the formulas are those of `ego_gpu.step`."""
    c = tl.program_id(0).to(tl.int64)
    n = tl.load(train_count + c)
    begin = tl.load(train_first + c)
    owns = tl.load(own_count + c)
    mine = own + tl.load(own_first + c)
    free = items - owns
    by, scale = tl.load(steps + c), tl.load(scales + c)
    client = key + tl.load(ids + c) * ID_STRIDE
    f = tl.arange(0, WIDTH)
    p = tl.arange(0, TILE)
    inside = f < DIM

    sums = tl.zeros((TILE, WIDTH), tl.float32)
    for at in range(0, n, TILE):
        item = tl.load(train + begin + at + p, mask=at + p < n, other=-1)
        sums += _rows(table, item, f, inside, DIM)
    root = tl.rsqrt(tl.maximum(n, 1).to(tl.float32))
    user = (tl.load(first + c * DIM + f, mask=inside, other=0.0) + tl.sum(sums, 0) * root) / 2
    inv_length = 1 / tl.maximum(tl.sqrt(tl.sum(user * user)), 1e-12)
    user *= inv_length

    sums = tl.zeros((TILE, WIDTH), tl.float32)
    for at in range(0, n, TILE):
        here = at + p < n
        item = tl.load(train + begin + at + p, mask=here, other=-1)
        positive = _rows(table, item, f, inside, DIM)
        inv_item = tl.load(inv_norm + item, mask=here, other=0.0)
        score = tl.sum(positive * user[None, :], 1) * inv_item
        slope = tl.zeros((TILE,), tl.float32)
        for q in range(NEGATIVES):
            drawn = _draw(client, (at + p) * NEGATIVES + q, mine, owns, free)
            drawn = tl.where(here & (free > 0), drawn, -1)
            negative = _rows(table, drawn, f, inside, DIM)
            inv_drawn = tl.load(inv_norm + drawn, mask=drawn >= 0, other=0.0)
            other = tl.sum(negative * user[None, :], 1) * inv_drawn
            g = tl.where(drawn >= 0, tl.sigmoid((other - score) * inv_temp) * scale, 0.0)
            slope += g
            sums += negative * (g * inv_drawn)[:, None]
            tl.atomic_add(radial + drawn, by * g * other, mask=drawn >= 0, sem="relaxed")
            move = (-by * g * inv_drawn)[:, None] * user[None, :]
            _add_rows(total, drawn, move, f, inside, DIM)
        sums -= positive * (slope * inv_item)[:, None]
        tl.atomic_add(radial + item, -by * slope * score, mask=here, sem="relaxed")
        tl.store(slopes + begin + at + p, slope * inv_item, mask=here)
    change = tl.sum(sums, 0)
    change = (change - tl.sum(change * user) * user) * inv_length / 2
    tl.store(grad + c * DIM + f, change, mask=inside)
    change *= by * root
    tl.debug_barrier()  # slopes are read by other threads than wrote them
    for at in range(0, n, TILE):
        here = at + p < n
        item = tl.load(train + begin + at + p, mask=here, other=-1)
        slope = tl.load(slopes + begin + at + p, mask=here, other=0.0)
        move = (by * slope)[:, None] * user[None, :] - change[None, :]
        _add_rows(total, item, move, f, inside, DIM)


@triton.jit
def _rows(table, place, f, inside, DIM: tl.constexpr):
    """Load rows of a table; zeros for a negative place. [TILE, WIDTH]"""
    wanted = (place >= 0)[:, None] & inside[None, :]
    return tl.load(table + place[:, None] * DIM + f[None, :], mask=wanted, other=0.0)


@triton.jit
def _add_rows(total, place, move, f, inside, DIM: tl.constexpr):
    """Add to rows of a table that other programs add to, four numbers at a time."""
    wanted = (place >= 0)[:, None] & inside[None, :]
    tl.atomic_add(total + place[:, None] * DIM + f[None, :], move, mask=wanted, sem="relaxed")


@triton.jit
def _draw(client, k, own, owns, free):
    """Draw items that are not among `own`, as `draw_negatives` does. [TILE]"""
    x = (client + k.to(tl.int64) * K_STRIDE).to(tl.uint64)
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    x = x ^ (x >> 31)
    rank = (((x >> 32) * tl.maximum(free, 0).to(tl.uint64)) >> 32).to(tl.int64)
    low = tl.zeros_like(rank)
    length = owns
    while length > 1:  # the number of own items with own[low] - low <= rank
        half = length // 2
        last = low + half - 1
        low = tl.where(tl.load(own + last) - last <= rank, low + half, low)
        length -= half
    if length == 1:
        low += (tl.load(own + low) - low <= rank).to(tl.int64)
    return rank + low


ID_STRIDE, K_STRIDE = tl.constexpr(_ID_STRIDE), tl.constexpr(_K_STRIDE)
MIX_1, MIX_2 = tl.constexpr(_MIX_1 + 2**64), tl.constexpr(_MIX_2 + 2**64)
