"""The clock: numbers that depend on where they are used, and on nothing else."""

from __future__ import annotations

import pytest
import torch

from lazily import Lazily
from rescind.core.clock import _ID_STRIDE, _K_STRIDE, Clock

stats = Lazily("scipy.stats")

# Draws are deterministic, so these never flake: a p-value below this is a real defect.
SUSPICIOUS = 1e-4


def flat(values: torch.Tensor, bins: int) -> float:
    """The p-value of whole numbers below `bins` being uniform."""
    return float(stats.chisquare(torch.bincount(values, minlength=bins).numpy()).pvalue)


def test_the_published_stream_of_splitmix64_comes_out(monkeypatch):
    # The state of splitmix64 grows by the golden-ratio stride, which is our stride over ids: with
    # the seed as the key, ids 1, 2, 3, ... give its outputs. Values: the reference for 1234567.
    monkeypatch.setattr(Clock, "key", lambda self, purpose: 1234567)
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = Clock(0).bits("any", torch.arange(1, 6)).tolist()
    assert [value % 2**64 for value in drawn] == expected


@pytest.mark.parametrize("shift", [0, 8, 24, 32, 48, 56])
def test_every_byte_of_the_bits_is_uniform_over_ids_and_over_k(shift):
    ids = torch.arange(50_000)
    over_ids = (Clock(3).bits("byte", ids) >> shift) & 0xFF
    over_k = (Clock(3).bits("byte", torch.tensor(5), ids) >> shift) & 0xFF
    assert flat(over_ids, 256) > SUSPICIOUS
    assert flat(over_k, 256) > SUSPICIOUS


def test_uniform_numbers_fill_the_unit_interval_and_stay_below_one():
    drawn = Clock(1).uniform("u", torch.arange(100_000))
    assert drawn.dtype == torch.float64
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > SUSPICIOUS


def test_the_largest_and_smallest_bits_give_the_ends_of_the_interval(monkeypatch):
    monkeypatch.setattr(Clock, "bits", lambda *_: torch.tensor([0, -1]))
    assert Clock(0).uniform("u", torch.arange(2)).tolist() == [0.0, 1 - 2**-53]


@pytest.mark.parametrize("high", [1, 2, 7, 100])
def test_integers_are_uniform_below_their_bound(high):
    drawn = Clock(2).integers("i", torch.arange(30_000), 4, high)
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == high - 1
    assert high == 1 or flat(drawn, high) > SUSPICIOUS


def test_integers_reach_both_ends_of_the_widest_range_without_overflow(monkeypatch):
    monkeypatch.setattr(Clock, "bits", lambda *_: torch.tensor([0, -1]))
    assert Clock(0).integers("i", torch.arange(2), 0, 2**31 - 1).tolist() == [0, 2**31 - 2]


def test_normal_numbers_have_the_moments_and_shape_of_a_normal():
    drawn = Clock(4).normal("n", torch.arange(100_000)).numpy()
    # Standard errors at n = 100,000: mean .0032, variance .0045, skewness .0077, kurtosis .0155.
    assert abs(drawn.mean()) < 0.013
    assert abs(drawn.var() - 1) < 0.018
    assert abs(stats.skew(drawn)) < 0.031
    assert abs(stats.kurtosis(drawn)) < 0.062
    assert stats.kstest(drawn, "norm").pvalue > SUSPICIOUS


def test_a_client_draws_the_same_numbers_alone_and_in_a_crowd():
    clock = Clock(5, 3).step(2)
    cohort = torch.tensor([4, 9, 2, 700, 31])
    for draw in (clock.bits, clock.uniform, clock.normal):
        together = draw("x", cohort, 6)
        for place, client in enumerate(cohort.tolist()):
            assert torch.equal(draw("x", torch.tensor([client]), 6), together[place : place + 1])


def test_no_small_difference_of_ids_and_ks_makes_two_draws_equal():
    # The mixing is one to one, so (id, k) and (id', k') collide just when a * A + b * B = 0 modulo
    # 2**64 for a = id - id', b = k - k'. Such (a, b) form a lattice; Gauss's reduction finds its
    # shortest vector. Any lattice of this determinant has one of length about 2**32 or less.
    modulus = 2**64
    slope = -_K_STRIDE * pow(_ID_STRIDE % modulus, -1, modulus) % modulus
    short, long = (slope, 1), (modulus, 0)
    while True:
        if short[0] ** 2 + short[1] ** 2 > long[0] ** 2 + long[1] ** 2:
            short, long = long, short
        inner, size = short[0] * long[0] + short[1] * long[1], short[0] ** 2 + short[1] ** 2
        times = (2 * inner + size) // (2 * size)
        if times == 0:
            break
        long = (long[0] - times * short[0], long[1] - times * short[1])
    assert (short[0] * _ID_STRIDE + short[1] * _K_STRIDE) % modulus == 0
    assert max(abs(short[0]), abs(short[1])) > 2**28


@pytest.mark.parametrize(
    "other",
    [
        ("x", Clock(1, 2).step(3)),
        ("x", Clock(0, 1).step(3)),
        ("x", Clock(0, 2).step(4)),
        ("y", Clock(0, 2).step(3)),
        ("x", Clock(0, 3).step(2)),
    ],
    ids=["seed", "round", "step", "purpose", "round and step swapped"],
)
def test_another_seed_round_step_or_purpose_gives_unrelated_numbers(other):
    ids = torch.arange(20_000)
    one = Clock(0, 2).step(3).uniform("x", ids)
    two = other[1].uniform(other[0], ids)
    assert not torch.isin(one, two).any()
    # Standard error of a correlation at n = 20,000: .0071.
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.03


def test_draws_are_the_same_on_every_machine_and_release():
    # Changing any of these changes every result ever published with a seed.
    clock, ids = Clock(0, 1).step(2), torch.tensor([0, 1, 943])
    # Computed from the definition with Python's own integers, outside this package.
    assert clock.integers("negatives", ids, 3, 1682).tolist() == [644, 1133, 434]
    assert Clock(42).key("sample") == -3546778296942867798
