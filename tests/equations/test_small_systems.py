"""Eight small systems at a time give what LAPACK gives, each as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rescind.core.clock import Clock

pytest.importorskip("numba")
from rescind.methods.additive._small_systems import solutions


def systems(many: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw positive definite squares with their sides."""
    draw = Clock(5).normal("systems", torch.arange(many * n * (n + 3))).double().numpy()
    lines = draw[: many * n * (n + 2)].reshape(many, n, n + 2)
    squares = lines @ lines.transpose(0, 2, 1) / n + 0.1 * np.eye(n)
    return squares, draw[many * n * (n + 2) :].reshape(many, n).copy()


def halves(squares: np.ndarray) -> np.ndarray:
    return np.concatenate([square[np.triu_indices(len(square))] for square in squares])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17, 200])
@pytest.mark.parametrize("many", [1, 7, 8, 9])
def test_they_are_what_lapack_finds(many, n):
    squares, sides = systems(many, n)
    found = solutions(halves(squares), sides)
    right = np.linalg.solve(squares, sides[:, :, None])[:, :, 0]
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


def test_a_solution_does_not_depend_on_the_systems_beside_it():
    squares, sides = systems(19, 23)
    together = solutions(halves(squares), sides)
    for k in (0, 7, 8, 18):
        alone = solutions(halves(squares[k : k + 1]), sides[k : k + 1])
        np.testing.assert_array_equal(together[k], alone[0])
    others = solutions(halves(squares[::-1]), sides[::-1].copy())
    np.testing.assert_array_equal(together, others[::-1])


def test_a_square_that_is_not_positive_definite_has_no_solution():
    squares, sides = systems(3, 6)
    squares[1] = -squares[1]
    found = solutions(halves(squares), sides)
    assert np.isnan(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()
