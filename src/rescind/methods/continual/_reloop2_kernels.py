"""Compiled loops that correct each item's score by similar entries of error memories.

Each item has a list of the clients that remember it. For each item, the lists of its neighbours are
read, nearest first, until nearly all clients have enough entries: faster than searching memories.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.compiling import compiled, inner

BEYOND = 2.0  # larger than any cosine
LOST = 1e-200  # below, a sum of exponentials has lost precision
# Speed only: entries in the first batch of lists and in later ones, as multiples of the entries
# wanted, and how many entries are worth reading to save one client's search.
FIRST, OTHER, WORTH = 2, 1, 100
FEW = 1.5  # with fewer memory entries per item, each client's memory is searched directly


@compiled()
def listed(held, wrong, first, item, error, begin, owner, owner_error):
    """Copy memories without gaps, by client and by item.

    held, wrong: [C, M] items of a memory, -1 where empty, and their errors
    first: [C + 1], item, error: [n] by client
    begin: [I + 1] zeros, owner, owner_error: [n] by item
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
        begin[i] += begin[i - 1]  # ends of lists; filling from the end turns them into starts
    for c in range(held.shape[0] - 1, -1, -1):
        for m in range(first[c], first[c + 1]):
            begin[item[m]] -= 1
            owner[begin[item[m]]] = c
            owner_error[begin[item[m]]] = error[m]


@inner()
def _histogram(near, i, begin, stride, bins):
    """Estimate the number of list entries by cosine from every `stride`-th item.

    Bin s starts at the cosine high - (s / fine)^2: finer at high cosines, where trained items are
    dense. Return (high, fine).
    near: [., I]    begin: [I + 1] of the lists    bins: [any] is written
    """
    items = near.shape[1]
    low = near[i, 0]
    high = low
    for j in range(0, items, stride):
        low = near[i, j] if near[i, j] < low else low
        high = near[i, j] if near[i, j] > high else high
    fine = (len(bins) - 1) / math.sqrt(high - low) if high > low else 0.0
    for s in range(len(bins)):  # numba takes seconds to compile an assignment to a slice
        bins[s] = 0
    for j in range(0, items, stride):
        far = high - near[i, j]
        far = math.sqrt(far) * fine if far > 0 else 0.0  # also for NaN
        bins[int(far)] += np.int64(begin[j + 1] - begin[j]) * stride
    return high, fine


@inner()
def _between(near, i, least, below, bins, some, order, value):
    """Sort the items with least <= cosine < below, nearest first; return their number.

    A bucket sort by cosine, finished by an insertion sort.
    near: [., I]    bins: [any], some: [I + 1] scratch    order, value: [I] are written
    """
    n = np.int64(0)
    for j in range(near.shape[1]):  # branch-free: the branch is unpredictable
        some[n] = j
        n += np.int64(near[i, j] >= least) & np.int64(near[i, j] < below)
    low = BEYOND
    high = -BEYOND
    for r in range(n):
        cosine = near[i, some[r]]
        low = cosine if cosine < low else low
        high = cosine if cosine > high else high
    fine = (len(bins) - 1) / (high - low) if high > low else 0.0
    for s in range(len(bins)):  # numba takes seconds to compile an assignment to a slice
        bins[s] = 0
    for r in range(n):
        bins[int((high - near[i, some[r]]) * fine)] += 1
    for s in range(1, len(bins)):
        bins[s] += bins[s - 1]
    for r in range(n - 1, -1, -1):
        s = int((high - near[i, some[r]]) * fine)
        bins[s] -= 1
        order[bins[s]] = some[r]
        value[bins[s]] = near[i, some[r]]
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


@inner()
def _below(near, i, item, error, begin, end, wanted, least, best):
    """Write the `wanted` nearest entries of one memory below a cosine into best: [2, .]"""
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


@inner(fastmath={"contract", "reassoc"})
def _read(order, value, n, highest, sharpness, lists, left, sums):
    """Read the lists of n items; return how many clients still need entries.

    left: [C] entries wanted    sums: [2, C] of a_m e_m and a_m, up to the same factor
    """
    begin, owner, owner_error = lists
    for r in range(n):
        weight = math.exp((value[r] - highest) / sharpness)
        for e in range(begin[order[r]], begin[order[r] + 1]):
            c = owner[e]
            more = np.int64(left[c] > 0)  # branch-free: the branch is unpredictable
            left[c] -= more
            sums[0, c] += more * weight * owner_error[e]
            sums[1, c] += more * weight
    lacking = np.int64(0)
    for c in range(len(left)):
        lacking += np.int64(left[c] > 0)
    return lacking


@compiled(fastmath={"contract", "reassoc"})
def corrections(near, start, memory, lists, nearest, sharpness, stride, scratch, out):
    """Fill in the sum of a_m e_m, a = softmax(cos / sharpness) over the nearest entries (ReLoop2).

    Lists are read in batches while enough clients are completed by one. The other clients search
    their own memory for the rest.

    near: [., I] cosines of items from `start` on    memory, lists: from `listed`
    stride: of `_histogram`    out: [C, I], of which the columns of these items are written
    scratch: bins of `_histogram`, the last four of `_between`, left and sums of `_read`,
        best: [2, nearest]
    """
    first, item, error = memory
    entries, bins, some, order, value, left, sums, best = scratch
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
            high, fine = _histogram(near, i, lists[0], stride, entries)
            s = 0
        highest = least = BEYOND
        lacking = found = clients
        while s < len(entries) and (s == 0 or min(found, lacking) * WORTH > OTHER * wanted):
            batch = wanted * (FIRST if s == 0 else OTHER)
            count = entries[s]
            s += 1
            while s < len(entries) and count < batch:
                count += entries[s]
                s += 1
            below = least
            least = high - (s / fine) ** 2 if s < len(entries) else -BEYOND
            n = _between(near, i, least, below, bins, some, order, value)
            highest = value[0] if below == BEYOND else highest
            before = lacking
            lacking = _read(order, value, n, highest, sharpness, lists, left, sums)
            found = before - lacking
        for c in range(clients):
            top = highest
            if sums[1, c] < LOST:  # underflow: restart relative to the client's own nearest entry
                left[c] = min(nearest, first[c + 1] - first[c])
                sums[0, c] = 0.0
                sums[1, c] = 0.0
                _below(near, i, item, error, first[c], first[c + 1], left[c], BEYOND, best)
                top = best[0, 0]
            elif left[c] > 0:
                _below(near, i, item, error, first[c], first[c + 1], left[c], least, best)
            for k in range(left[c]):
                weight = math.exp((best[0, k] - top) / sharpness)
                sums[0, c] += weight * best[1, k]
                sums[1, c] += weight
            out[c, start + i] = sums[0, c] / sums[1, c] if sums[1, c] > 0 else 0.0
