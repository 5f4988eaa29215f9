"""Compiled loops of a list with reasons, and of changes to an inverse kept as a square."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescind.core.fast.kept_code import njit
from rescind.methods.additive._select import nth_smallest


@njit(nogil=True)
def replace_part(total: Any, owners: Any, old: Any, new: Any, was: int, now: int) -> None:
    """Replace one person's part of a half, and of the counts, in one pass.

    old, new: sorted, each item once    was, now: the weights of the parts
    """
    most = len(old) + len(new)
    items, less, more = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    a = b = count = 0
    while a < len(old) or b < len(new):
        before = b == len(new) or (a < len(old) and old[a] <= new[b])
        after = a == len(old) or (b < len(new) and new[b] <= old[a])
        items[count] = old[a] if before else new[b]
        less[count], more[count] = was * before, now * after
        owners[items[count]] += after - before
        a, b, count = a + before, b + after, count + 1
    for k in range(count):
        row, gone, come = items[k] * (items[k] + 1) // 2, less[k], more[k]
        for p in range(k + 1):
            # A pair is in a part only if both its items are; the weight stands in both lists.
            total[row + items[p]] += come * (more[p] != 0) - gone * (less[p] != 0)


@njit(nogil=True)
def same(one: Any, other: Any) -> bool:
    equal, k = len(one) == len(other), 0
    while equal and k < len(one):
        equal = one[k] == other[k]
        k += 1
    return equal


@njit(nogil=True)
def ascending(items: Any, end: int) -> bool:
    """Return whether items are sorted, each once, from 0 to below `end`."""
    last = -1
    for item in items:
        if item <= last or item >= end:
            return False
        last = item
    return True


@njit(nogil=True)
def without(items: Any, others: Any) -> Any:
    """Return those items that are not among others. Both are sorted, each item once."""
    left, count, at = np.empty(len(items), items.dtype), 0, 0
    for item in items:
        while at < len(others) and others[at] < item:
            at += 1
        if at == len(others) or others[at] != item:
            left[count] = item
            count += 1
    return left[:count]


@njit(nogil=True)
def merged(items: Any, others: Any) -> Any:
    """Return both lists as one. Both are sorted, each item once."""
    out, a, b, count = np.empty(len(items) + len(others), items.dtype), 0, 0, 0
    while a < len(items) or b < len(others):
        if b == len(others) or (a < len(items) and items[a] <= others[b]):
            b += b < len(others) and items[a] == others[b]
            out[count] = items[a]
            a += 1
        else:
            out[count] = others[b]
            b += 1
        count += 1
    return out[:count]


@njit(nogil=True)
def add_rows(first: Any, target: Any, weight: Any, own: Any, score: Any) -> None:
    """Add the sparse rows of owned items, in their order. score: [I] float32, zeros at the start"""
    for i in own:
        for e in range(first[i], first[i + 1]):
            score[target[e]] += weight[e]


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
def main_reasons(parts: Any, chosen: Any, share: Any) -> None:
    """Choose the owned items that add most to each listed one. parts: [own, k]

    chosen, share: [k, reasons]; -1 where nothing more adds anything. A share is that of all that
    adds something.
    """
    reasons, total = chosen.shape[1], np.zeros(parts.shape[1])
    for k in range(chosen.shape[0]):  # numba takes seconds to compile an assignment to a slice
        for r in range(reasons):
            chosen[k, r], share[k, r] = -1, 0.0
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
        for r in range(reasons):
            share[k, r] /= max(total[k], 1e-30)


@njit(nogil=True)
def ranks_without(
    first: Any, target: Any, weight: Any, own: Any, score: Any, best: Any, parts: Any, chosen: Any,
    rank: Any, high: Any,
) -> None:  # fmt: skip
    """Write the rank that each listed item would have without each of its reasons.

    Only what the reason itself adds to is different then. The reason stays out of the list: who
    takes it back has still seen it.

    score: [I], -inf for owned items    parts: [own, k]    chosen, rank: [k, reasons]
    high: [I] memory
    """
    lowest = np.float32(np.inf)
    for k in range(chosen.shape[0]):
        for n in chosen[k]:
            if n >= 0:
                lowest = min(lowest, score[best[k]] - parts[n, k])
    few = 0  # no other item stands above any of them
    for j in range(len(score)):
        if score[j] > lowest:
            high[few] = score[j]
            few += 1
    for k in range(chosen.shape[0]):
        for r in range(chosen.shape[1]):
            n = chosen[k, r]
            if n < 0:
                continue
            mine = score[best[k]] - parts[n, k]
            above = 0
            for j in range(few):
                above += high[j] > mine
            for e in range(first[own[n]], first[own[n] + 1]):
                if target[e] != best[k]:
                    there = score[target[e]]
                    above += (there - weight[e] > mine) - (there > mine)
            rank[k, r] = above + 1 - (score[best[k]] > mine)


@njit(nogil=True)
def reasoned(first: Any, target: Any, weight: Any, own: Any, k: int, reasons: int) -> Any:
    """Return a list with its reasons in one go: best [k], chosen, share, rank [k, reasons]."""
    items = len(first) - 1
    score = np.zeros(items, np.float32)
    add_rows(first, target, weight, own, score)
    for i in own:
        score[i] = -np.inf
    best = np.empty(min(k, items), np.int64)
    best = best[: best_of(score, best)]
    parts = np.zeros((len(own), len(best)), np.float32)
    summands(first, target, weight, own, best, np.zeros(items, np.int32), parts)
    chosen = np.empty((len(best), reasons), np.int64)
    share = np.empty((len(best), reasons), np.float32)
    main_reasons(parts, chosen, share)
    rank = np.zeros((len(best), reasons), np.int64)
    high = np.empty(items, np.float32)
    ranks_without(first, target, weight, own, score, best, parts, chosen, rank, high)
    return best, chosen, share, rank


@njit(nogil=True)
def less_one_square(inverse: Any, left: Any, right: Any) -> None:
    """Subtract left right^T from a square, in place. left, right: [I]"""
    for i in range(inverse.shape[0]):
        a, row = left[i], inverse[i]
        for j in range(inverse.shape[1]):
            row[j] -= a * right[j]


@njit(nogil=True)
def less_two_square(inverse: Any, left: Any, right: Any) -> None:
    """Subtract two products in one pass over memory. left, right: [2, I]"""
    first, second = right[0], right[1]
    for i in range(inverse.shape[0]):
        a, b, row = left[0, i], left[1, i], inverse[i]
        for j in range(inverse.shape[1]):
            row[j] -= a * first[j] + b * second[j]


@njit(nogil=True)
def sum_of_rows(square: Any, items: Any, out: Any) -> None:
    """Add the rows of a square at these items. out: [I], zeros at the start"""
    for i in items:
        row = square[i]
        for j in range(len(out)):
            out[j] += row[j]


@njit(nogil=True)
def largest_places(values: Any, count: int, out: Any) -> None:
    """Write the places of the largest entries of each row, in ascending order. values: [n, I]

    Ties: the lower place first. out: [n, count]
    """
    for row in range(values.shape[0]):
        here = values[row]
        edge = nth_smallest(here, len(here) - count)
        above = 0
        for j in range(len(here)):
            above += here[j] > edge
        spare, at = count - above, 0
        for j in range(len(here)):
            if here[j] > edge or (here[j] == edge and spare > 0):
                spare -= here[j] == edge
                out[row, at] = j
                at += 1
