"""Compiled loops over imported rows: number ids and texts, and sort rows by user, time and item.

`import_columns` and `import_order` have the same in numpy. They call these loops for large files
only, because to compile them takes longer than to import a small one.
"""

from __future__ import annotations

import numpy as np

from rescind.core.fast.compiling import compiled, inner

MOST_MOVES = 64
"""Moves of a row, on average, while rows of the same user and time are put in order of items."""
LONGEST = 16
"""Bytes of a text that is numbered by its first and its last eight; longer ones are not."""
_MOST_STEPS = 64  # to the place of a text; random ones need two
_BYTE = np.uint64(8)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # bits without a pattern
_OTHER = np.uint64(0xD6E8FEB86659FD93)


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


@inner()
def _eight(letters, at):
    """Return eight bytes as a number. Places are unsigned: a sign would be looked at each time."""
    number = np.uint64(letters[at])
    for one in range(np.uint64(1), np.uint64(8)):
        number |= np.uint64(letters[at + one]) << (one * _BYTE)
    return number


@inner()
def _slot(first, last, size, seed):
    """Mix all bits of a text into all bits of its place."""
    mixed = (first ^ seed) * _ODD
    mixed = (mixed ^ (mixed >> _HALF) ^ last ^ size) * _OTHER
    mixed = (mixed ^ (mixed >> _HALF)) * _ODD
    return mixed ^ (mixed >> _HALF)


@compiled()
def number_texts(letters, ends, begin, seed, table, known, new, firsts, numbers):
    """Number texts from row `begin` on, until the table is half full.

    letters: [bytes]    ends: [rows + 1]    table: [slots, 3], the first and the last eight bytes;
    length and number + 1    firsts: [rows], gets the row of each new text    numbers: [rows]

    returns: the next row, or -1 if a text is too long or its place too far; and how many are new
    """
    mask = np.uint64(len(table) - 1)
    end = np.uint64(ends[begin])
    for row in range(np.uint64(begin), np.uint64(len(numbers))):
        start, end = end, np.uint64(ends[row + _ONE])
        size, first, last = end - start, np.uint64(0), np.uint64(0)
        if size > LONGEST:
            return -1, new
        if size >= _BYTE:
            first, last = _eight(letters, start), _eight(letters, end - _BYTE)
        else:
            for at in range(start, end):
                first = (first << _BYTE) | np.uint64(letters[at])
        slot, steps = _slot(first, last, size, seed) & mask, 0
        held = table[slot, 2]
        while held and (table[slot, 0] != first or table[slot, 1] != last or held >> _HALF != size):
            slot, steps = (slot + _ONE) & mask, steps + 1
            held = table[slot, 2]
        if steps > _MOST_STEPS:
            return -1, new
        if not held:
            if 2 * (known + new) >= len(table):
                return np.int64(row), new
            firsts[new] = row
            new += 1
            held = (size << _HALF) | np.uint64(known + new)
            table[slot, 0], table[slot, 1], table[slot, 2] = first, last, held
        numbers[row] = np.int32(held & np.uint64(0xFFFFFFFF)) - 1
    return len(numbers), new


@compiled()
def move_texts(table, seed, larger):
    """Copy the texts of a table into a larger, empty one."""
    mask = np.uint64(len(larger) - 1)
    for row in range(len(table)):
        if table[row, 2]:
            size = table[row, 2] >> _HALF
            slot = _slot(table[row, 0], table[row, 1], size, seed) & mask
            while larger[slot, 2]:
                slot = (slot + _ONE) & mask
            for one in range(3):
                larger[slot, one] = table[row, one]
