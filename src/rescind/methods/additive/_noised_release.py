"""A release with noise, without torch: what one person adds is bounded, and hidden by a schedule.

Every part gets the same norm (`Gram(equal_people=True)`), noise that is correlated over the
releases of a schedule is added to the sum (`privacy.schedules`), and all else is computed from the
noisy sum alone; counts of owners are not used, because no noise covers them.

What was drawn for a release is made again from a secret and the release's place in the schedule:
every later release needs it, and drawn numbers would take 8 bytes a pair each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescind.errors import DataError
from rescind.methods.additive._kernels import add_pairs_by_item, unfold
from rescind.methods.additive._live_release import Form, Weights, cut
from rescind.methods.additive._live_sum import Items, Totals
from rescind.methods.additive._solving import UNIT, Floats, half
from rescind.privacy.schedules import noise_of, root

EDGE = 2.2
"""The largest eigenvalue of noise of deviation s on n items is 2 s sqrt(n); see `_release`."""
PIECE = 1 << 20
"""Numbers drawn at a time."""
FLOOR = 0.55
"""Subtracted from every eigenvalue, as a part of the largest that noise has (docs/additive.md)."""
SEEN = 3.0
"""Deviations of the noise above which an item counts as lent by somebody."""


@dataclass(frozen=True)
class Noise:
    """The place of a release in a schedule."""

    multiplier: float
    """Of the whole schedule, for people whose part came once and left once."""
    releases: int
    place: int
    """From 0."""
    secret: str
    """64 hexadecimal digits; the server's."""


def equal_weights(count: np.ndarray) -> np.ndarray:
    """Return floor(4096 sqrt(2 / (n (n + 1)))), 1 at least: the norm of a part is 1 at most."""
    n = np.maximum(count, 1).astype(np.float64)
    return np.maximum(np.floor(UNIT * np.sqrt(2 / (n * (n + 1)))), 1).astype(np.int64)


def reach(items: int) -> float:
    """Return the largest norm of a part in G / 4096: 1, and more above 5,792 items."""
    each = np.arange(1, items + 1)
    return float((equal_weights(each) / UNIT * np.sqrt(half(each))).max(initial=0.0))


def equal_sum(loans: Sequence[Items], items: int) -> Totals:
    parts = [part for part in loans if len(part)]
    sums = Totals(np.zeros(half(items), np.int64), np.zeros(items, np.int64), len(parts))
    if parts:
        count = np.array([len(part) for part in parts])
        owner = np.repeat(np.arange(len(parts)), count)
        joined = np.concatenate(parts).astype(np.int64)
        add_pairs_by_item(sums.total, sums.total[:0], owner, joined, equal_weights(count), items)
    return sums


def drawn(secret: bytes, place: int, count: int) -> Floats:
    """Return standard normal numbers for one release: the same for the same secret and place.

    Box and Muller (1958) on a stream of ChaCha20, so no version of a library changes them.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    nonce = struct.pack("<QQ", 0, place)  # a counter of blocks, then the place
    stream = Cipher(algorithms.ChaCha20(secret, nonce), mode=None).encryptor()
    out = np.empty(count + count % 2)
    for begin in range(0, len(out), PIECE):
        size = min(PIECE, len(out) - begin)
        raw = np.frombuffer(stream.update(bytes(8 * size)), "<u8")
        even = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # inside (0, 1)
        far, turn = np.sqrt(-2 * np.log(even[::2])), 2 * np.pi * even[1::2]
        out[begin : begin + size : 2] = far * np.cos(turn)
        out[begin + 1 : begin + size : 2] = far * np.sin(turn)
    return out[:count]


def correlated(noise: Noise, pairs: int) -> Floats:
    """Return the noise of a release, for parts of the norm 1: the sum of c_(r - s) z_s, s <= r."""
    total, column = np.zeros(pairs), root(noise.place + 1)
    first = noise_of(noise.multiplier, noise.releases)[0]
    for place in range(noise.place + 1):
        z = drawn(bytes.fromhex(noise.secret), place, pairs)
        total += first * column[noise.place - place] * z
    return total


def noised_release(loans: Sequence[Items], items: int, noise: Noise, form: Form) -> Weights:
    """Make the weights of a release from a sum with noise. `form.min_count` is not used."""
    if not 0 <= noise.place < noise.releases:
        raise DataError(f"the schedule has {noise.releases} releases, and this is one more.")
    moved = reach(items)
    deviation = noise_of(noise.multiplier, noise.releases)[noise.place] * moved
    sums = equal_sum(loans, items)
    # Whole numbers: the low digits of floats would tell sums apart. From here on nothing exact.
    total = np.rint(sums.total + UNIT * moved * correlated(noise, len(sums.total)))
    seen = total[half(np.arange(1, items + 1)) - 1] / UNIT
    noisy = Totals(total, np.maximum(np.rint(seen * 1000), 0).astype(np.int64))
    noisy.owners[seen < SEEN * deviation] = 0
    full = np.empty((items, items))
    unfold(total / UNIT, full)
    value, vector = np.linalg.eigh(full)
    floor = FLOOR * EDGE * deviation * np.sqrt(items)
    inverse = (vector / (np.maximum(value - floor, 0) + form.solving.ridge)) @ vector.T
    return cut(inverse, noisy.owners, replace(form, min_count=0))
