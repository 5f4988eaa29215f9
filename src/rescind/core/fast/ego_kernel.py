"""Compiled loops over clients for the CPU: one round of local training, added to the sum directly.

A client's working memory stays in cache, negatives are drawn where they are used, and single
updates are never stored. numba compiles on first use and caches the code on disk. Draws are equal
to those of `Clock`, results to those of `client_train`, up to the order of additions.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.compiling import compiled, inner
from rescind.core.fast.rowops import (
    add,
    bits,
    dot,
    dots,
    gather,
    gather_plain,
    multiply,
    scatter,
    scatter_two,
)

S24, S32 = np.uint64(24), np.uint64(32)
BUCKETS = 256  # start positions of a draw's search, by its upper eight bits


@inner()
def begin_search(start, own, first, count, free):
    """Compute a lower bound of the own items below a draw, for each value of its upper bits.

    start: [BUCKETS + 2], because the last own item may be above every draw
    """
    for bucket in range(len(start)):
        start[bucket] = 0
    scale = BUCKETS / free
    for p in range(count):
        start[np.int64((own[first + p] - p) * scale) + 1] += 1
    for bucket in range(1, BUCKETS):
        start[bucket] += start[bucket - 1]


@inner()
def drawn_rank(upper, free):
    """Return the rank among `free` items that 32 random bits choose."""
    return np.int64((upper * np.uint64(free)) >> S32)


@inner()
def negative(key, client, k, start, own, first, count, free):
    """Draw an item that is not in own[first : first+count], like `draw_negatives`."""
    upper = bits(key, client, k) >> S32
    rank = drawn_rank(upper, free)
    low = start[upper >> S24]
    while low < count and own[first + low] - low <= rank:
        low += 1
    return rank + low


@compiled(fastmath={"contract", "reassoc"})
def ego_bpr(dim, table, users, clients, key, settings, out, memory):
    """Run a round of ego-LightGCN with cosine BPR, one batch (FedShare Eq. 13-15).

    All values are taken at the broadcast table, so a client's update is linear in its gradient. A
    row's gradient is its slope times (the user's direction minus its part along the row) times
    `inv_norm` of the row. The first loop reads the table and stores slopes times `inv_norm` in
    `neg` and `pos`, user directions in `user`, the gradient through propagation in `grad`, and the
    part along the row in `radial`. The second loop writes the sum: so each loop has only one table
    in cache. Matrices are flat.
    user: starts as a copy of `users`    all other memory but `start`: starts as zeros
    Changes users, total (weighted sum of all updates), touched, and sent (rows sent per client).
    """
    ids, weight, train, train_first, train_count, own, own_first, own_count = clients
    negatives, temperature, rate, private_rate, mean = settings
    total, touched, sent = out
    inv_norm, radial, grad, pos, neg, seen, drawn, start, user = memory
    kind = table.dtype.type
    one = kind(1)  # a plain 1 would convert everything to float64
    tiny = kind(1e-12)
    items = len(inv_norm)
    inv_temp = one / temperature
    for i in range(items):
        norm = math.sqrt(dot(table, i * dim, table, i * dim, dim))
        if norm < tiny:  # noqa: PLR1730 - numba takes long to compile `max`
            norm = tiny
        inv_norm[i] = one / norm
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        end = first + n
        free = items - own_count[c]
        sent[c] = n
        for p in range(first, end):
            touched[train[p]] += weight[c]  # positives are never drawn as negatives
        if n == 0 or free <= 0:
            continue
        draws = n * negatives
        drawn_first = first * negatives
        at = c * dim
        # The user's vector u = (u_0 + sum v_i / sqrt(n)) / 2, then its direction.
        root = one / math.sqrt(kind(n))
        gather_plain(user, at, table, train, first, n, root, dim)
        length = math.sqrt(dot(user, at, user, at, dim))
        if length < tiny + tiny:  # noqa: PLR1730 - it is twice the norm of u
            length = tiny + tiny
        multiply(user, at, one / length, dim)
        # Scores and draws in separate loops: the CPU overlaps independent work.
        dots(pos, first, user, at, table, train, first, n, dim)
        begin_search(start, own, own_first[c], own_count[c], free)
        for q in range(draws):
            j = negative(key, ids[c], q, start, own, own_first[c], own_count[c], free)
            drawn[drawn_first + q] = j
            if seen[j] <= c:
                seen[j] = c + 1
                touched[j] += weight[c]
                sent[c] += 1
        dots(neg, drawn_first, user, at, table, drawn, drawn_first, draws, dim)
        # Derivatives of the loss by the scores.
        step = rate * weight[c]
        scale = inv_temp / kind(draws if mean else 1)
        q = drawn_first
        for p in range(first, end):
            slope = kind(0)
            i = train[p]
            pos_score = pos[p] * inv_norm[i]
            for _ in range(negatives):
                j = drawn[q]
                score = neg[q] * inv_norm[j]
                g = scale / (one + math.exp((pos_score - score) * inv_temp))
                slope += g
                radial[j] += step * g * score
                neg[q] = g * inv_norm[j]
                q += 1
            pos[p] = -slope * inv_norm[i]
            radial[i] -= step * slope * pos_score
        # Backpropagate through direction and propagation, to u_0 and to every own item.
        gather(grad, at, table, drawn, drawn_first, draws, one, dim, neg)
        gather(grad, at, table, train, first, n, one, dim, pos)
        add(grad, at, user, at, -dot(grad, at, user, at, dim), dim)
        multiply(grad, at, one / length, dim)
        add(users, at, grad, at, -private_rate, dim)
        multiply(grad, at, root, dim)
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        at = c * dim
        step = -rate * weight[c]
        scatter(total, drawn, first * negatives, n * negatives, step, at, dim, user, neg)
        scatter_two(total, train, first, n, step, at, dim, user, pos, grad)
    for i in range(items):
        add(total, i * dim, table, i * dim, radial[i] * inv_norm[i] * inv_norm[i], dim)
