"""Compiled loops over a sparse Gram matrix: nearest neighbours, and small submatrices.

Rows are compressed: row i is other[first[i] : first[i + 1]] with its integers in `value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

POPULAR = 4096
"""Items whose entries among each other are kept dense while solving; changes speed only."""


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


def popular(first: Any, other: Any, value: Any) -> tuple[Any, Any]:
    """Return the entries among the items with the longest rows, dense, and each item's place.

    place: [I], -1 for other items    among: [POPULAR, POPULAR]
    """
    longest = np.argsort(np.diff(first), kind="stable")[-POPULAR:]
    place = np.full(len(first) - 1, -1, dtype=np.int64)
    place[longest] = np.arange(len(longest))
    among = np.zeros((len(longest), len(longest)), dtype=value.dtype)
    _dense(first, other, value, place, longest, among)
    return place, among


@njit(cache=True)
def _dense(first: Any, other: Any, value: Any, place: Any, longest: Any, among: Any) -> None:
    for i in longest:
        for p in range(first[i], first[i + 1]):
            if place[other[p]] >= 0:
                among[place[i], place[other[p]]] = value[p]


def _squares(
    first: Any, other: Any, value: Any, known: Any, among: Any, rows: Any, near: Any,
    inside: Any, towards: Any,
) -> None:  # fmt: skip
    """Copy, for each row j, the entries between its neighbours and from them to j.

    G is symmetric, so a short row also fills in what longer ones have in common with it; the
    longest rows are never walked, because their entries among each other are dense.
    known, among: of `popular`    inside: [rows, n, n] and towards: [rows, n], zeros at the start
    """
    place = np.full(len(first) - 1, -1, dtype=np.int16)  # small, so that it stays in the cache
    long = np.empty(near.shape[1], dtype=np.int64)
    for k in range(len(rows)):
        many = 0
        for a in range(near.shape[1]):
            if near[k, a] >= 0:
                place[near[k, a]] = a
        for p in range(first[rows[k]], first[rows[k] + 1]):
            if place[other[p]] >= 0:
                towards[k, place[other[p]]] = value[p]
        for a in range(near.shape[1]):
            i = near[k, a]
            if i < 0:
                continue
            if known[i] >= 0:
                long[many] = a
                many += 1
                continue
            for p in range(first[i], first[i + 1]):
                b = place[other[p]]
                if b >= 0:
                    inside[k, a, b] = value[p]
                    inside[k, b, a] = value[p]
        for x in range(many):
            row = among[known[near[k, long[x]]]]
            for y in range(many):
                inside[k, long[x], long[y]] = row[known[near[k, long[y]]]]
        for a in range(near.shape[1]):
            if near[k, a] >= 0:
                place[near[k, a]] = -1


nearest: Any = njit(cache=True)(_nearest)
squares: Any = njit(cache=True)(_squares)
