"""Compiled loops of a list with reasons, and of changes to an inverse kept as a square."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def move_pairs(total: Any, items: Any, old: Any, new: Any, was: int, now: int) -> None:
    """Replace one person's part of a half in one pass.

    items: sorted, what the person has before or after    old, new: [n] 1 at the items that are in
    the part, else 0, of the half's type    was, now: the weights of the parts
    """
    for k in range(len(items)):
        row = items[k] * (items[k] + 1) // 2
        less, more = was * old[k], now * new[k]
        for p in range(k + 1):
            total[row + items[p]] += more * new[p] - less * old[p]


@njit(cache=True, nogil=True)
def add_rows(first: Any, target: Any, weight: Any, own: Any, score: Any) -> None:
    """Add the sparse rows of owned items, in their order. score: [I] float32, zeros at the start"""
    for i in own:
        for e in range(first[i], first[i + 1]):
            score[target[e]] += weight[e]


@njit(cache=True, nogil=True)
def best_of(score: Any, best: Any) -> int:
    """Write the best items with a score above 0, best first; return how many there are.

    Ties: the lower item first, as in `top_k`.
    """
    k, found = len(best), 0
    for j in range(len(score)):
        if not score[j] > 0 or (found == k and score[j] <= score[best[k - 1]]):
            continue
        at = found if found < k else k - 1
        while at > 0 and score[best[at - 1]] < score[j]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = j
        found = min(found + 1, k)
    return found


@njit(cache=True, nogil=True)
def summands(
    first: Any, target: Any, weight: Any, own: Any, best: Any, place: Any, out: Any
) -> None:
    """Write what each owned item adds to each listed one. place: [I] zeros    out: [own, k]"""
    for k in range(len(best)):
        place[best[k]] = k + 1
    for n in range(len(own)):
        for e in range(first[own[n]], first[own[n] + 1]):
            if place[target[e]]:
                out[n, place[target[e]] - 1] = weight[e]
    for k in range(len(best)):
        place[best[k]] = 0


@njit(cache=True, nogil=True)
def main_reasons(parts: Any, chosen: Any, share: Any) -> None:
    """Choose the owned items that add most to each listed one. parts: [own, k]

    chosen, share: [k, reasons]; -1 where nothing more adds anything. A share is that of all that
    adds something.
    """
    chosen[:], share[:] = -1, 0.0
    reasons, total = chosen.shape[1], np.zeros(parts.shape[1])
    for n in range(parts.shape[0]):
        for k in range(parts.shape[1]):
            value = parts[n, k]
            if value <= 0:
                continue
            total[k] += value
            at = reasons
            while at > 0 and share[k, at - 1] < value:
                at -= 1
            for r in range(reasons - 1, at, -1):
                share[k, r], chosen[k, r] = share[k, r - 1], chosen[k, r - 1]
            if at < reasons:
                share[k, at], chosen[k, at] = value, n
    for k in range(parts.shape[1]):
        share[k] /= max(total[k], 1e-30)


@njit(cache=True, nogil=True)
def ranks_without(
    first: Any, target: Any, weight: Any, own: Any, score: Any, ordered: Any, best: Any,
    chosen: Any, rank: Any,
) -> None:  # fmt: skip
    """Write the rank that each listed item would have without each of its reasons.

    Only what the reason itself adds to is different then. The reason stays out of the list: who
    takes it back has still seen it.

    score: [I], -inf for owned items    ordered: the same, ascending    chosen, rank: [k, reasons]
    """
    for k in range(chosen.shape[0]):
        for r in range(chosen.shape[1]):
            if chosen[k, r] < 0:
                continue
            begin, end = first[own[chosen[k, r]]], first[own[chosen[k, r]] + 1]
            mine = score[best[k]]
            for e in range(begin, end):
                if target[e] == best[k]:
                    mine -= weight[e]
            above = len(ordered) - np.searchsorted(ordered, mine, side="right")
            for e in range(begin, end):
                if target[e] != best[k]:
                    there = score[target[e]]
                    above += (there - weight[e] > mine) - (there > mine)
            rank[k, r] = above + 1 - (score[best[k]] > mine)


@njit(cache=True, nogil=True)
def less_one_square(inverse: Any, left: Any, right: Any) -> None:
    """Subtract left right^T from a square, in place. left, right: [I]"""
    for i in range(inverse.shape[0]):
        a, row = left[i], inverse[i]
        for j in range(inverse.shape[1]):
            row[j] -= a * right[j]


@njit(cache=True, nogil=True)
def less_two_square(inverse: Any, left: Any, right: Any) -> None:
    """Subtract two products in one pass over memory. left, right: [2, I]"""
    first, second = right[0], right[1]
    for i in range(inverse.shape[0]):
        a, b, row = left[0, i], left[1, i], inverse[i]
        for j in range(inverse.shape[1]):
            row[j] -= a * first[j] + b * second[j]


@njit(cache=True, nogil=True)
def sum_of_rows(square: Any, items: Any, out: Any) -> None:
    """Add the rows of a square at these items. out: [I], zeros at the start"""
    for i in items:
        row = square[i]
        for j in range(len(out)):
            out[j] += row[j]


@njit(cache=True, nogil=True)
def largest_places(values: Any, count: int, out: Any) -> None:
    """Write the places of the largest entries of each row, in ascending order. values: [n, I]

    Ties: the lower place first. out: [n, count]
    """
    for row in range(values.shape[0]):
        here = values[row]
        edge = np.partition(here, len(here) - count)[len(here) - count]
        above = 0
        for j in range(len(here)):
            above += here[j] > edge
        spare, at = count - above, 0
        for j in range(len(here)):
            if here[j] > edge or (here[j] == edge and spare > 0):
                spare -= here[j] == edge
                out[row, at] = j
                at += 1
