"""A compiled loop over people and items: what similar entries of a memory say of each item."""

from __future__ import annotations

import math

from rescind.kernels import compiled


@compiled(fastmath={"contract", "reassoc"})
def _whole(near, item, held, wrong, c, wanted, sharpness, value, slot):
    """The same for one person and one item by reading the whole memory, nearest entries first."""
    found = 0
    for m in range(held.shape[1]):
        if held[c, m] < 0:
            continue
        cosine = near[item, held[c, m]]
        if found == wanted and cosine <= value[found - 1]:
            continue
        at = found if found < wanted else found - 1
        while at > 0 and value[at - 1] < cosine:
            value[at] = value[at - 1]
            slot[at] = slot[at - 1]
            at -= 1
        value[at] = cosine
        slot[at] = wrong[c, m]
        found = found + 1 if found < wanted else found
    total = 0.0
    weight = 0.0
    for k in range(wanted):
        share = math.exp((value[k] - value[0]) / sharpness)
        total += share * slot[k]
        weight += share
    return total / weight


@compiled(fastmath={"contract", "reassoc"})
def corrections(
    near, order, share, held, wrong, nearest, sharpness, there, error, value, slot, out
):
    """Fill in the sum of a_m e_m, a = softmax(cos / sharpness) over the nearest entries (ReLoop2).

    Neighbours of an item are tried in the order of their cosine, so that most searches end early.
    Where `order` is too short to find enough, the whole memory is read.

    near: [I, I] cosines    order, share: [I, some] the nearest items, nearest first, and their
        exponentials up to a factor for each item
    held: [C, M] items of a memory, -1 where it is empty    wrong: [C, M] their errors
    there, error: [I] zeros    value, slot: [nearest] scratch    out: [C, I]
    """
    items, some = order.shape
    clients, capacity = held.shape
    for c in range(clients):
        count = 0
        for m in range(capacity):
            if held[c, m] >= 0:
                there[held[c, m]] = 1
                error[held[c, m]] = wrong[c, m]
                count += 1
        wanted = nearest if count > nearest else count
        for i in range(items):
            found = 0.0
            total = 0.0
            weight = 0.0
            r = 0
            while found < wanted and r < some:  # no branch on what is there: it cannot be foreseen
                j = order[i, r]
                total += share[i, r] * error[j]
                weight += share[i, r] * there[j]
                found += there[j]
                r += 1
            if wanted == 0:
                out[c, i] = 0.0
            elif found < wanted or weight < 1e-200:  # below, digits are lost
                out[c, i] = _whole(near, i, held, wrong, c, wanted, sharpness, value, slot)
            else:
                out[c, i] = total / weight
        for m in range(capacity):
            if held[c, m] >= 0:
                there[held[c, m]] = 0
                error[held[c, m]] = 0
