"""Compiled loops over clients for the CPU: one round of local training, straight into the sum.

A client's scratch stays in cache, negatives are hashed where they are used, and no single update
is ever made. numba compiles them on first use and keeps the code on disk. They draw exactly the
numbers `Clock` draws and compute what `client_train` computes, up to the order of additions.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from rescind.rowops import add, add_two, dot, gather

# The constants of clock.py, unsigned.
_ID = np.uint64(0x9E3779B97F4A7C15)
_K = np.uint64(0x6A09E667F3BCC909)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S24, _S27, _S30, _S31, _S32 = (np.uint64(n) for n in (24, 27, 30, 31, 32))
_FORTY = np.uint64(0xFFFFFFFFFF)
_SHELVES = 256  # where a draw's search begins, by its eight upper bits


@njit(cache=True)
def _bits(key, client, k):
    """The 64 bits that `Clock.bits` gives."""
    x = client * _ID + k * _K + key
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@njit(cache=True)
def _begin_search(start, own, first, count, free):
    """For each value of a draw's upper bits, how many own items surely lie below it."""
    low = 0
    for shelf in range(_SHELVES):
        least = (shelf * free) >> 8
        while low < count and own[first + low] - low <= least:
            low += 1
        start[shelf] = low


@njit(cache=True)
def _negative(bits, start, own, first, count, free):
    """The item of a draw outside own[first : first+count] (see `draw_negatives`)."""
    upper = bits >> _S32
    rank = np.int64((upper * np.uint64(free)) >> _S32)
    low = start[upper >> _S24]
    while low < count and own[first + low] - low <= rank:
        low += 1
    return rank + low


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def ego_bpr(
    dim,
    unit,
    norm,
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
    touched,
    seen,
    inward,
    start,
    user,
    pull,
    near,
    along,
    far,
    size,
    drawn,
):
    """Ego-LightGCN with cosine BPR, one batch: the slopes of every pair (FedShare Eq. 13-15).

    Everything is taken at the broadcast table, so a client's step is linear in its gradient. The
    table comes as unit rows and their norms: a row's gradient is (its slope times the person's
    direction, less the part along the row itself) / its norm. This half reads the table and leaves
    the slopes in `far` and `along`, directions in `user`, and `inward` for the part along the row;
    `ego_scatter` writes the sum, so that each half has only one table in the cache.
    Changes users and touched; returns the rows sent. Matrices are flat.
    """
    kind = norm.dtype.type
    one, half = kind(1), kind(0.5)  # a bare 1 would turn everything into float64
    items, colder = len(norm), one / temperature
    rows = 0
    for c in range(len(ids)):
        n, first, free = train_count[c], train_first[c], items - own_count[c]
        many, drawn_first, at = n * negatives, first * negatives, c * dim
        rows += n
        for p in range(first, first + n):
            size[p] = norm[train[p]]
            touched[train[p]] += weight[c]  # a positive is never among the negatives
        for f in range(at, at + dim):
            user[f] = 0
            pull[f] = 0
        if n == 0 or free <= 0:
            for q in range(drawn_first, drawn_first + many):
                drawn[q], far[q] = 0, 0
            for p in range(first, first + n):
                along[p] = 0
            continue
        # The person's vector: u = u_0 / 2 + (1 / 2) sum v_i / sqrt(n), then its direction.
        root = one / math.sqrt(kind(n))
        gather(user, at, unit, train, size, first, n, dim)
        for f in range(at, at + dim):
            user[f] = (users[f] + user[f] * root) * half
        shorter = one / max(math.sqrt(dot(user, at, user, at, dim)), kind(1e-12))
        for f in range(at, at + dim):
            user[f] *= shorter
        # Draws and scores, each in a loop of its own: the machine overlaps what is independent.
        _begin_search(start, own, own_first[c], own_count[c], free)
        for q in range(many):
            bits = _bits(key, np.uint64(ids[c]), np.uint64(q))
            j = _negative(bits, start, own, own_first[c], own_count[c], free)
            drawn[drawn_first + q] = j
        for q in range(drawn_first, drawn_first + many):
            far[q] = dot(user, at, unit, drawn[q] * dim, dim)
        for p in range(n):
            near[p] = dot(user, at, unit, train[first + p] * dim, dim)
        # Slopes of the loss at the scores.
        step, scale = rate * weight[c], colder / kind(many if mean else 1)
        for p in range(n):
            slope = kind(0)
            for q in range(drawn_first + p * negatives, drawn_first + (p + 1) * negatives):
                g = scale / (one + math.exp((near[p] - far[q]) * colder))
                slope += g
                j = drawn[q]
                inward[j] += step * g * far[q]
                far[q] = g
                if seen[j] != c:
                    seen[j] = c
                    touched[j] += weight[c]
                    rows += 1
            along[first + p] = -slope
            inward[train[first + p]] -= step * slope * near[p]
        # Back through the direction and the propagation, to u_0 and to every own item.
        gather(pull, at, unit, drawn, far, drawn_first, many, dim)
        gather(pull, at, unit, train, along, first, n, dim)
        out = dot(pull, at, user, at, dim)
        for f in range(at, at + dim):
            pull[f] = (pull[f] - out * user[f]) * shorter * half
            users[f] -= private_rate * pull[f]
            pull[f] *= root
    return rows


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def ego_scatter(
    dim,
    unit,
    norm,
    weight,
    train,
    train_first,
    train_count,
    negatives,
    rate,
    inward,
    user,
    pull,
    along,
    far,
    size,
    drawn,
    total,
):
    """The weighted sum of all clients' steps, from what `ego_bpr` left. Changes total."""
    for c in range(len(weight)):
        step, at = rate * weight[c], c * dim
        first, end = train_first[c], train_first[c] + train_count[c]
        for q in range(first * negatives, end * negatives):
            add(total, drawn[q] * dim, user, at, -step * far[q], dim)
        for p in range(first, end):
            add_two(total, train[p] * dim, user, pull, at, -step * along[p], -step * size[p], dim)
    for i in range(len(norm)):
        add(total, i * dim, unit, i * dim, inward[i], dim)
        less = norm.dtype.type(1) / norm[i]
        for f in range(i * dim, (i + 1) * dim):
            total[f] *= less


