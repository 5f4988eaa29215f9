"""Compiled loops over the lower halves of a Gram matrix and of its inverse, for a few parts.

Memory bandwidth is the limit, so two parts cost little more than one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True)
def add_each_pair(total: Any, owner: Any, item: Any, weight: Any) -> None:
    """Add weight[owner] at every pair i >= j of an owner's items, sorted."""
    begin = 0
    for k in range(len(owner)):
        if owner[k] != owner[begin]:
            begin = k
        high = item[k] * (item[k] + 1) // 2
        for p in range(begin, k + 1):
            total[high + item[p]] += weight[owner[k]]


@njit(cache=True)
def add_pairs_by_item(
    total: Any, owners: Any, owner: Any, item: Any, weight: Any, items: int
) -> None:
    """Add what `add_each_pair` adds, one row of the half after the other: it stays in cache.

    owners: as total, how many owners have each pair; or empty: not counted
    """
    start, begin = np.zeros(items + 1, np.int64), np.empty(len(owner), np.int64)
    for k in range(len(owner)):
        start[item[k] + 1] += 1
        begin[k] = begin[k - 1] if k and owner[k] == owner[k - 1] else k
    start = np.cumsum(start)
    entry, at = np.empty(len(owner), np.int64), start.copy()
    for k in range(len(owner)):
        entry[at[item[k]]] = k
        at[item[k]] += 1
    low = item.astype(np.uint32)  # numba checks signed places for negative ones
    add, many = np.zeros(items, total.dtype), np.zeros(items, owners.dtype)
    for i in range(items):
        for e in entry[start[i] : start[i + 1]]:
            each = total.dtype.type(weight[owner[e]])
            if len(owners):
                for j in low[begin[e] : e + 1]:
                    add[j] += each
                    many[j] += 1
            else:
                for j in low[begin[e] : e + 1]:
                    add[j] += each
        if start[i] < start[i + 1]:
            row = i * (i + 1) // 2
            total[row : row + i + 1] += add[: i + 1]
            add[: i + 1] = 0
            if len(owners):
                owners[row : row + i + 1] += many[: i + 1]
                many[: i + 1] = 0


