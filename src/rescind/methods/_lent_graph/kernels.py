"""Compiled CPU loops over the shared graph: propagation, sampling, pair loss, and Adam.

Same results as the plain forms in `graph.py` and `steps.py`, up to the order of additions. Arrays
are flat: row r of a table starts at r * dim.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.compiling import compiled
from rescind.core.fast.rowops import AHEAD, add, bits, dot, layer, prefetch

_S32 = np.uint64(32)

_free = {"contract", "reassoc"}


@compiled(fastmath=_free)
def neighbours(dim, own, share, other, first, place, weight, scale, out):
    """Set out[r] = share * own[r] + scale * sum over the edges of r of weight * other[place]."""
    for r in range(len(first) - 1):
        begin = first[r]
        count = first[r + 1] - begin
        layer(out, r * dim, own, share, other, place, weight, begin, count, scale, dim)


@compiled()
def draw_pairs(
    pair_key, other_key, ids, user, item, first, count, items, owner, positive, negative
):
    """Draw pairs with replacement, each with an item its user does not have.

    As in `draw_negatives`: the r-th missing item is r plus the number of own items i_p with
    i_p - p <= r. A user with all items gets the positive again.
    """
    for k in range(len(owner)):
        upper = bits(pair_key, k, 0) >> _S32
        edge = np.int64((upper * np.uint64(len(user))) >> _S32)
        u = user[edge]
        owner[k] = u
        positive[k] = item[edge]
        negative[k] = item[edge]
        free = items - count[u]
        if free <= 0:
            continue
        upper = bits(other_key, ids[u], k) >> _S32
        rank = np.int64((upper * np.uint64(free)) >> _S32)
        begin = first[u]
        low, high = 0, count[u]
        while low < high:
            middle = (low + high) >> 1
            if item[begin + middle] - middle <= rank:
                low = middle + 1
            else:
                high = middle
        negative[k] = rank + low


@compiled(fastmath=_free, no_cpython_wrapper=True)
def _inverse_norm(table, at, dim):
    length = math.sqrt(dot(table, at, table, at, dim))
    tiny = table.dtype.type(1e-12)
    if length < tiny:  # noqa: PLR1730 - numba takes long to compile `max`
        length = tiny
    return table.dtype.type(1) / length


@compiled(fastmath=_free)
def pair_loss(
    dim, user, item, owner, positive, negative, scale, cosine, down_user, down_item
):  # fmt: skip
    """Return the mean of softplus(scale * (s_negative - s_positive)); add its gradient to down_*.

    The gradient of a cosine at u is (v / |v| - cos u / |u|) / |u|.
    """
    kind = user.dtype.type
    one = kind(1)
    by_u = by_i = by_j = one
    count = kind(len(owner))
    total = 0.0
    for k in range(len(owner)):
        u, i, j = owner[k] * dim, positive[k] * dim, negative[k] * dim
        later = k + AHEAD
        if later < len(owner):
            prefetch(user, owner[later] * dim, dim)
            prefetch(item, positive[later] * dim, dim)
            prefetch(item, negative[later] * dim, dim)
            prefetch(down_item, positive[later] * dim, dim)
            prefetch(down_item, negative[later] * dim, dim)
        if cosine:
            by_u = _inverse_norm(user, u, dim)
            by_i = _inverse_norm(item, i, dim)
            by_j = _inverse_norm(item, j, dim)
        near = dot(user, u, item, i, dim) * by_u * by_i
        far = dot(user, u, item, j, dim) * by_u * by_j
        gap = (far - near) * scale
        away = math.exp(-abs(gap))  # softplus without overflow
        total += math.log1p(away)
        slope = scale / count / (one + away)
        if gap > 0:
            total += gap
        else:
            slope *= away
        if cosine:
            add(down_user, u, user, u, slope * (near - far) * by_u * by_u, dim)
            add(down_item, i, item, i, slope * near * by_i * by_i, dim)
            add(down_item, j, item, j, -slope * far * by_j * by_j, dim)
        add(down_user, u, item, i, -slope * by_u * by_i, dim)
        add(down_user, u, item, j, slope * by_u * by_j, dim)
        add(down_item, i, user, u, -slope * by_u * by_i, dim)
        add(down_item, j, user, u, slope * by_u * by_j, dim)
    return total / len(owner)


@compiled(fastmath=_free)
def adam(value, first, second, down, numbers, new, new_first, new_second):
    """Take one Adam step down a gradient, as `server_move` does, with one division.

    As there, the first moment is that of the negative gradient.

    numbers: both decay rates, 1 - each, rate / (1 - first^t), (1 - second^t)^(-1/2), epsilon
    """
    one, two, one_new, two_new, rate, wider, tiny = numbers
    for k in range(len(value)):
        g = down[k]
        m = one * first[k] - one_new * g
        v = two * second[k] + two_new * g * g
        new_first[k] = m
        new_second[k] = v
        new[k] = value[k] + rate * m / (math.sqrt(v) * wider + tiny)
