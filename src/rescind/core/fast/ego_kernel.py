"""Compiled loops over clients for the CPU: one round of local training, straight into the sum.

A client's scratch stays in cache, negatives are hashed where they are used, and no single update
is ever made. numba compiles them on first use and keeps the code on disk. They draw exactly the
numbers `Clock` draws and compute what `client_train` computes, up to the order of additions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numba import njit

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
SHELVES = 256  # where a draw's search begins, by its eight upper bits

# A first call takes two seconds instead of three without a C callback and reference counts.
compiled: Any = partial(njit, cache=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)


@compiled()
def begin_search(start, own, first, count, free):
    """For each value of a draw's upper bits, how many own items surely lie below it.

    start: [SHELVES + 2], as the last own item may lie behind every draw
    """
    for shelf in range(len(start)):
        start[shelf] = 0
    narrow = SHELVES / free
    for p in range(count):
        start[np.int64((own[first + p] - p) * narrow) + 1] += 1
    for shelf in range(1, SHELVES):
        start[shelf] += start[shelf - 1]


@compiled()
def negative(key, client, k, start, own, first, count, free):
    """Draw an item outside own[first : first+count] (see `drawnegatives`)."""
    upper = bits(key, client, k) >> S32
    rank = np.int64((upper * np.uint64(free)) >> S32)
    low = start[upper >> S24]
    while low < count and own[first + low] - low <= rank:
        low += 1
    return rank + low


@compiled(fastmath={"contract", "reassoc"})
def ego_bpr(
    dim,
    table,
    shorter,
    users,
    ids,
    weight,
    train,
    train_first,
    train_count,
    own,
    own_first,
    own_count,
    key,
    negatives,
    temperature,
    rate,
    private_rate,
    mean,
    total,
    touched,
    sent,
    seen,
    inward,
    start,
    user,
    pull,
    along,
    far,
    drawn,
):
    """Ego-LightGCN with cosine BPR, one batch: the weighted sum of all steps (FedShare Eq. 13-15).

    Everything is taken at the broadcast table, so a client's step is linear in its gradient. A
    row's gradient is its slope times (the person's direction, less the part along the row itself)
    times `shorter`, one over the row's length. The first loop reads the table and leaves slopes
    times `shorter` in `far` and `along`, directions in `user`, what comes back through propagation
    in `pull`, and the part along the row in `inward`; the second writes the sum, so that each has
    only one table in the cache. Matrices are flat.
    user: begins as a copy of `users`    pull, along, far, drawn, inward: begin as zeros
    Changes users, total, touched and sent, the rows that each client sends.
    """
    kind = table.dtype.type
    one = kind(1)  # a bare 1 would turn everything into float64
    tiny = kind(1e-12)
    items = len(shorter)
    colder = one / temperature
    for i in range(items):
        norm = math.sqrt(dot(table, i * dim, table, i * dim, dim))
        if norm < tiny:  # noqa: PLR1730 - numba takes long to compile `max`
            norm = tiny
        shorter[i] = one / norm
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        end = first + n
        free = items - own_count[c]
        sent[c] = n
        for p in range(first, end):
            touched[train[p]] += weight[c]  # a positive is never among the negatives
        if n == 0 or free <= 0:
            continue
        many = n * negatives
        drawn_first = first * negatives
        at = c * dim
        # The person's vector: u = (u_0 + sum v_i / sqrt(n)) / 2, then its direction.
        root = one / math.sqrt(kind(n))
        gather_plain(user, at, table, train, first, n, root, dim)
        length = math.sqrt(dot(user, at, user, at, dim))
        if length < tiny + tiny:  # noqa: PLR1730 - it is twice the vector's
            length = tiny + tiny
        multiply(user, at, one / length, dim)
        # Scores and draws, each in a loop of its own: the machine overlaps what is independent.
        dots(along, first, user, at, table, train, first, n, dim)
        begin_search(start, own, own_first[c], own_count[c], free)
        for q in range(many):
            j = negative(key, ids[c], q, start, own, own_first[c], own_count[c], free)
            drawn[drawn_first + q] = j
            if seen[j] <= c:
                seen[j] = c + 1
                touched[j] += weight[c]
                sent[c] += 1
        dots(far, drawn_first, user, at, table, drawn, drawn_first, many, dim)
        # Slopes of the loss at the scores.
        step = rate * weight[c]
        scale = colder / kind(many if mean else 1)
        q = drawn_first
        for p in range(first, end):
            slope = kind(0)
            i = train[p]
            near = along[p] * shorter[i]
            for _ in range(negatives):
                j = drawn[q]
                score = far[q] * shorter[j]
                g = scale / (one + math.exp((near - score) * colder))
                slope += g
                inward[j] += step * g * score
                far[q] = g * shorter[j]
                q += 1
            along[p] = -slope * shorter[i]
            inward[i] -= step * slope * near
        # Back through the direction and the propagation, to u_0 and to every own item.
        gather(pull, at, table, drawn, drawn_first, many, one, dim, far)
        gather(pull, at, table, train, first, n, one, dim, along)
        add(pull, at, user, at, -dot(pull, at, user, at, dim), dim)
        multiply(pull, at, one / length, dim)
        add(users, at, pull, at, -private_rate, dim)
        multiply(pull, at, root, dim)
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        at = c * dim
        step = -rate * weight[c]
        scatter(total, drawn, first * negatives, n * negatives, step, at, dim, user, far)
        scatter_two(total, train, first, n, step, at, dim, user, along, pull)
    for i in range(items):
        add(total, i * dim, table, i * dim, inward[i] * shorter[i] * shorter[i], dim)
