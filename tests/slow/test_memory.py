"""What a run takes at most is told before it starts: the bound holds, and is not far too high."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rescind.core.settings import find
from rescind.experiments.needs import Sizes, needed
from rescind.storage.kinds import METHODS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIZES = Sizes(users=1000, items=5000, rows=20_000)


def peak(method: str) -> int:
    """Return the largest memory of a process that learns, evaluates and saves."""
    sizes = map(str, (SIZES.users, SIZES.items, SIZES.rows))
    words = [sys.executable, "bench/memory.py", "--one", method, *sizes]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def bound(method: str) -> int:
    return needed(find(*METHODS, method)(), SIZES)


@pytest.mark.parametrize("method", ["Gram", "KernelGram", "SeqGram"])
def test_a_run_of_all_pairs_takes_no_more_than_was_told(method):
    took = peak(method)
    assert took <= bound(method) < 2 * took  # a bound that is far too high refuses runs that fit
    if method == "KernelGram":
        assert took > bound("Gram"), "control: it takes more for a pair, so it has its own bound"
