"""What a long computation is doing now, for whoever shows progress.

Code that may take seconds says so (`with step("solving 9,000 x 9,000", seconds=22)`), and a
progress bar asks (`now`). Nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic


@dataclass(eq=False)
class Step:
    """A step that is going on."""

    what: str
    total: int = 0
    """Parts of it, such as users to evaluate; 0 if it has none that can be counted."""
    unit: str = ""
    done: int = 0
    seconds: float | None = None
    """About how much CPU time it takes, if that can be said before."""
    begun: float = field(default_factory=monotonic)
    before: int = 0
    """Parts that were done when it began; they took no time."""

    def told(self, now: float) -> str:
        """Return what is done and how long it will take. now: a clock that only goes forward"""
        passed = now - self.begun
        if not self.total:
            told = f"{self.what}: {passed:.0f} s so far"
            known = self.seconds is not None and self.seconds >= 1
            return f"{told}, about {self.seconds:,.0f} CPU s in all" if known else told
        told = f"{self.what}: {self.done:,} of {self.total:,} {self.unit}"
        if not self.before < self.done < self.total:
            return f"{told}, {passed:.0f} s so far"
        left = passed / (self.done - self.before) * (self.total - self.done)
        return f"{told}, about {left:.0f} s left"


_steps: list[Step] = []


@contextmanager
def step(
    what: str, total: int = 0, unit: str = "", done: int = 0, seconds: float | None = None
) -> Iterator[Step]:
    """Say that a step is going on; its `done` may be raised meanwhile."""
    new = Step(what, total, unit, done, seconds, before=done)
    _steps.append(new)
    try:
        yield new
    finally:
        _steps.remove(new)  # by identity: steps of two threads may end in any order


def now() -> Step | None:
    """Return the innermost step that is going on; None if nobody said what is done."""
    return _steps[-1] if _steps else None
