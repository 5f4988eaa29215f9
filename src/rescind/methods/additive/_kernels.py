"""Compiled loops over the lower halves of a Gram matrix and of its inverse, for a few parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescind.core.fast.compiling import compiled


@compiled()
def add_each_pair(total: Any, owner: Any, item: Any, weight: Any) -> None:
    """Add weight[owner] at every pair i >= j of an owner's items, sorted."""
    begin = 0
    for k in range(len(owner)):
        if owner[k] != owner[begin]:
            begin = k
        high = item[k] * (item[k] + 1) // 2
        for p in range(begin, k + 1):
            total[high + item[p]] += weight[owner[k]]


def add_pairs_by_item(
    total: Any, owners: Any, owner: Any, item: Any, weight: Any, items: int
) -> None:
    """Add what `add_each_pair` adds, one row of the half after the other: it stays in cache.

    owners: as total, how many owners have each pair; or empty: not counted
    """
    start = np.zeros(items + 2, np.uint64)
    begin, entry = np.empty((2, len(owner)), np.uint64)
    _place_entries(owner, item, start, begin, entry)
    # Unsigned places: numba checks signed ones for negative ones.
    low, each = item.astype(np.uint32), weight[owner].astype(total.dtype)
    at = start, begin, entry, low
    if len(owners) and total.dtype == owners.dtype == np.int32:
        both = (each.astype(np.int64) << 32) + 1
        _add_both_lines(total, owners, *at, both, np.zeros(items, np.int64))
        return
    _add_lines(total, *at, each, np.zeros(items, total.dtype))
    if len(owners):
        ones = np.ones(len(owner), owners.dtype)
        _add_lines(owners, *at, ones, np.zeros(items, owners.dtype))


@compiled()
def _place_entries(owner: Any, item: Any, start: Any, begin: Any, entry: Any) -> None:
    """Sort entries by their item, and find where the owner of each begins.

    start: [I + 2] zeros; gets where each item begins, in [1:]    begin, entry: [n] are written
    """
    for k in range(len(item)):
        start[item[k] + 2] += np.uint64(1)
        begin[k] = begin[k - 1] if k and owner[k] == owner[k - 1] else k
    for i in range(2, len(start)):
        start[i] += start[i - 1]
    for k in range(len(item)):  # what counts the entries so far ends where the next item begins
        at = start[item[k] + 1]
        entry[at] = k
        start[item[k] + 1] = at + np.uint64(1)


@compiled()
def _fill_line(line: Any, i: Any, start: Any, begin: Any, entry: Any, low: Any, each: Any) -> None:
    """Add each[e] to the line at entry e and those before it, for every entry e of item i."""
    one = np.uint64(1)
    for at in range(start[i], start[i + one]):
        e = entry[at]
        more = each[e]
        for p in range(begin[e], e + one):
            line[low[p]] += more


@compiled()
def _add_lines(
    total: Any, start: Any, begin: Any, entry: Any, low: Any, each: Any, line: Any
) -> None:
    """Add each[e] at every pair of entry e and those before it, item by item. line: [I] zeros"""
    one = np.uint64(1)
    row = np.uint64(0)
    for i in range(np.uint64(len(line))):
        if start[i] < start[i + one]:
            _fill_line(line, i, start, begin, entry, low, each)
            for j in range(i + one):
                total[row + j] += line[j]
                line[j] = 0
        row += i + one


@compiled()
def _add_both_lines(
    total: Any, owners: Any, start: Any, begin: Any, entry: Any, low: Any, each: Any, line: Any
) -> None:
    """Do what `_add_lines` does for weights and owners at once. line: [I] int64 zeros

    each: 2^32 times the weight, plus 1: the lower half of a sum then counts the owners
    """
    one = np.uint64(1)
    row = np.uint64(0)
    for i in range(np.uint64(len(line))):
        if start[i] < start[i + one]:
            _fill_line(line, i, start, begin, entry, low, each)
            for j in range(i + one):
                total[row + j] += line[j] >> 32
                owners[row + j] += line[j] & 0xFFFFFFFF
                line[j] = 0
        row += i + one


@compiled()
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


@compiled()
def less_one(inverse: Any, left: Any, right: Any, out: Any) -> None:
    """Set out = inverse - left right^T in the lower half; out may be inverse. left, right: [I]"""
    for i in range(len(left)):
        begin, a = i * (i + 1) // 2, left[i]
        for j in range(i + 1):
            out[begin + j] = inverse[begin + j] - a * right[j]


