"""Compiled loops over a sparse Gram matrix: nearest neighbours, and small submatrices.

Rows are compressed: row i is other[first[i] : first[i + 1]] with its integers in `value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from rescind.methods.additive._select import nth_smallest


@njit(cache=True)
def _sorted_below(values: Any, edge: Any, order: Any) -> int:
    """Write the places of values below the edge, the smallest first; return how many there are.

    Equal ones stay in their order. There are few, so each is put into its place.
    """
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


def squares(columns: Any, rows: Any, near: Any, unit: float, inside: Any, towards: Any) -> None:
    """Write, for each row j, G / unit between its neighbours (upper half), and from them to j.

    columns: first, other, value    near: [rows, n]    inside: [rows, n, n]    towards: [rows, n]
    Zeros stand where there is no neighbour.
    """
    items, n = len(columns[0]) - 1, near.shape[1]
    # One that is missing has a number of its own, whose line stays zero.
    near = np.where(near < 0, items, near)
    order = np.argsort(near, axis=None, kind="stable")
    _compiled(*columns, rows, near, order // n, order % n, unit, inside, towards)


def _squares(
    first: Any, other: Any, value: Any, rows: Any, near: Any, list_: Any, place: Any, unit: Any,
    inside: Any, towards: Any,
) -> None:  # fmt: skip
    """Write the squares neighbour by neighbour.

    A neighbour's row of G is spread out once, and read by all lists that it is in. list_, place:
    [rows * n] where each neighbour stands, sorted by its number
    """
    items, n = len(first) - 1, near.shape[1]
    line = np.zeros(items + 1)
    at = 0
    while at < len(list_):
        i = near[list_[at], place[at]]
        begin, end = (first[i], first[i + 1]) if i < items else (0, 0)
        for p in range(begin, end):
            line[other[p]] = value[p] / unit
        while at < len(list_) and near[list_[at], place[at]] == i:
            k, a = list_[at], place[at]
            for b in range(a, n):
                inside[k, a, b] = line[near[k, b]]
            towards[k, a] = line[rows[k]]
            at += 1
        for p in range(begin, end):
            line[other[p]] = 0.0


nearest: Any = njit(cache=True)(_nearest)
_compiled: Any = njit(cache=True, error_model="numpy")(_squares)
