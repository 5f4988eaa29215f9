"""A hash of whole-number sums that can be added: the hash of a sum is the sum of the hashes.

    line(u) = A x_u + b(s_u)    mod 2**64,    x_u: the numbers that person u adds to the sum

A has one column of 1,024 entries for each place of the sum: AES-128 under a fixed public key, as
FrodoKEM makes its matrix. b(s) = s0 + a1 s1 + a2 s2 in Z[X] / (X**1024 + 1) hides x_u: s is random
and small, and a1, a2 are two more columns. So 8 KB stand for a person, tell nothing about them, and
add up. Two different short sums with one hash would be a solution of the short-integer-solution
problem (SIS), if that is hard (`bench/sum_security.py`). NOT REVIEWED BY CRYPTOGRAPHERS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256, shake_256

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from rescind.errors import DataError

Hash = NDArray[np.uint64]
"""[1024], added modulo 2**64."""
LENGTH = 1024
BYTES = 8 * LENGTH
SMALL = 15
"""Bits of a random number that hides: from -2**15 to 2**15 - 1."""
MATRIX = sha256(b"rescind sum hash, matrix 1").digest()[:16]
"""The public key of the matrix: a digest of its name, so that nobody could have chosen it."""
OWNERS = 0x8000
"""Domain of the number of people per item; the pairs of block b are in domain b."""
_HIDES = 0xFFFF  # domain of a1 and a2
_AT_ONCE = 64  # columns made at a time: 512 KB, which a cache holds


def places(domain: int, index: NDArray[np.int64]) -> Hash:
    """Return the columns of these numbers of a sum; sums in different domains share none."""
    if not 0 <= domain <= 0xFFFF or (len(index) and not int(index.min()) >= 0):
        raise DataError(f"a sum has no domain {domain} or a negative place.")
    return np.uint64(domain << 48) | index.astype(np.uint64)


def pairs_of(items: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of all pairs i >= j of these items in a lower half, row by row."""
    items = np.unique(items)
    high, low = np.tril_indices(len(items))
    return items[high] * (items[high] + 1) // 2 + items[low]


def added(place: Hash, value: NDArray[np.int64] | None = None) -> Hash:
    """Return the sum of columns, each times its value (1 by default)."""
    total = np.zeros(LENGTH, np.uint64)
    blocks = np.zeros((_AT_ONCE, LENGTH // 2, 2), np.uint64)
    blocks[:, :, 1] = np.arange(LENGTH // 2)
    made, aes = np.empty(_AT_ONCE * BYTES + 16, np.uint8), _aes()
    factor = None if value is None else value.astype(np.int64).view(np.uint64)
    for start in range(0, len(place), _AT_ONCE):
        some = place[start : start + _AT_ONCE]
        blocks[: len(some), :, 0] = some[:, None]
        aes.update_into(blocks[: len(some)].reshape(-1).view(np.uint8).data, made.data)
        columns = made[: len(some) * BYTES].view(np.uint64).reshape(len(some), LENGTH)
        if factor is None:
            total += columns.sum(0, dtype=np.uint64)
        else:
            total += factor[start : start + _AT_ONCE] @ columns
    return total


def _aes() -> CipherContext:
    return Cipher(algorithms.AES(MATRIX), modes.ECB()).encryptor()


def line_of(
    items: NDArray[np.int64], weight: int, block: int, seed: bytes, counted: bool = False
) -> Hash:
    """Return the line of one part: weight for every pair of its items, hidden by the seed.

    counted: the sum also has the number of people per item
    """
    total = np.uint64(weight) * added(places(block, pairs_of(items)))
    if counted:
        total += added(places(OWNERS, np.unique(items)))
    return total + hidden(blinding(seed))


def hash_of(halves: Mapping[int, NDArray[np.int64]]) -> Hash:
    """Return the hash of a whole sum, by domain."""
    total = np.zeros(LENGTH, np.uint64)
    for domain, values in halves.items():
        at = np.flatnonzero(values)
        total += added(places(domain, at), values[at])
    return total


def blinding(seed: bytes) -> NDArray[np.int64]:
    """Return the small random numbers of a seed of 32 secret bytes. [3, 1024]"""
    if len(seed) != 32:
        raise DataError(f"a line is hidden by a seed of 32 bytes, got {len(seed)}.")
    raw = shake_256(b"rescind sum hash, blinding 1" + seed).digest(3 * 2 * LENGTH)
    return np.frombuffer(raw, "<i2").astype(np.int64).reshape(3, LENGTH)


def hidden(small: NDArray[np.int64]) -> Hash:
    """Return b(s) of small numbers, or of a sum of them."""
    own, first, second = small.view(np.uint64)
    total: Hash = own + sum(
        toeplitz @ part for toeplitz, part in zip(_rings(), (first, second), strict=True)
    )
    return total


@lru_cache
def _rings() -> tuple[Hash, Hash]:
    """Return a1 and a2 as matrices that multiply modulo X**1024 + 1. (Views: 16 KB each)"""
    rings = []
    for n in range(2):
        ring = added(places(_HIDES, np.array([n])))
        # Row k has a[k - j] for j <= k, and -a[1024 + k - j] beyond: X**1024 = -1.
        around = np.concatenate([ring[::-1], np.negative(ring[:0:-1])])
        window = np.lib.stride_tricks.sliding_window_view(around, LENGTH)
        rings.append(window[::-1])
    return rings[0], rings[1]


def largest(lines: int, items: int) -> tuple[float, int]:
    """Return the norm of a sum, and the size of a blinding number, that an opening may have.

    A part of n items has weight 4096 / sqrt(n) on n (n + 1) / 2 pairs: a norm of at most
    4096 sqrt((n + 1) / 2), and each person per item counts 1. A sum of random signs passes the
    second bound with probability below 2**-64 (Hoeffding).
    """
    most = lines * (4096 * math.sqrt((items + 1) / 2) + math.sqrt(items))
    tail = math.sqrt(2 * lines * (64 + math.log2(6 * LENGTH)) * math.log(2))
    return most, math.ceil(2**SMALL * min(lines, tail))


def opens(
    commitment: Hash,
    halves: Mapping[int, NDArray[np.int64]],
    small: NDArray[np.int64],
    lines: int,
    items: int,
) -> str:
    """Return "" if this sum and these blinding numbers are what was committed to, else why not."""
    norm, size = largest(lines, items)
    found = math.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in halves.values()))
    if found > norm or int(np.abs(small).max(initial=0)) > size:
        return f"its numbers are larger than {lines:,} lines can add up to"
    if not np.array_equal(hash_of(halves) + hidden(small), commitment):
        return "it is not the sum that the lines of the roster add up to"
    return ""
