"""Compiled loops over items and people: what similar entries of a memory say of each item.

Whoever remembers an item is on its list. For each item, the lists of its neighbours are read, the
nearest first, until nearly everybody has met enough entries: a few list entries for each person
and item, where a search through memories would compare hundreds.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.ego_kernel import compiled

BEYOND = 2.0  # no cosine is as large
LOST = 1e-200  # a sum of exponentials below has lost digits
# Of speed only: entries of the first batch of lists and of every other one, as multiples of those
# that are wanted, and how many entries may be read to spare one person the search.
FIRST, OTHER, WORTH = 2, 1, 100
FEW = 1.5  # entries of all memories for each item, below which everybody searches their own


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
def _shelved(near, i, begin, stride, shelf):
    """How many list entries there are by cosine, about, from every `stride`-th item.

    Shelf s begins at the cosine high - (s / fine)^2, finer where it is high: trained items crowd
    there. Gives high and fine.
    near: [., I]    begin: [I + 1] of the lists    shelf: [any] is written
    """
    items = near.shape[1]
    low = near[i, 0]
    high = low
    for j in range(0, items, stride):
        low = near[i, j] if near[i, j] < low else low
        high = near[i, j] if near[i, j] > high else high
    fine = (len(shelf) - 1) / math.sqrt(high - low) if high > low else 0.0
    shelf[:] = 0
    for j in range(0, items, stride):
        far = high - near[i, j]
        far = math.sqrt(far) * fine if far > 0 else 0.0  # also where it is not a number
        shelf[int(far)] += np.int64(begin[j + 1] - begin[j]) * stride
    return high, fine


@compiled()
def _between(near, i, least, below, shelf, some, order, value):
    """The items with least <= cosine < below, the nearest first, and how many there are.

    They go to shelves by cosine, and from there to their places, mostly a step away.
    near: [., I]    shelf: [any], some: [I + 1] scratch    order, value: [I] are written
    """
    n = np.int64(0)
    for j in range(near.shape[1]):  # no branch: it could not be foreseen
        some[n] = j
        n += np.int64(near[i, j] >= least) & np.int64(near[i, j] < below)
    low = BEYOND
    high = -BEYOND
    for r in range(n):
        cosine = near[i, some[r]]
        low = cosine if cosine < low else low
        high = cosine if cosine > high else high
    fine = (len(shelf) - 1) / (high - low) if high > low else 0.0
    shelf[:] = 0
    for r in range(n):
        shelf[int((high - near[i, some[r]]) * fine)] += 1
    for s in range(1, len(shelf)):
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
    return n


@compiled()
def _below(near, i, item, error, begin, end, wanted, least, best):
    """The `wanted` nearest entries of one memory among those below a cosine, into best: [2, .]"""
    found = np.int64(0)
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
def _read(order, value, n, highest, sharpness, lists, left, sums):
    """Read the lists of n items for those who still want entries; how many then want more.

    left: [C] entries wanted    sums: [2, C] of a_m e_m and a_m, up to the same factor
    """
    begin, owner, said = lists
    for r in range(n):
        share = math.exp((value[r] - highest) / sharpness)
        for e in range(begin[order[r]], begin[order[r] + 1]):
            c = owner[e]
            more = np.int64(left[c] > 0)  # no branch: it could not be foreseen
            left[c] -= more
            sums[0, c] += more * share * said[e]
            sums[1, c] += more * share
    lacking = np.int64(0)
    for c in range(len(left)):
        lacking += np.int64(left[c] > 0)
    return lacking


@compiled(fastmath={"contract", "reassoc"})
def corrections(near, start, memory, lists, nearest, sharpness, stride, scratch, out):
    """Fill in the sum of a_m e_m, a = softmax(cos / sharpness) over the nearest entries (ReLoop2).

    Lists are read in batches, as long as enough people find their last entry in one. The others
    look for what is left in their own memory.

    near: [., I] cosines of items from `start` on    memory, lists: from `listed`
    stride: of `_shelved`    out: [C, I], of which the columns of these items are written
    scratch: a shelf for `_shelved`, the last four of `_between`, left and sums of `_read`,
        best: [2, nearest]
    """
    first, item, error = memory
    entries, shelf, some, order, value, left, sums, best = scratch
    clients = len(left)
    few = first[clients] < FEW * near.shape[1]
    for i in range(near.shape[0]):
        wanted = np.int64(0)
        for c in range(clients):
            left[c] = min(nearest, first[c + 1] - first[c])
            wanted += left[c]
            sums[0, c] = 0.0
            sums[1, c] = 0.0
        high = fine = 0.0
        s = len(entries)
        if not few:
            high, fine = _shelved(near, i, lists[0], stride, entries)
            s = 0
        highest = least = BEYOND
        lacking = found = clients
        while s < len(entries) and (s == 0 or min(found, lacking) * WORTH > OTHER * wanted):
            batch = wanted * (FIRST if s == 0 else OTHER)
            many = entries[s]
            s += 1
            while s < len(entries) and many < batch:
                many += entries[s]
                s += 1
            below = least
            least = high - (s / fine) ** 2 if s < len(entries) else -BEYOND
            n = _between(near, i, least, below, shelf, some, order, value)
            highest = value[0] if below == BEYOND else highest
            before = lacking
            lacking = _read(order, value, n, highest, sharpness, lists, left, sums)
            found = before - lacking
        for c in range(clients):
            top = highest
            if sums[1, c] < LOST:  # nobody near: begin again, with the own nearest as the measure
                left[c] = min(nearest, first[c + 1] - first[c])
                sums[0, c] = 0.0
                sums[1, c] = 0.0
                _below(near, i, item, error, first[c], first[c + 1], left[c], BEYOND, best)
                top = best[0, 0]
            elif left[c] > 0:
                _below(near, i, item, error, first[c], first[c + 1], left[c], least, best)
            for k in range(left[c]):
                share = math.exp((best[0, k] - top) / sharpness)
                sums[0, c] += share * best[1, k]
                sums[1, c] += share
            out[c, start + i] = sums[0, c] / sums[1, c] if sums[1, c] > 0 else 0.0
