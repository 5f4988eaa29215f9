"""Compiled row arithmetic: what it computes, bit for bit where results depend on it."""

import math

import numpy as np
import pytest
import torch

numba = pytest.importorskip("numba", reason="compiled forms need numba")

from rescind.core.clock import Clock  # noqa: E402
from rescind.core.fast.linear_kernel import LOW24, _sort_keys  # noqa: E402
from rescind.core.fast.sigmoids import sigmoids  # noqa: E402

CLOCK = Clock(0)


def normal(n):
    return CLOCK.normal("numbers", torch.arange(n), torch.zeros(n, dtype=torch.int64)).numpy()


@numba.njit
def in_order(keys, n, ranked, buckets):
    _sort_keys(keys, n, ranked, buckets)


@numba.njit
def vectorised(x, scale):
    sigmoids(x, 0, len(x), scale)


@numba.njit
def one_by_one(x, scale):
    one = x.dtype.type(1)
    for i in range(len(x)):
        x[i] = one / (one + math.exp(-x[i] * scale))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20_003])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 40.0])
def test_sigmoids_of_float32_are_within_a_bit_of_calls_of_the_c_library(length, spread):
    x = (normal(length) * spread).astype(np.float32)
    given, expected = x.copy(), x.copy()
    vectorised(given, np.float32(0.7))
    one_by_one(expected, np.float32(0.7))
    # Equal on machines whose C library multiplies and adds in one; elsewhere the last bit differs.
    np.testing.assert_array_max_ulp(given, expected, maxulp=1)
    assert (given != expected).sum() <= 0.01 * length


def test_sigmoids_of_extreme_numbers():
    ends = [0.0, 1e30, -1e30, 100.0, -100.0, np.inf, -np.inf]
    for kind in (np.float32, np.float64):
        x = np.array([*ends, np.nan], kind)
        vectorised(x, kind(1))
        np.testing.assert_allclose(x[:-1], [0.5, 1, 0, 1, 0, 1, 0], atol=1e-37)
        assert np.isnan(x[-1])


def test_sigmoids_of_float64_are_exact_to_the_last_bits():
    x = normal(1003) * 10
    given = x.copy()
    vectorised(given, 1.0)
    np.testing.assert_allclose(given, 1 / (1 + np.exp(-x)), rtol=1e-15)


@pytest.mark.parametrize("most", [0, 8, 40])
@pytest.mark.parametrize("n", [0, 1, 2, 513, 3000, 9000])
def test_samples_are_sorted_by_hash_and_equal_hashes_keep_their_order(n, most):
    hashes = (CLOCK.bits("hash", torch.arange(n)).numpy() & (2**most - 1)).astype(np.uint64)
    keys, ranked = hashes << np.uint64(24) | np.arange(n, dtype=np.uint64), np.empty(n, np.uint64)
    in_order(keys, n, ranked, np.empty(4097, np.int32))
    np.testing.assert_array_equal(ranked & LOW24, np.argsort(hashes, kind="stable"))
