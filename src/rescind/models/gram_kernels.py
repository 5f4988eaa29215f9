"""Compiled loops over the lower halves of a Gram matrix and of its inverse, for a few people.

They are bound by the bytes they move, so several parts cost what one costs.
"""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True)
def add_each_pair(total: Any, owner: Any, item: Any, weight: Any) -> None:
    """Add weight[owner] at every pair i >= j of an owner's items, which stand in rising order."""
    begin = 0
    for k in range(len(owner)):
        if owner[k] != owner[begin]:
            begin = k
        high = item[k] * (item[k] + 1) // 2
        for p in range(begin, k + 1):
            total[high + item[p]] += weight[owner[k]]


@njit(cache=True)
def sum_rows(inverse: Any, first: Any, item: Any, reach: Any) -> None:
    """Add the rows of a symmetric matrix at the items of each part. reach: [P, I], zeros at first

    The part of a row up to the diagonal lies together; the rest is one number in each later row.
    first: [P + 1] where the items of each part begin, in rising order
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


@njit(cache=True)
def less_products(inverse: Any, left: Any, right: Any, out: Any) -> None:
    """out = inverse - left^T right below the diagonal, every number read and written once.

    left, right: [P, I], P from 1 to 4
    """
    parts, items = left.shape
    for i in range(items):
        begin = i * (i + 1) // 2
        row, before = out[begin : begin + i + 1], inverse[begin : begin + i + 1]
        if parts == 1:
            a, first = left[0, i], right[0]
            for j in range(i + 1):
                row[j] = before[j] - a * first[j]
        elif parts == 2:
            a, b, first, second = left[0, i], left[1, i], right[0], right[1]
            for j in range(i + 1):
                row[j] = before[j] - (a * first[j] + b * second[j])
        else:
            a, b, first, second = left[0, i], left[1, i], right[0], right[1]
            c, d, third = left[2, i], 0.0, right[2]
            if parts == 4:
                d = left[3, i]
            last = right[parts - 1]
            for j in range(i + 1):
                row[j] = before[j] - (a * first[j] + b * second[j] + (c * third[j] + d * last[j]))
