"""Add up what compiling kernels costs in tests, in CPU seconds, from an empty cache.

    python bench/compiling.py [TEST FILES]    without files, those that call most kernels

One process runs the tests. A kernel is compiled once for each kind of arguments: the table says how
often, and how long it took, without the kernels that it calls.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="rescind-")  # before numba is imported

import pytest
from numba.core import event

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "contract/test_fused.py",
    "core/test_evaluation.py",
    "core/test_rowops.py",
    "equations/test_fedshare.py",
    "equations/test_gram.py",
    "equations/test_kernel_gram.py",
    "equations/test_local_gram.py",
    "equations/test_seq_gram.py",
    "estimators/test_logs.py",
    "ledger/test_live_sum.py",
)


class Compiled(event.Listener):
    """Counts the kernels that are compiled, and their CPU seconds."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.times: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.open: list[tuple[float, float]] = []
        """When each kernel that is being compiled began, and how long those inside it took."""

    def on_start(self, event: Any) -> None:
        """Note when."""
        self.open.append((time.process_time(), 0.0))

    def on_end(self, event: Any) -> None:
        """Add the time, less that of the kernels that this one calls."""
        begin, inside = self.open.pop()
        took = time.process_time() - begin
        if self.open:
            self.open[-1] = (self.open[-1][0], self.open[-1][1] + took)
        name = event.data["dispatcher"].py_func
        full = f"{name.__module__.rpartition('.')[2]}.{name.__qualname__}"
        self.times[full] += 1
        self.seconds[full] += took - inside


def main() -> int:
    """Run the tests, print the table, return what pytest returned."""
    found = Compiled()
    files = sys.argv[1:] or [str(ROOT / "tests" / name) for name in TESTS]
    with event.install_listener("numba:compile", found):
        code = pytest.main(["-q", "-p", "no:cacheprovider", *files])
    print(f"{'kernel':<44}{'times':>6}{'CPU s':>8}")
    for name, seconds in found.seconds.most_common():
        print(f"{name:<44}{found.times[name]:>6}{seconds:>8.2f}")
    print(f"{'all':<44}{found.times.total():>6}{found.seconds.total():>8.2f}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
