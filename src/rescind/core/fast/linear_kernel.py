"""A compiled round of every backbone whose score is linear in the item row, s = v . q + shift.

FedMF, the published FedNCF and PFedRec, with the extra loss terms of continual methods: replay of
old predictions (KD, SPP, F3CRec) and a proximal penalty (Reg). `ego_kernel` says what compiled
loops have in common. An unused term is None: numba drops code behind a bare `is not None`, so it
costs no time, not even to compile.
"""

from __future__ import annotations

import math

import numpy as np

from rescind.core.fast.compiling import compiled, inner
from rescind.core.fast.ego_kernel import S24, S32, begin_search, drawn_rank, negative
from rescind.core.fast.rowops import add, bits, dot, dots, gather, multiply, scatter
from rescind.core.fast.sigmoids import sigmoids

MOST_SAMPLES = 2**24
"""Samples of a client in an epoch: their number fits into the lower bits of a key."""
LOW24 = np.uint64(MOST_SAMPLES - 1)


@inner()
def _sort_keys(keys, n, ranked, buckets):
    """Sort keys[:n], whose upper bits are random, into `ranked`.

    Buckets by upper bits, at least two for each key, and insertion inside them.
    """
    shift = np.uint64(64)
    used = 1
    while used < 2 * n and used < len(buckets) - 1:
        used += used
        shift -= np.uint64(1)
    for b in range(used + 1):
        buckets[b] = 0
    for s in range(n):
        buckets[(keys[s] >> shift) + np.uint64(1)] += 1
    for b in range(1, used + 1):
        buckets[b] += buckets[b - 1]
    for s in range(n):
        at = keys[s] >> shift
        ranked[buckets[at]] = keys[s]
        buckets[at] += 1
    for s in range(1, n):  # buckets are sorted; now sort inside them
        here = ranked[s]
        at = s
        while at > 0 and ranked[at - 1] > here:
            ranked[at] = ranked[at - 1]
            at -= 1
        ranked[at] = here


@inner(fastmath={"contract", "reassoc"})
def _replay_count(scores, listed, first, length, scale):
    """Compute how many listed items are replayed, F3CRec Eq. (2)-(4): floor(N exp(-epsilon shift)).

    The shift only grows from one entry to the next, so the loop stops as soon as the result is 0.
    scores: [I] current scores of all items
    """
    kind = scores.dtype.type
    shift = 0.0
    count = length
    for k in range(length):
        j = listed[first + k]
        if j < 0:
            continue
        mine = scores[j]
        above = kind(0)  # the same type as the scores, so that comparisons are vectorised
        for i in range(len(scores)):
            above += kind(1) if scores[i] > mine else kind(0)
        shift += abs(np.float64(above) - k)
        count = np.int64(length * math.exp(-scale * shift))
        if count == 0:
            break
    return count


@inner()
def _shelve(j, c, weight, seen, touched, shelf, shelved, coef, waves):
    """Add row j to the shelf of client c if it is new. Return the number of rows on the shelf."""
    if seen[j] > c:
        return shelved
    seen[j] = c + 1
    touched[j] += weight
    shelf[shelved] = j
    for k in range(j * waves, (j + 1) * waves):
        coef[k] = 0
    return shelved + 1


@inner()
def _list_free(free_items, owned, own_at, owns):
    """Write the items that are not owned, in order: a draw is then one lookup."""
    item = 0
    k = 0
    for p in range(owns + 1):
        end = len(free_items) if p == owns else owned[own_at + p]
        for i in range(item, end):
            free_items[k + i - item] = i
        k += end - item
        item = end + 1


@inner()
def _draw_replayed(count, listed, first, length, key, client, draw, row, at):
    """Write the `count` listed items with the smallest random bits to row[at:]. Return how many.

    draw[length:] gets the position of each of them in the list.
    """
    for k in range(length):
        draw[k] = np.int64(bits(key, client, k))
    taken = 0
    for k in range(length):
        before = 0
        if count < length:
            for other in range(length):
                before += draw[other] < draw[k]
        if before < count and listed[first + k] >= 0:
            draw[length + taken] = k
            row[at + taken] = listed[first + k]
            taken += 1
    return taken


