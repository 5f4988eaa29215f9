"""Compiled loops over a sparse Gram matrix: nearest neighbours, and small submatrices.

Rows are compressed: row i is other[first[i] : first[i + 1]] with its integers in `value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rescind.core.fast.compiling import compiled
from rescind.core.fast.kept_code import njit
from rescind.methods.additive._select import nth_smallest


@njit
def _sorted_below(values: Any, edge: Any, order: Any) -> int:
    """Write the places of values below the edge, the smallest first; return how many there are."""
    size = 0
    for p in range(len(values)):
        if values[p] < edge:
            at = size
            while at and values[order[at - 1]] > values[p]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = p
            size += 1
    return size


def _nearest(
    first: Any, other: Any, value: Any, root: Any, rows: Any, near: Any, edge: Any
) -> None:
    """Fill in the items with the highest cosine for some rows; ties by lower item number.

    root: [I] sqrt(G_ii)    near: [rows, n], -1 where there is none
    edge: [rows] the lowest cosine in a full list, 0 if not full
    """
    n = near.shape[1]
    order = np.empty(n, np.int64)
    for k in range(len(rows)):
        j = rows[k]
        begin, end = first[j], first[j + 1]
        cosine = np.empty(end - begin)
        for p in range(begin, end):
            i = other[p]
            there = i != j and value[p] > 0
            cosine[p - begin] = -value[p] / (root[i] * root[j]) if there else 1.0
        last = nth_smallest(cosine, n - 1) if len(cosine) > n else 1.0
        size = _sorted_below(cosine, last, order)
        for p in range(len(cosine)):  # those at the edge come last, in the order of items
            if size < n and cosine[p] == last:
                order[size] = p
                size += 1
        edge[k] = 0.0
        for a in range(n):
            near[k, a] = -1
            if a < size and cosine[order[a]] < 0:
                near[k, a] = other[begin + order[a]]
                if a == n - 1:
                    edge[k] = -cosine[order[a]]


def squares(
    columns: Any, rows: Any, near: Any, unit: float, ridge: Any, inside: Any, towards: Any
) -> None:
    """Write, for each row j, G / unit + ridge between its neighbours, and G / unit from them to j.

    columns: first, other, value    near: [rows, n]    ridge: [I] added to the diagonal
    inside: [rows, n (n + 1) / 2] upper halves, line by line    towards: [rows, n]
    Where there is no neighbour stand zeros, and 1 on the diagonal.
    """
    items, n = len(columns[0]) - 1, near.shape[1]
    # One that is missing has a number of its own, whose line stays zero.
    flat = np.where(near < 0, items, near).astype(np.uint32).reshape(-1)  # a sign costs a test
    order = np.argsort(flat, kind="stable")
    added, line = np.append(ridge, 1.0), np.zeros(items + 1)
    _squares(*columns, rows, flat, order, n, unit, added, line, inside, towards)


@compiled()
def _squares(
    first, other, value, rows, near, order, n, unit, ridge, line, inside, towards
):  # fmt: skip
    """Write the squares neighbour by neighbour."""
    items = len(first) - 1
    half = n * (n + 1) // 2
    at = 0
    while at < len(order):
        i = near[order[at]]
        begin, end = 0, 0
        if i < items:
            begin, end = first[i], first[i + 1]
        for p in range(begin, end):
            line[other[p]] = value[p] / unit
        while at < len(order) and near[order[at]] == i:
            k = order[at] // n
            a = order[at] - k * n
            mine = k * n
            to = k * half + a * n - a * (a + 1) // 2
            for b in range(a, n):
                inside[to + b] = line[near[mine + b]]
            inside[to + a] += ridge[i]
            towards[order[at]] = line[rows[k]]
            at += 1
        for p in range(begin, end):
            line[other[p]] = 0.0


nearest: Any = njit(_nearest)
