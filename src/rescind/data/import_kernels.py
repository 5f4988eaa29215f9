"""Compiled loops over imported rows: number ids, and sort rows by user, time and item.

`import_columns` and `import_order` have the same in numpy. They call these loops for large files
only, because to compile them takes longer than to import a small one.
"""

from __future__ import annotations

import numpy as np

from rescind.core.fast.compiling import compiled

MOST_MOVES = 64
"""Moves of a row, on average, while rows of the same user and time are put in order of items."""


@compiled()
def number(codes, numbers, found):
    """Replace codes by numbers of first appearance; return how many there are.

    codes: [n] int32    numbers: [codes], all -1    found: [codes], gets the code of each number
    """
    known = 0
    for row in range(len(codes)):
        code = codes[row]
        if numbers[code] < 0:
            numbers[code] = known
            found[known] = code
            known += 1
        codes[row] = numbers[code]
    return known


@compiled()
def part(user, second, item, rating, shift, bits, least, ends, records):
    """Copy rows into groups of users, in the order of the file.

    second: [n] int64, the second key    rating: [n] int32, its bits    ends: [groups], where each
    group begins; gets where it ends    records: [n, 2], gets user and second key, item and rating
    """
    low = (1 << shift) - 1
    for row in range(len(user)):
        group = user[row] >> shift
        at = ends[group]
        ends[group] = at + 1
        records[at, 0] = ((np.int64(user[row]) & low) << bits) | (second[row] - least)
        records[at, 1] = (np.int64(item[row]) << 32) | (np.int64(rating[row]) & 0xFFFFFFFF)


@compiled()
def pack(records, places, keys):
    """Write the first number of each record, with its place in the low bits.

    places: how many bits
    """
    for row in range(len(records)):
        keys[row] = (records[row, 0] << places) | row


@compiled()
def spread(keys, places, records, bits, base, least, user, item, rating, time):
    """Write the columns of sorted records; rows with the same keys are ordered by item.

    returns: False if there are so many of those that this takes too long
    """
    mask, low, most = (1 << places) - 1, (1 << bits) - 1, MOST_MOVES * len(keys)
    before, first, moves = np.int64(-1), 0, 0
    for row in range(len(keys)):
        record = keys[row] >> places
        load = records[keys[row] & mask, 1]
        one, at = load >> 32, row
        user[row] = base + (record >> bits)
        time[row] = least + (record & low)
        if record != before:
            first, before = row, record
        while at > first and item[at - 1] > one:
            item[at], rating[at] = item[at - 1], rating[at - 1]
            at -= 1
        item[at], rating[at] = one, np.int32(load)
        moves += row - at
        if moves > most:
            return False
    return True
