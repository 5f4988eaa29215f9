"""The n-th smallest number is the one that sorting would put there."""

from __future__ import annotations

import numpy as np
import pytest

from rescind.methods.additive._select import nth_smallest

DRAWN = np.random.default_rng(5)  # noqa: TID251
CASES = {
    "drawn": DRAWN.normal(size=301),
    "few values": DRAWN.integers(0, 3, size=300).astype(np.float64),
    "all equal": np.ones(50),
    "rising": np.arange(64.0),
    "falling": -np.arange(65.0),
    "one": np.array([2.0]),
    "infinite": np.array([0.0, -np.inf, np.inf, -np.inf, 1.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_sorting_puts_there(name: str) -> None:
    values = CASES[name]
    before = values.copy()
    found = [nth_smallest(values, n) for n in range(len(values))]
    assert found == sorted(values)
    assert np.array_equal(values, before), "its input is left as it was"
