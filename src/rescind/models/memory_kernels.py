"""Compiled loops over items and people: what similar entries of a memory say of each item.

Whoever remembers an item is on its list. For each item, the lists of its neighbours are read, the
nearest first, until nearly everybody has met enough entries: a few list entries for each person
and item, where a search through memories would compare hundreds.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.kernels import compiled

BEYOND = 2.0  # no cosine is as large
LOST = 1e-200  # a sum of exponentials below has lost digits


@compiled()
def listed(held, wrong, first, item, error, begin, owner, said):
    """Write down memories without gaps, by person and by item.

    held, wrong: [C, M] items of a memory, -1 where it is empty, and their errors
    first: [C + 1], item, error: [n] by person    begin: [I + 1] zeros, owner, said: [n] by item
    """
    n = 0
    for c in range(held.shape[0]):
        first[c] = n
        for m in range(held.shape[1]):
            if held[c, m] >= 0:
                item[n] = held[c, m]
                error[n] = wrong[c, m]
                begin[held[c, m]] += 1
                n += 1
    first[held.shape[0]] = n
    for i in range(1, len(begin)):
        begin[i] += begin[i - 1]  # where lists end; filled from their ends, they begin there
    for c in range(held.shape[0] - 1, -1, -1):
        for m in range(first[c], first[c + 1]):
            begin[item[m]] -= 1
            owner[begin[item[m]]] = c
            said[begin[item[m]]] = error[m]


@compiled()
def _neighbours(near, i, begin, enough, stride, shelf, some, order, value):
    """Sort the nearest items of an item, with about `enough` entries on their lists.

    A sample of every `stride`-th item tells the cosine to be reached. Those who reach it go to
    shelves by cosine, and then to their places, mostly a step away. Gives how many there are, and
    the cosine that all others are below.

    near: [., I]    begin: [I + 1] of the lists    shelf: scratch of any length    some: [I + 1] scratch    order, value: [I]
    """
    items = near.shape[1]
    top = len(shelf) - 1
    low = near[i, 0]
    high = low
    for j in range(0, items, stride):
        low = near[i, j] if near[i, j] < low else low
        high = near[i, j] if near[i, j] > high else high
    fine = top / (high - low) if high > low else 0.0
    shelf[:] = 0
    for j in range(0, items, stride):
        up = (near[i, j] - low) * fine
        up = up if up > 0 else 0.0  # also where it is not a number
        shelf[int(up)] += np.int64(begin[j + 1] - begin[j])
    many = 0
    s = top + 1
    while many * stride < enough and s > 0:
        s -= 1
        many += shelf[s]
    least = low + s / fine if s > 0 else -BEYOND
    n = 0
    for j in range(items):  # no branch: it could not be foreseen
        some[n] = j
        n += np.int64(near[i, j] >= least)
    for r in range(n):
        low = near[i, some[r]] if near[i, some[r]] < low or r == 0 else low
        high = near[i, some[r]] if near[i, some[r]] > high or r == 0 else high
    fine = top / (high - low) if high > low else 0.0
    shelf[:] = 0
    for r in range(n):
        shelf[int((high - near[i, some[r]]) * fine)] += 1
    for s in range(1, top + 1):
        shelf[s] += shelf[s - 1]
    for r in range(n - 1, -1, -1):
        s = int((high - near[i, some[r]]) * fine)
        shelf[s] -= 1
        order[shelf[s]] = some[r]
        value[shelf[s]] = near[i, some[r]]
    for r in range(1, n):
        j = order[r]
        cosine = value[r]
        at = r
        while at > 0 and value[at - 1] < cosine:
            order[at] = order[at - 1]
            value[at] = value[at - 1]
            at -= 1
        order[at] = j
        value[at] = cosine
    return n, least


@compiled()
def _below(near, i, item, error, begin, end, wanted, least, best):
    """The `wanted` nearest entries of one memory among those below a cosine, into best: [2, .]"""
    found = 0
    worst = -BEYOND
    for m in range(begin, end):
        cosine = near[i, item[m]]
        if cosine >= least or cosine <= worst:
            continue
        found += np.int64(found < wanted)
        at = found - 1
        while at > 0 and best[0, at - 1] < cosine:
            best[0, at] = best[0, at - 1]
            best[1, at] = best[1, at - 1]
            at -= 1
        best[0, at] = cosine
        best[1, at] = error[m]
        if found == wanted:
            worst = best[0, found - 1]


@compiled(fastmath={"contract", "reassoc"})
def corrections(near, start, memory, lists, nearest, sharpness, enough, stride, scratch, out):
    """Fill in the sum of a_m e_m, a = softmax(cos / sharpness) over the nearest entries (ReLoop2).

    Whoever has not met enough entries on the lists looks for the others in the own memory.

    near: [., I] cosines of items from `start` on    memory, lists: from `listed`
    enough: how many entries are read for an item, about    stride: of `_neighbours`
    scratch: shelf, some, order, value of `_neighbours`, left: [C], sums: [2, C], best: [2, nearest]
    out: [C, I], of which the columns of these items are written
    """
    first, item, error = memory
    begin, owner, said = lists
    shelf, some, order, value, left, sums, best = scratch
    clients = len(first) - 1
    for i in range(near.shape[0]):
        n, least = _neighbours(near, i, begin, enough, stride, shelf, some, order, value)
        for c in range(clients):
            left[c] = min(nearest, first[c + 1] - first[c])
            sums[0, c] = 0.0
            sums[1, c] = 0.0
        for r in range(n):
            share = math.exp((value[r] - value[0]) / sharpness)
            for e in range(begin[order[r]], begin[order[r] + 1]):
                c = owner[e]
                more = np.int64(left[c] > 0)  # no branch: it could not be foreseen
                left[c] -= more
                sums[0, c] += more * share * said[e]
                sums[1, c] += more * share
        for c in range(clients):
            if first[c] == first[c + 1]:
                out[c, start + i] = 0.0
                continue
            highest = value[0]
            if sums[1, c] < LOST:  # nobody near: begin again, with the own nearest as the measure
                left[c] = min(nearest, first[c + 1] - first[c])
                sums[0, c] = 0.0
                sums[1, c] = 0.0
                _below(near, i, item, error, first[c], first[c + 1], left[c], BEYOND, best)
                highest = best[0, 0]
            elif left[c] > 0:
                _below(near, i, item, error, first[c], first[c + 1], left[c], least, best)
            for k in range(left[c]):
                share = math.exp((best[0, k] - highest) / sharpness)
                sums[0, c] += share * best[1, k]
                sums[1, c] += share
            out[c, start + i] = sums[0, c] / sums[1, c]