@compiled()
def less_two(inverse: Any, left: Any, right: Any, out: Any) -> None:
    """Subtract two products in one pass over memory. left, right: [2, I]"""
    first, second = right[0], right[1]
    for i in range(left.shape[1]):
        begin, a, b = i * (i + 1) // 2, left[0, i], left[1, i]
        for j in range(i + 1):
            out[begin + j] = inverse[begin + j] - (a * first[j] + b * second[j])


@compiled()
def unfold(lower: Any, full: Any) -> None:
    """Write both halves of a symmetric matrix, 16 columns at a time for the cache. full: [I, I]"""
    items = full.shape[0]
    for begin in range(0, items, 16):
        for i in range(begin, items):
            row = i * (i + 1) // 2
            for j in range(begin, min(begin + 16, i + 1)):
                full[i, j] = lower[row + j]
                full[j, i] = lower[row + j]


def add_each_ordered_pair(
    total: Any, owners: Any, first: Any, item: Any, time: Any, weight: Any, sign: Any, table: Any
) -> None:
    """Add the pairs of each owner's items in their order, and count the owners of each pair.

    The same pairs as `_ordered.ordered_pairs` lists.

    first: [owners + 1] start of each owner's items    total: [I^2, 2]    table: [k, 2]
    owners: [I^2], or empty: not counted
    """
    owner = np.repeat(np.arange(len(weight)), np.diff(first))
    order = np.lexsort((time, owner))
    start, rank = np.empty((2, len(item)), np.int64)
    _rank_times(first, time[order], start, rank)
    value = np.empty((len(table), 2), np.int64)
    _add_ordered(
        total, owners, first, item[order], weight, sign, table, start, rank, value
    )  # fmt: skip


@compiled()
def _rank_times(first: Any, when: Any, start: Any, rank: Any) -> None:
    """Write where the time of each entry begins, and twice the mean place of that time.

    when: sorted for each owner    start, rank: by place among all entries, and among the owner's
    """
    for owner in range(len(first) - 1):
        begin = first[owner]
        for k in range(begin, first[owner + 1]):
            start[k] = start[k - 1] if k > begin and when[k] == when[k - 1] else k
        last = first[owner + 1] - 1
        for k in range(first[owner + 1] - 1, begin - 1, -1):
            if k < first[owner + 1] - 1 and start[k] != start[k + 1]:
                last = k
            rank[k] = start[k] + last - 2 * begin


@compiled()
def _add_ordered(  # noqa: PLR0912 - every function more takes a tenth of a second to compile
    total: Any, owners: Any, first: Any, item: Any, weight: Any, sign: Any, table: Any, start: Any,
    rank: Any, value: Any,
) -> None:  # fmt: skip
    """Add ordered pairs. item: sorted by time for each owner    value: as table, is written"""
    counted = len(owners) > 0
    for owner in range(len(weight)):
        most, end = weight[owner], first[owner + 1]
        reach = min(len(table), 2 * (end - first[owner]))
        for apart in range(reach):
            for side in range(2):
                value[apart, side] = most * table[apart, side] // 4096
        while reach > 1 and value[reach - 1, 0] == 0 and value[reach - 1, 1] == 0:
            reach -= 1
        for side in range(2):
            value[0, side] = most // 2  # at one time
            for apart in range(reach):
                value[apart, side] *= sign[owner]
        for k in range(first[owner], end):
            for p in range(start[k], end):
                apart = rank[p] - rank[k]
                if apart >= reach:
                    break
                i, j = item[k], item[p]
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


@compiled()
def unpack_square(total: Any, column: int, factor: float, full: Any) -> None:
    """Add factor times one stored square to a matrix. total: [I^2, 2]    full: [I, I]"""
    for j in range(full.shape[0]):
        for i in range(j):
            full[i, j] += factor * total[j * j + i, column]
            full[j, i] += factor * total[j * j + j + i, column]
        full[j, j] += factor * total[j * j + 2 * j, column]


@compiled()
def add_each_near_pair(
    total: Any, owners: Any, first: Any, item: Any, rank: Any, rating: Any, weight: Any, sign: Any,
    near: Any, rated: Any,
) -> None:  # fmt: skip
    """Add every pair i >= j of each owner's items, and count the owners of each pair.

    The same pairs as `_ordered.PairKernel.pairs` lists.

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
