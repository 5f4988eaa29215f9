"""The best items of each row of scores, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BLOCK = 16
"""Scores compared at once with the last of the list; nearly all blocks end there."""


@njit(cache=True)
def best_items(scores: Any, first: Any, masked: Any, best: Any) -> None:
    """Write the best unmasked items of each row, best first; ties: lower item first; else -1.

    scores: [C, I]    first: [C + 1] start of each row's masked items    best: [C, k]
    """
    items, k = scores.shape[1], best.shape[1]
    whole = items // BLOCK * BLOCK
    masked_in = np.full(items, -1)  # the last row in which an item was masked
    value = np.full(k, -np.inf, scores.dtype)
    lowest = value[0]  # in the type of the scores, so that a block is compared at once
    for row in range(len(scores)):
        for at in range(first[row], first[row + 1]):
            masked_in[masked[at]] = row
        score, chosen, found, least = scores[row], best[row], 0, lowest
        for begin in range(0, items, BLOCK):
            if begin < whole:
                above = 0
                for step in range(BLOCK):
                    above += score[begin + step] > least  # never true of NaN
                if above == 0:
                    continue
            for item in range(begin, min(begin + BLOCK, items)):
                here = score[item]
                if here > least and masked_in[item] != row:
                    place = found if found < k else k - 1
                    while place > 0 and value[place - 1] < here:
                        value[place] = value[place - 1]
                        chosen[place] = chosen[place - 1]
                        place -= 1
                    value[place] = here
                    chosen[place] = item
                    if found < k:
                        found += 1
                    if found == k:
                        least = value[k - 1]
        chosen[found:] = -1