@njit(cache=True)
def _by_hash(hashes, many, order, buckets):
    """Write into `order` the places 0..many-1 sorted by 40-bit hash; equal ones stay in place."""
    for b in range(len(buckets)):
        buckets[b] = 0
    for s in range(many):
        buckets[(hashes[s] >> _S32) + np.uint64(1)] += 1
    for b in range(1, len(buckets)):
        buckets[b] += buckets[b - 1]
    for s in range(many):
        at = hashes[s] >> _S32
        order[buckets[at]] = s
        buckets[at] += 1
    for s in range(1, many):  # buckets are in order; what is left is sorting inside them
        here, at = order[s], s
        while at > 0 and hashes[order[at - 1]] > hashes[here]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = here


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def mf_bce(
    dim,
    table,
    users,
    ids,
    weight,
    train,
    train_first,
    train_count,
    own,
    own_first,
    own_count,
    draw_keys,
    order_keys,
    negatives,
    batch_size,
    temperature,
    rate,
    private_rate,
    mean,
    total,
    touched,
    seen,
    start,
    pull,
    past,
    cross,
    echo,
    given,
    sample,
    order,
    label,
    error,
    hashes,
    buckets,
):
    """FedMF with BCE, any number of batches and epochs of plain SGD (f3crec.md section 4).

    After s steps a client's copy of row j is table[j] - rate * sum_k g[j, k] p_k, where p_k is its
    user vector at step k: no copy of a row is made, only the numbers g are kept (`given`).
    Changes users, total and touched; the last two lines are scratch. Returns the rows sent.
    """
    kind = table.dtype.type
    one, colder = kind(1), kind(1) / temperature
    items, waves = given.shape
    epochs, each = len(draw_keys), negatives + 1
    rows = 0
    for c in range(len(ids)):
        n, first, free = train_count[c], train_first[c], items - own_count[c]
        if n == 0:
            continue
        client = np.uint64(ids[c])
        step, wave = rate * weight[c], 0
        _begin_search(start, own, own_first[c], own_count[c], max(free, 0))
        for epoch in range(epochs):
            many = 0
            for p in range(n):
                sample[many], label[many], hashes[many] = train[first + p], 1, p * each
                many += 1
                for q in range(negatives if free > 0 else 0):
                    bits = _bits(draw_keys[epoch], client, np.uint64(p * negatives + q))
                    sample[many] = _negative(bits, start, own, own_first[c], own_count[c], free)
                    label[many], hashes[many] = 0, p * each + q + 1
                    many += 1
            if many > batch_size:
                for s in range(many):
                    hashes[s] = (_bits(order_keys[epoch], client, hashes[s]) >> _S24) & _FORTY
                _by_hash(hashes, many, order, buckets)
            else:
                for s in range(many):
                    order[s] = s
            for begin in range(0, many, batch_size):
                end = min(begin + batch_size, many)
                scale = colder / kind((end - begin) if mean else 1)
                now = wave * dim
                for f in range(dim):
                    past[now + f] = users[c * dim + f]
                for k in range(wave):
                    cross[k] = rate * dot(past, now, past, k * dim, dim)
                    echo[k] = 0
                for f in range(dim):
                    pull[f] = 0
                for s in range(begin, end):
                    j = sample[order[s]]
                    if seen[j] != c:
                        seen[j] = c
                        touched[j] += weight[c]
                        rows += 1
                        for k in range(waves):
                            given[j, k] = 0
                    score = dot(past, now, table, j * dim, dim)
                    for k in range(wave):
                        score -= given[j, k] * cross[k]
                    e = (one / (one + math.exp(-score * colder)) - label[order[s]]) * scale
                    error[s] = e
                    add(pull, 0, table, j * dim, e, dim)
                    for k in range(wave):
                        echo[k] += e * given[j, k]
                for s in range(begin, end):
                    j = sample[order[s]]
                    given[j, wave] += error[s]
                    add(total, j * dim, past, now, -step * error[s], dim)
                for k in range(wave):
                    add(pull, 0, past, k * dim, -rate * echo[k], dim)
                add(users, c * dim, pull, 0, -private_rate, dim)
                wave += 1
    return rows
