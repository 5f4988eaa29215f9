"""Places where a test kills the process: one for every row of the table of crash points."""

from __future__ import annotations

import os
import signal
from collections import Counter

NAMES = (
    "before keys synced",
    "keys synced",
    "inside commit",
    "committed",
    "old keys destroyed",
    "release being made",
    "release committed",
    "receipts committed",
    "roster being made",
    "generation running",
)
"""In the order of the specification, section 2.4."""
VARIABLE = "RESCIND_FAILPOINT"
_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Do nothing, or end the process (SIGKILL) at the n-th time: `RESCIND_FAILPOINT=name[:n]`."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    assert name in NAMES, name
    where, _, count = wanted.partition(":")
    if where == name:
        _reached[name] += 1
        if _reached[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