@njit(cache=True)
def sum_rows(inverse: Any, first: Any, item: Any, reach: Any, among: Any) -> None:
    """Sum the rows of a symmetric matrix at the items of each part, then those columns.

    A row is contiguous up to the diagonal; the rest is one number in each later row.

    first: [P + 1] start of each part's sorted items
    reach: [P, I] and among: [P, P], zeros at the start
    """
    parts, items = reach.shape
    for part in range(parts):
        to = reach[part]
        for k in range(first[part], first[part + 1]):
            begin = item[k] * (item[k] + 1) // 2
            row = inverse[begin : begin + item[k] + 1]
            for j in range(item[k] + 1):
                to[j] += row[j]
        for i in range(items):
            row = inverse[i * (i + 1) // 2 :]
            total, k = 0.0, first[part]
            while k < first[part + 1] and item[k] < i:
                total += row[item[k]]
                k += 1
            to[i] += total
        for other in range(parts):
            for k in range(first[other], first[other + 1]):
                among[part, other] += to[item[k]]


@njit(cache=True)
def less_one(inverse: Any, left: Any, right: Any, out: Any) -> None:
    """Set out = inverse - left right^T in the lower half; out may be inverse. left, right: [I]"""
    for i in range(len(left)):
        begin, a = i * (i + 1) // 2, left[i]
        for j in range(i + 1):
            out[begin + j] = inverse[begin + j] - a * right[j]


@njit(cache=True)
def less_two(inverse: Any, left: Any, right: Any, out: Any) -> None:
    """Subtract two products in one pass over memory. left, right: [2, I]"""
    first, second = right[0], right[1]
    for i in range(left.shape[1]):
        begin, a, b = i * (i + 1) // 2, left[0, i], left[1, i]
        for j in range(i + 1):
            out[begin + j] = inverse[begin + j] - (a * first[j] + b * second[j])


@njit(cache=True)
def unfold(lower: Any, full: Any) -> None:
    """Write both halves of a symmetric matrix, 16 columns at a time for the cache. full: [I, I]"""
    items = full.shape[0]
    for begin in range(0, items, 16):
        for i in range(begin, items):
            row = i * (i + 1) // 2
            for j in range(begin, min(begin + 16, i + 1)):
                full[i, j] = lower[row + j]
                full[j, i] = lower[row + j]


@njit(cache=True)
def add_each_ordered_pair(
    total: Any, owners: Any, first: Any, item: Any, time: Any, weight: Any, sign: Any, table: Any
) -> None:
    """Add the pairs of each owner's items in their order, and count the owners of each pair.

    The same pairs as `_ordered.ordered_pairs` lists.

    first: [owners + 1] start of each owner's items    total: [I^2, 2]    table: [k, 2]
    owners: [I^2], or empty: not counted
    """
    counted = len(owners) > 0
    for owner in range(len(weight)):
        most, count = weight[owner], first[owner + 1] - first[owner]
        mine = item[first[owner] : first[owner + 1]]
        when = time[first[owner] : first[owner + 1]]
        order = np.argsort(when, kind="mergesort")
        mine, when = mine[order], when[order]
        start = np.empty(count, np.int64)  # where the time of each item begins
        for k in range(count):
            start[k] = start[k - 1] if k and when[k] == when[k - 1] else k
        rank = np.empty(count, np.int64)  # twice the mean place of that time
        last = count - 1
        for k in range(count - 1, -1, -1):
            if k < count - 1 and start[k] != start[k + 1]:
                last = k
            rank[k] = start[k] + last
        reach = min(len(table), 2 * count)
        value = most * table[:reach] // 4096
        while reach > 1 and value[reach - 1, 0] == 0 and value[reach - 1, 1] == 0:
            reach -= 1
        value[0] = most // 2  # at one time
        value *= sign[owner]
        for k in range(count):
            for p in range(start[k], count):
                apart = rank[p] - rank[k]
                if apart >= reach:
                    break
                i, j = mine[k], mine[p]
                place = j * j + i if i < j else i * i + i + j
                if k == p:
                    total[place, 0] += sign[owner] * most
                    total[place, 1] += sign[owner] * most
                elif value[apart, 0] != 0 or value[apart, 1] != 0:
                    total[place, 0] += value[apart, 0]
                    total[place, 1] += value[apart, 1]
                else:
                    continue
                if counted:
                    owners[place] += 1


@njit(cache=True)
def unpack_square(total: Any, column: int, factor: float, full: Any) -> None:
    """Add factor times one stored square to a matrix. total: [I^2, 2]    full: [I, I]"""
    for j in range(full.shape[0]):
        for i in range(j):
            full[i, j] += factor * total[j * j + i, column]
            full[j, i] += factor * total[j * j + j + i, column]
        full[j, j] += factor * total[j * j + 2 * j, column]


@njit(cache=True)
def add_each_near_pair(
    total: Any, owners: Any, first: Any, item: Any, rank: Any, rating: Any, weight: Any, sign: Any,
    near: Any, rated: Any,
) -> None:  # fmt: skip
    """Add every pair i >= j of each owner's items, and count the owners of each pair.

    The same pairs as `_near_pairs.near_pairs` lists.

    first: [owners + 1] start of each owner's items    rank: [n] twice the place in time
    total: [I (I + 1) / 2, 2]    near: [k], rated: [m]    owners: as total, or empty: not counted
    """
    counted, last, most = len(owners) > 0, len(near) - 1, len(rated) - 1
    one, whole = 4096, 4096 * 4096
    for owner in range(len(weight)):
        for k in range(first[owner], first[owner + 1]):
            row = item[k] * (item[k] + 1) // 2
            for p in range(first[owner], k + 1):
                far = weight[owner] * rated[min(abs(rating[k] - rating[p]), most)]
                close = near[min(abs(rank[k] - rank[p]), last)]
                place = row + item[p]
                total[place, 0] += sign[owner] * ((far * one + whole // 2) // whole)
                total[place, 1] += sign[owner] * ((far * close + whole // 2) // whole)
                if counted:
                    owners[place] += 1
