"""Schedules of releases: the square root of the triangle of ones, and what one person reaches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rescind.errors import ConfigError
from rescind.privacy.gaussian import epsilon_of
from rescind.privacy.schedules import fresh_noise_of, noise_of, over_blocks, reach, root


def matrix(releases: int) -> np.ndarray:
    column = root(releases)
    rows = range(releases)
    return np.array([[column[t - s] if t >= s else 0.0 for s in rows] for t in rows])


@pytest.mark.parametrize("releases", [1, 2, 5, 12])
def test_the_root_times_itself_is_the_triangle_of_ones(releases):
    r = matrix(releases)
    assert np.allclose(r @ r, np.tril(np.ones((releases, releases))), atol=1e-12)


@pytest.mark.parametrize("releases", [1, 2, 5, 12])
def test_nobody_reaches_farther_than_the_bound(releases):
    r = matrix(releases)
    stays = max(np.linalg.norm(r[:, a]) for a in range(releases))
    pairs = itertools.combinations(range(releases), 2)
    leaves = max([stays, *(np.linalg.norm(r[:, a] - r[:, b]) for a, b in pairs)])
    assert reach(releases, leaving=False) == pytest.approx(stays)
    assert reach(releases) == pytest.approx(leaves)


def test_the_noise_of_each_release_is_a_row_of_the_root():
    r = matrix(7)
    expected = 0.6 * reach(7) * np.linalg.norm(r, axis=1)
    assert noise_of(0.6, 7) == pytest.approx(expected.tolist())


def test_twelve_releases_cost_less_than_fresh_noise():
    # sums.md section 6: 1.85 times the noise of one release, 2.19 with deletions, 3.46 fresh
    assert noise_of(1.0, 12, leaving=False)[-1] == pytest.approx(1.85, abs=0.005)
    assert noise_of(1.0, 12)[-1] == pytest.approx(2.19, abs=0.005)
    assert fresh_noise_of(1.0, 12) == pytest.approx(3.46, abs=0.005)
    # Fresh noise of this size in each of twelve releases is the epsilon of one with noise 1.
    assert epsilon_of(fresh_noise_of(1.0, 12), 1e-5, 12) == pytest.approx(epsilon_of(1.0, 1e-5))


def test_people_with_parts_in_several_blocks_reach_no_farther_than_stated():
    # Every way to divide six releases into blocks; parts are all alike, the worst case.
    r, releases, worst = matrix(6), 6, 0.0
    for blocks in (1, 2, 3):
        assert over_blocks(3.0, blocks) == pytest.approx(
            3 / sum(1 / b for b in range(1, blocks + 1))
        )
        for starts in itertools.combinations(range(1, releases), blocks - 1):
            begins = (0, *starts)
            block = np.array([sum(t >= s for s in begins) for t in range(releases)])
            for comes in itertools.product(*(range(b, releases) for b in begins)):
                for gone in range(max(comes) + 1, releases + 1):
                    x = np.zeros(releases + 1)
                    for t in comes:
                        x[t] += 1
                        x[gone] -= 1
                    moved = np.linalg.norm(r @ x[:releases] / (reach(releases) * block))
                    assert moved <= 1 / over_blocks(1.0, blocks) + 1e-9
                    worst = max(worst, moved)
    assert worst > 1, "one block's bound would not hold for them"


def test_one_release_costs_nothing_more():
    assert noise_of(0.6, 1) == [0.6]
    with pytest.raises(ConfigError, match="1 release or more, got 0"):
        root(0)
