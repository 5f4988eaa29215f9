"""The best items of each row of scores, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescind.core.fast.kept_code import njit

PER = 16
"""Items of a group. The k-th best of the groups' best scores bounds what can be in the list."""


def best_items(scores: Any, first: Any, masked: Any, best: Any) -> None:
    """Write the best unmasked items of each row, best first; ties: lower item first; else -1.

    scores: [C, I]    first: [C + 1] start of each row's masked items    best: [C, k]
    """
    groups = -(-scores.shape[1] // PER)
    sizes = (best.shape[1] + 1, groups, groups * PER)
    _write(scores, first, masked, best, *(np.full(n, -np.inf, scores.dtype) for n in sizes))


# Loops instead of slices: numba takes seconds to compile an assignment to a slice.
@njit
def _write(  # noqa: PLR0912 - one pass, and a call between loops would hinder their vectors
    scores: Any, first: Any, masked: Any, best: Any, value: Any, top: Any, line: Any
) -> None:
    """Write `best`. Memory, -inf at first: value [k + 1], top [groups], line [groups * PER]

    A group is every `groups`-th item, so that the best scores of all groups are found by comparing
    vectors.
    """
    items, k, groups = scores.shape[1], best.shape[1], len(top)
    lowest = value[k]  # -inf in the type of the scores
    for row in range(len(scores)):
        for item in range(items):
            line[item] = scores[row, item]
        for at in range(first[row], first[row + 1]):
            line[masked[at]] = lowest
        for group in range(groups):
            top[group] = lowest
        for each in range(PER):
            for group in range(groups):
                here, most = line[each * groups + group], top[group]
                top[group] = here if here > most else most  # never NaN
        for place in range(k):
            value[place] = lowest
        least = lowest
        for group in range(groups):
            here = top[group]
            if here > least:
                place = k - 1
                while place > 0 and value[place - 1] < here:
                    value[place] = value[place - 1]
                    place -= 1
                value[place] = here
                least = value[k - 1]
        found = 0
        for group in range(groups):
            if top[group] < least or top[group] == lowest:
                continue
            for each in range(PER):
                item = each * groups + group
                here = line[item]
                if here < least or not here > lowest:
                    continue
                place = found
                while place > 0 and (
                    value[place - 1] < here
                    or (value[place - 1] == here and best[row, place - 1] > item)
                ):
                    if place < k:
                        value[place] = value[place - 1]
                        best[row, place] = best[row, place - 1]
                    place -= 1
                if place < k:
                    value[place] = here
                    best[row, place] = item
                    if found < k:
                        found += 1
        for place in range(found, k):
            best[row, place] = -1