@compiled(fastmath={"contract", "reassoc"})
def linear_bce(
    dim,
    table,
    own,
    pace,
    clients,
    keys,
    settings,
    out,
    numbers,
    places,
    replay,
    proximal,
    score_out,
):
    """Run BCE on s = v . q + shift with plain SGD, any number of batches and epochs (f3crec.md 4).

    After s steps a client's copy of row j is table[j] - rate * sum_k g[j, k] v_k, where v_k is its
    vector at step k: rows are not copied, only the numbers g are kept (`coef`, flat, a row of
    `waves` for each item). A row of `own` is v, then nothing (FedMF), or a bias (PFedRec), or a
    bias and two vectors a and p (FedNCF): shift = bias + a . p. `steps` is 2 if the loss is
    computed again between the step of private values and the step of items.

    replay: (listed [C * N], old_label [C * N], N, keys by wave, factor, whether factor is for the
        mean or for each sample, epsilon or below 0 to replay everything, scores [I], all items,
        draw [2 N])
    proximal: (table - old table, rows of the old table, old `own`, known [C], strength, pulled [I],
        more, before [width]): the distance of a copy to its old row shrinks by `keep` per step
    score_out: (count [C], item, score) of every touched row, after the last step
    label: 1 at the position of every positive among a client's samples
    Changes own, total, touched, sent; the rest is working memory.
    """
    ids, weight, train, train_first, train_count, owned, own_first, own_count = clients
    draw_keys, order_keys = keys
    negatives, batch_size, temperature, rate, mean, steps = settings
    total, touched, sent = out
    label, past, cross, echo, coef, error = numbers
    seen, start, sample, order, row, shelf, keys_of, ranked, buckets, free_items = places
    kind = table.dtype.type
    one = kind(1)
    inv_temp = one / temperature
    items = len(touched)
    waves = len(cross)
    width = len(pace)
    keep = one
    written = 0
    if proximal is not None:
        gap, old_rows, old_own, known, strength, pulled, more, before = proximal
        keep = one - (strength + strength) * rate
    for c in range(len(ids)):
        n = train_count[c]
        first = train_first[c]
        client = ids[c]
        client_weight = weight[c]
        owns = own_count[c]
        own_at = own_first[c]
        free = items - owns
        mine = c * width
        each = 1 + negatives * (free > 0)  # samples per positive
        stride = 1 + negatives * (free <= 0)  # without negatives, sample numbers stay the same
        samples = n * each
        batches = -(-samples // batch_size)
        left = len(draw_keys) * batches
        shelved = np.int64(0)  # a plain 0 would have _shelve compiled twice
        extra = 0
        listed_at = 0
        if replay is not None:
            listed, old_label, length, draws, factor, averaged, scale_by = replay[:7]
            scores, every, draw = replay[7:]
            listed_at = c * length
            for k in range(listed_at, listed_at + length):
                if listed[k] >= 0:
                    shelved = _shelve(
                        listed[k], c, client_weight, seen, touched, shelf, shelved, coef, waves
                    )
        has_list = shelved > 0
        listed_free = 4 * n * negatives > items  # many draws: list what they may be
        if listed_free:
            _list_free(free_items, owned, own_at, owns)
        elif free > 0:
            begin_search(start, owned, own_at, owns, free)
        for epoch in range(len(draw_keys)):
            for p in range(n):
                sample[p * each] = train[first + p]
                for q in range(1, each):
                    k = p * negatives + q - 1
                    if listed_free:
                        upper = bits(draw_keys[epoch], client, k) >> S32
                        sample[p * each + q] = free_items[drawn_rank(upper, free)]
                    else:
                        sample[p * each + q] = negative(
                            draw_keys[epoch], client, k, start, owned, own_at, owns, free
                        )
            for s in range(samples):
                order[s] = s
            if samples > batch_size:
                for s in range(samples):  # 40 random bits, then the sample: ties keep its order
                    random = bits(order_keys[epoch], client, s * stride) >> S24
                    keys_of[s] = random << S24 | np.uint64(s)
                _sort_keys(keys_of, samples, ranked, buckets)
                for s in range(samples):
                    order[s] = np.int64(ranked[s] & LOW24)
            for batch in range(batches):
                wave = epoch * batches + batch
                now = wave * dim
                begin = batch * batch_size
                over = (begin + batch_size - samples) * (batch == batches - 1)
                size = batch_size - over
                scale = inv_temp / kind(1 + (size - 1) * mean)
                for s in range(begin, begin + size):
                    row[s] = sample[order[s]]
                    shelved = _shelve(
                        row[s], c, client_weight, seen, touched, shelf, shelved, coef, waves
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
                                        scores[j] += dot(coef, j * waves, cross, 0, wave)
                                extra = _replay_count(scores, listed, listed_at, length, scale_by)
                            if extra > 0:
                                key = draws[epoch * (len(draws) // len(draw_keys)) + batch]
                                extra = _draw_replayed(
                                    extra, listed, listed_at, length, key, client, draw, row,
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
                    for s in range(begin, begin + together):
                        error[s] += shift
                    if wave > 0:
                        for s in range(begin, begin + together):
                            error[s] += dot(coef, row[s] * waves, cross, 0, wave)
                    sigmoids(error, begin, size, inv_temp)
                    for s in range(begin, begin + size):
                        error[s] = (error[s] - label[order[s] * stride]) * scale
                    if replay is not None:
                        if extra > 0:
                            sigmoids(error, begin + size, extra, one)
                            by = factor / kind(extra * averaged + size * (1 - averaged))
                            for s in range(extra):
                                was = old_label[listed_at + draw[length + s]]
                                error[begin + size + s] = (error[begin + size + s] - was) * by
                    whole = kind(0)
                    for s in range(begin, begin + together):
                        whole += error[s]
                    if wave > 0:
                        for s in range(begin, begin + together):
                            add(echo, 0, coef, row[s] * waves, error[s], wave)
                    if step == steps - 1:
                        by = -rate * client_weight
                        if proximal is None:
                            scatter(total, row, begin, together, by, now, dim, past, error)
                        else:
                            for s in range(begin, begin + together):
                                more[s] = error[s] * (keep**left if row[s] < old_rows else one)
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
                                    away = before[f] - old_own[mine + f]
                                    own[mine + f] -= (strength + strength) * pace[f] * away
                    if step == steps - 1:
                        for s in range(begin, begin + together):
                            coef[row[s] * waves + wave] += error[s]
                        if proximal is not None:
                            for s in range(shelved):
                                if shelf[s] < old_rows:
                                    multiply(coef, shelf[s] * waves, keep, wave)
        sent[c] = shelved
        if proximal is not None:
            by = client_weight * (keep ** (len(draw_keys) * batches) - one)
            for s in range(shelved):
                pulled[shelf[s]] += by
        if score_out is not None:
            out_count, out_item, out_score = score_out
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
            dots(out_score, written, past, now, table, shelf, 0, shelved, dim)
            for s in range(shelved):
                out_item[written + s] = shelf[s]
                out_score[written + s] += shift + dot(coef, shelf[s] * waves, cross, 0, wave)
            out_count[c] = shelved
            written += shelved
    if proximal is not None:
        for j in range(items):
            add(total, j * dim, gap, j * dim, pulled[j], dim)
