"""A compiled round of every backbone whose score is linear in the item row, s = v . q + shift.

FedMF, the published FedNCF and PFedRec, with the extra loss terms of continual methods: replay of
old predictions (KD, SPP, F3CRec) and a proximal penalty (Reg). `ego_kernel` says what compiled
loops have in common. An unused term is None: numba drops code behind a bare `is not None`, so it
costs no time, not even to compile.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.ego_kernel import S24, S32, begin_search, compiled, negative
from rescind.core.fast.rowops import add, bits, dot, dots, gather, multiply, scatter


@compiled()
def _by_hash(hashes, many, order, buckets):
    """Write into `order` the places 0..many-1 sorted by 40-bit hash; equal ones stay in place."""
    for b in range(len(buckets)):
        buckets[b] = 0
    for s in range(many):
        buckets[(hashes[s] >> S32) + np.uint64(1)] += 1
    for b in range(1, len(buckets)):
        buckets[b] += buckets[b - 1]
    for s in range(many):
        at = hashes[s] >> S32
        order[buckets[at]] = s
        buckets[at] += 1
    for s in range(1, many):  # buckets are in order; what is left is sorting inside them
        here = order[s]
        at = s
        while at > 0 and hashes[order[at - 1]] > hashes[here]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = here


@compiled(fastmath={"contract", "reassoc"})
def _moved_list(scores, listed, first, length, scale):
    """How many of a list are replayed, F3CRec Eq. (2)-(4): floor(N exp(-epsilon shift)).

    The shift only grows from one entry to the next, so that a list which has moved too far is
    given up as soon as this shows.    scores: [I] of all items as they stand
    """
    kind = scores.dtype.type
    shift = 0.0
    many = length
    for k in range(length):
        j = listed[first + k]
        if j < 0:
            continue
        mine = scores[j]
        above = kind(0)  # counting in the scores' own kind lets the machine compare many at once
        for i in range(len(scores)):
            above += kind(1) if scores[i] > mine else kind(0)
        shift += abs(np.float64(above) - k)
        many = np.int64(length * math.exp(-scale * shift))
        if many == 0:
            break
    return many


@compiled()
def _shelve(j, c, counts, seen, touched, shelf, shelved, given, waves):
    """Row j is used by client c: note it when this is the first time; how many rows there are."""
    if seen[j] > c:
        return shelved
    seen[j] = c + 1
    touched[j] += counts
    shelf[shelved] = j
    for k in range(j * waves, (j + 1) * waves):
        given[k] = 0
    return shelved + 1


@compiled()
def _draw_replayed(many, listed, first, length, key, who, luck, row, at):
    """Write `many` entries of a list, those with the smallest bits, into row[at:]; how many.

    Of each entry in it, luck keeps the place on the list (the bits are not needed any more).
    """
    for k in range(length):
        luck[k] = np.int64(bits(key, who, k))
    taken = 0
    for k in range(length):
        before = 0
        if many < length:
            for other in range(length):
                before += luck[other] < luck[k]
        if before < many and listed[first + k] >= 0:
            luck[length + taken] = k
            row[at + taken] = listed[first + k]
            taken += 1
    return taken


@compiled(fastmath={"contract", "reassoc"})
def linear_bce(
    dim,
    table,
    own,
    pace,
    ids,
    weight,
    train,
    train_first,
    train_count,
    owned,
    own_first,
    own_count,
    draw_keys,
    order_keys,
    negatives,
    batch_size,
    temperature,
    rate,
    mean,
    steps,
    total,
    touched,
    sent,
    seen,
    start,
    label,
    past,
    cross,
    echo,
    given,
    sample,
    order,
    row,
    error,
    shelf,
    hashes,
    buckets,
    replay,
    proximal,
    said,
):
    """BCE on s = v . q + shift, any number of batches and epochs of plain SGD (f3crec.md 4).

    After s steps a client's copy of row j is table[j] - rate * sum_k g[j, k] v_k, where v_k is its
    vector at step k: no copy of a row is made, only the numbers g are kept (`given`, flat, a row
    of `waves` for each item). A row of `own` is v, then nothing (FedMF), or a bias (PFedRec), or a
    bias and two vectors a and p (FedNCF): shift = bias + a . p. `steps` is 2 where the loss is
    taken anew between the step of what is private and that of the items.

    replay: (listed [C * N], taught [C * N], N, keys by wave, factor, whether factor is for the
        mean, epsilon or below 0 to replay everything, scores [I], all items, luck [2 N])
    proximal: (table - old table, rows of that, old `own`, known [C], strength, pulled [I], more,
        before [width]): what a copy was away from its old row fades by `keep` with every step
    said: (count [C], item, score): every touched row and what the client says of it afterwards
    label: 1 at every place that a positive has among a client's samples
    Changes own, total, touched, sent; the rest is scratch.
    """
    kind = table.dtype.type
    one = kind(1)
    colder = one / temperature
    items = len(touched)
    waves = len(cross)
    width = len(pace)
    keep = one
    told = 0
    if proximal is not None:
        gap, old, then, known, strength, pulled, more, before = proximal
        keep = one - (strength + strength) * rate
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        who = ids[c]
        counts = weight[c]
        owns = own_count[c]
        own_at = own_first[c]
        free = items - owns
        mine = c * width
        each = 1 + negatives * (free > 0)  # samples for a positive
        stride = 1 + negatives * (free <= 0)  # alone, it keeps the number it has among negatives
        many = n * each
        batches = -(-many // batch_size)
        left = len(draw_keys) * batches
        shelved = 0
        extra = 0
        listed_at = 0
        if replay is not None:
            listed, taught, length, keys, factor, averaged, scale_by, scores, every, luck = replay
            listed_at = c * length
            for k in range(listed_at, listed_at + length):
                if listed[k] >= 0:
                    shelved = _shelve(
                        listed[k], c, counts, seen, touched, shelf, shelved, given, waves
                    )
        has_list = shelved > 0
        if free > 0:
            begin_search(start, owned, own_at, owns, free)
        for epoch in range(len(draw_keys)):
            for p in range(n):
                sample[p * each] = train[first + p]
                for q in range(1, each):
                    k = p * negatives + q - 1
                    sample[p * each + q] = negative(
                        draw_keys[epoch], who, k, start, owned, own_at, owns, free
                    )
            for s in range(many):
                order[s] = s
                hashes[s] = bits(order_keys[epoch], who, s * stride) >> S24
            if many > batch_size:
                _by_hash(hashes, many, order, buckets)
            for batch in range(batches):
                wave = epoch * batches + batch
                now = wave * dim
                begin = batch * batch_size
                over = (begin + batch_size - many) * (batch == batches - 1)
                size = batch_size - over
                scale = colder / kind(1 + (size - 1) * mean)
                for s in range(begin, begin + size):
                    row[s] = sample[order[s]]
                    shelved = _shelve(
                        row[s], c, counts, seen, touched, shelf, shelved, given, waves
                    )
                left -= 1
                for step in range(steps):
                    for f in range(dim):
                        past[now + f] = own[mine + f]
                    shift = kind(0)
                    if width > dim:
                        shift = own[mine + dim]
                    if width > dim + 1:
                        shift += dot(own, mine + dim + 1, own, mine + 2 * dim + 1, dim)
                    for k in range(wave):
                        cross[k] = -rate * dot(past, now, past, k * dim, dim)
                        echo[k] = 0
                    extra = 0
                    if replay is not None:
                        if has_list:
                            extra = length
                            if scale_by >= 0:
                                dots(scores, 0, past, now, table, every, 0, items, dim)
                                if wave > 0:
                                    for s in range(shelved):
                                        j = shelf[s]
                                        scores[j] += dot(given, j * waves, cross, 0, wave)
                                extra = _moved_list(scores, listed, listed_at, length, scale_by)
                            if extra > 0:
                                key = keys[epoch * (len(keys) // len(draw_keys)) + batch]
                                extra = _draw_replayed(
                                    extra, listed, listed_at, length, key, who, luck, row,
                                    begin + size,
                                )  # fmt: skip
                    together = size + extra
                    dots(error, begin, past, now, table, row, begin, together, dim)
                    if proximal is not None:
                        faded = keep**wave - one
                        if wave > 0:
                            dots(more, begin, past, now, gap, row, begin, together, dim)
                            for s in range(begin, begin + together):
                                error[s] += faded * more[s]
                    whole = kind(0)
                    for s in range(begin, begin + together):
                        at = row[s] * waves
                        score = error[s] + shift + dot(given, at, cross, 0, wave)
                        e = kind(0)
                        if s < begin + size:
                            e = one / (one + math.exp(-score * colder)) - label[order[s] * stride]
                            e *= scale
                        if replay is not None:
                            if s >= begin + size:
                                k = luck[length + s - begin - size]
                                e = one / (one + math.exp(-score)) - taught[listed_at + k]
                                e *= factor / kind(1 + (extra - 1) * averaged)
                        error[s] = e
                        whole += e
                        add(echo, 0, given, at, e, wave)
                    if step == steps - 1:
                        by = -rate * counts
                        if proximal is None:
                            scatter(total, row, begin, together, by, now, dim, past, error)
                        else:
                            for s in range(begin, begin + together):
                                more[s] = error[s] * (keep**left if row[s] < old else one)
                            scatter(total, row, begin, together, by, now, dim, past, more)
                    if step == 0:
                        if proximal is not None:
                            for f in range(width):
                                before[f] = own[mine + f]
                            if wave > 0:
                                by = -pace[0] * faded
                                gather(own, mine, gap, row, begin, together, by, dim, error)
                        gather(own, mine, table, row, begin, together, -pace[0], dim, error)
                        for k in range(wave):
                            add(own, mine, past, k * dim, pace[0] * rate * echo[k], dim)
                        if width > dim:
                            own[mine + dim] -= pace[dim] * whole
                        if width > dim + 1:
                            for f in range(mine + dim + 1, mine + 2 * dim + 1):
                                a = own[f]
                                own[f] -= pace[dim + 1] * whole * own[f + dim]
                                own[f + dim] -= pace[2 * dim + 1] * whole * a
                        if proximal is not None:
                            if known[c]:
                                for f in range(width):
                                    away = before[f] - then[mine + f]
                                    own[mine + f] -= (strength + strength) * pace[f] * away
                    if step == steps - 1:
                        for s in range(begin, begin + together):
                            given[row[s] * waves + wave] += error[s]
                        if proximal is not None:
                            for s in range(shelved):
                                if shelf[s] < old:
                                    multiply(given, shelf[s] * waves, keep, wave)
        sent[c] = shelved
        if proximal is not None:
            by = counts * (keep ** (len(draw_keys) * batches) - one)
            for s in range(shelved):
                pulled[shelf[s]] += by
        if said is not None:
            said_count, said_item, said_score = said
            wave = len(draw_keys) * batches
            now = wave * dim
            for f in range(dim):
                past[now + f] = own[mine + f]
            shift = kind(0)
            if width > dim:
                shift = own[mine + dim]
            if width > dim + 1:
                shift += dot(own, mine + dim + 1, own, mine + 2 * dim + 1, dim)
            for k in range(wave):
                cross[k] = -rate * dot(past, now, past, k * dim, dim)
            dots(said_score, told, past, now, table, shelf, 0, shelved, dim)
            for s in range(shelved):
                said_item[told + s] = shelf[s]
                said_score[told + s] += shift + dot(given, shelf[s] * waves, cross, 0, wave)
            said_count[c] = shelved
            told += shelved
    if proximal is not None:
        for j in range(items):
            add(total, j * dim, gap, j * dim, pulled[j], dim)
