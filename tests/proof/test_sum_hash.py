"""A hash that adds up: against a slow oracle, hidden, and different for every number."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rescind.errors import DataError
from rescind.proof import sum_hash
from rescind.proof.sum_hash import (
    LENGTH,
    MATRIX,
    OWNERS,
    added,
    blinding,
    hash_of,
    hidden,
    largest,
    line_of,
    opens,
    pairs_of,
    places,
)

SEED = bytes(range(32))


def column(place: int) -> list[int]:
    """A column as the docstring tells it, number by number."""
    aes = Cipher(algorithms.AES(MATRIX), modes.ECB()).encryptor()
    blocks = b"".join(place.to_bytes(8, "little") + n.to_bytes(8, "little") for n in range(512))
    raw = aes.update(blocks)
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)]


def test_columns_are_those_of_the_oracle() -> None:
    place, value = [0, 5, 200, 7 + (3 << 48)], [1, -2, 3_000_000_000, 4]
    want = [
        sum(v * c for v, c in zip(value, row, strict=True)) % 2**64
        for row in zip(*map(column, place), strict=True)
    ]
    found = added(np.array(place, np.uint64), np.array(value))
    assert found.tolist() == want
    many = np.arange(200, dtype=np.uint64)
    assert np.array_equal(added(many), added(many[:99]) + added(many[99:]))


def test_the_ring_multiplies_modulo_x_1024_plus_1() -> None:
    small = np.zeros((3, LENGTH), np.int64)
    small[0, 3], small[1, 0], small[2, 1023] = 7, -2, 5
    one, two = (np.array(column(n + (0xFFFF << 48)), np.uint64) for n in range(2))
    want = np.zeros(LENGTH, np.uint64)
    want[3] = 7
    want -= np.uint64(2) * one
    want += np.uint64(5) * np.concatenate([np.negative(two[1:]), two[:1]])  # times X**1023
    assert np.array_equal(hidden(small), want)
    other = blinding(SEED)
    assert np.array_equal(hidden(small + other), hidden(small) + hidden(other))


def test_lines_add_up_to_the_hash_of_the_sum() -> None:
    rows = [([0, 2, 5], 4), ([1, 2], 6), ([5], 9)]
    half, owners = np.zeros(21, np.int64), np.zeros(6, np.int64)
    total, small = np.zeros(LENGTH, np.uint64), np.zeros((3, LENGTH), np.int64)
    for n, (items, weight) in enumerate(rows):
        seed = bytes([n]) * 32
        for i in items:
            owners[i] += 1
            for j in items:
                if j <= i:
                    half[i * (i + 1) // 2 + j] += weight
        total += line_of(np.array(items), weight, 0, seed, counted=True)
        small += blinding(seed)
    assert opens(total, {0: half, OWNERS: owners}, small, 3, 6) == ""
    for n in range(len(half)):
        for by in (1, -1):
            off = half.copy()
            off[n] += by
            assert "not the sum" in opens(total, {0: off, OWNERS: owners}, small, 3, 6)
    assert "not the sum" in opens(total, {1: half, OWNERS: owners}, small, 3, 6)
    assert "not the sum" in opens(total, {0: half, OWNERS: owners}, small + 1, 3, 6)


def test_an_opening_with_huge_numbers_is_refused_before_it_is_hashed() -> None:
    # Modulo 2**64 the sum with 2**64 more in one place has the same hash: numbers must be bounded.
    half = np.zeros(21, np.int64)
    half[3] = 10**9
    small = blinding(SEED)
    assert "larger than" in opens(hash_of({0: half}) + hidden(small), {0: half}, small, 3, 6)
    huge = np.full((3, LENGTH), 2**20)
    assert "larger than" in opens(hidden(huge), {0: 0 * half}, huge, 3, 6)
    _, size = largest(10_000, 6)
    assert size < 10_000 * 2**15  # random signs cancel


def test_a_line_tells_nothing_without_its_seed() -> None:
    items = np.array([1, 4])
    lines = [line_of(items, 2896, 0, bytes([n]) * 32) for n in range(64)]
    assert len({line.tobytes() for line in lines}) == 64
    plain = added(places(0, pairs_of(items))) * np.uint64(2896)
    guess = line_of(items, 2896, 0, bytes(32))
    assert np.array_equal(guess - plain, hidden(blinding(bytes(32))))  # with the seed: opened
    bits = np.unpackbits(np.stack(lines).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)
    bare = np.stack([line - plain for line in lines])  # what a right guess leaves: also noise
    bits = np.unpackbits(bare.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_the_numbers_that_hide_are_small_and_spread() -> None:
    small = np.stack([blinding(bytes([n]) * 32) for n in range(20)])
    assert -(2**15) <= small.min() < -32_000
    assert 32_000 < small.max() < 2**15
    assert abs(small.mean()) < 5 * 2**15 / np.sqrt(3 * small.size)


def test_the_estimate_falls_with_the_roster_and_is_above_128_bits_for_ml_1m() -> None:
    made = run_path(str(Path(__file__).parents[2] / "bench" / "sum_security.py"))
    root_hermite, binding_bits = made["root_hermite"], made["binding_bits"]
    # BKZ-380 reaches 1.0041 (Chen 2013, as everybody quotes it).
    assert 2 ** root_hermite(380) == pytest.approx(1.0041, abs=5e-5)
    assert binding_bits(943, 1_682) > binding_bits(12_080, 3_706) > 128
    assert binding_bits(10**6, 10_000) > 100
    assert binding_bits(10**9, 20_000) < 100
    assert made["hiding_bits"]() > 128


def test_bad_input_is_told() -> None:
    with pytest.raises(DataError, match="32 bytes"):
        blinding(b"short")
    with pytest.raises(DataError, match="domain"):
        places(70_000, np.array([1]))
    assert sum_hash.BYTES == 8192
