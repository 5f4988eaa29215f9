"""Compiled loops over a sparse Gram matrix: nearest neighbours, and small submatrices.

Rows are compressed: row i is other[first[i] : first[i + 1]] with its integers in `value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


def _nearest(
    first: Any, other: Any, value: Any, root: Any, rows: Any, near: Any, edge: Any
) -> None:
    """Fill in the items with the highest cosine for some rows; ties by lower item number.

    root: [I] sqrt(G_ii)    near: [rows, n], -1 where there is none
    edge: [rows] the lowest cosine in a full list, 0 if not full
    """
    n = near.shape[1]
    for k in range(len(rows)):
        j = rows[k]
        begin, end = first[j], first[j + 1]
        cosine = np.empty(end - begin)
        for p in range(begin, end):
            i = other[p]
            there = i != j and value[p] > 0
            cosine[p - begin] = -value[p] / (root[i] * root[j]) if there else 1.0
        order = np.argsort(cosine, kind="mergesort")
        edge[k] = 0.0
        for a in range(n):
            near[k, a] = -1
            if a < len(order) and cosine[order[a]] < 0:
                near[k, a] = other[begin + order[a]]
                if a == n - 1:
                    edge[k] = -cosine[order[a]]


def _squares(
    first: Any, other: Any, value: Any, rows: Any, near: Any, inside: Any, towards: Any
) -> None:
    """Copy, for each row j, the entries between its neighbours and from them to j.

    inside: [rows, n, n] and towards: [rows, n], zeros at the start
    """
    place = np.full(len(first) - 1, -1, dtype=np.int64)
    for k in range(len(rows)):
        for a in range(near.shape[1]):
            if near[k, a] >= 0:
                place[near[k, a]] = a
        for a in range(near.shape[1]):
            i = near[k, a]
            if i < 0:
                continue
            for p in range(first[i], first[i + 1]):
                b = place[other[p]]
                if b >= 0:
                    inside[k, a, b] = value[p]
                elif other[p] == rows[k]:
                    towards[k, a] = value[p]
        for a in range(near.shape[1]):
            if near[k, a] >= 0:
                place[near[k, a]] = -1


nearest: Any = njit(cache=True)(_nearest)
squares: Any = njit(cache=True)(_squares)
