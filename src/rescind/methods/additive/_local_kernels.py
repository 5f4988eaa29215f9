"""Compiled loops over a sparse Gram matrix: who is near whom, and small squares cut out of it.

Rows are compressed: row i is other[first[i] : first[i + 1]] with its whole numbers in `value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


def _nearest(
    first: Any, other: Any, value: Any, root: Any, rows: Any, near: Any, edge: Any
) -> None:
    """Fill in the items of the highest cosine for some rows, best first, lower items before equals.

    root: [I] the root of each item's own weight    near: [rows, many], -1 where there is none
    edge: [rows] the lowest cosine of a full list, 0 of one with room
    """
    many = near.shape[1]
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
        for a in range(many):
            near[k, a] = -1
            if a < len(order) and cosine[order[a]] < 0:
                near[k, a] = other[begin + order[a]]
                if a == many - 1:
                    edge[k] = -cosine[order[a]]


def _squares(
    first: Any, other: Any, value: Any, rows: Any, near: Any, inside: Any, towards: Any
) -> None:
    """Cut out, for each row j, the numbers among its neighbours and from them to j.

    inside: [rows, many, many] and towards: [rows, many], zeros to begin with
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
