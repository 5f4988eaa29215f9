"""What a long computation is doing now, for whoever shows progress.

Code that may take seconds says so (`with step("solving 9,000 x 9,000", seconds=22)`), and a
progress bar asks (`now`). Nothing else depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

RECENT = 20
"""Units from whose time the rest is estimated."""


class Pace:
    """How fast units were done lately, and so how long the others will take.

    What was done when it is first told took no time that is known: tell it before the first unit,
    or after it, if that one takes longer than the others because it also compiles.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=RECENT + 1)

    def reached(self, done: int, now: float) -> None:
        """Note that so many units are done. now: a clock that only goes forward"""
        self._marks.append((done, now))

    def left(self, total: int, now: float) -> float | None:
        """Return about how many seconds the other units take; None if nothing can be said yet.

        Until more is done it falls for as long as that usually takes, and then stands still.
        """
        if not self._marks:
            return None
        (first, begun), (done, latest) = self._marks[0], self._marks[-1]
        if not first < done < total:
            return None
        each, usual = (latest - begun) / (done - first), (latest - begun) / (len(self._marks) - 1)
        return max(each * (total - done) - min(now - latest, usual), 0.0)


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
    _pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._pace.reached(self.done, self.begun)  # earlier ones took no time

    def reach(self, done: int, now: float | None = None) -> None:
        """Say that so many parts are done. now: Default: the clock"""
        self.done = done
        self._pace.reached(done, monotonic() if now is None else now)

    def count(self, *_: object) -> None:
        """Say that one more part is done; also a callback for rounds."""
        self.reach(self.done + 1)

    def told(self, now: float) -> str:
        """Return what is done and how long it will take. now: a clock that only goes forward"""
        passed = now - self.begun
        if not self.total:
            told = f"{self.what}: {passed:.0f} s so far"
            known = self.seconds is not None and self.seconds >= 1
            return f"{told}, about {self.seconds:,.0f} CPU s in all" if known else told
        told = f"{self.what}: {self.done:,} of {self.total:,} {self.unit}"
        left = self._pace.left(self.total, now)
        return (
            f"{told}, {passed:.0f} s so far" if left is None else f"{told}, about {left:.0f} s left"
        )


_steps: list[Step] = []


@contextmanager
def step(
    what: str, total: int = 0, unit: str = "", done: int = 0, seconds: float | None = None
) -> Iterator[Step]:
    """Say that a step is going on; it may `reach` parts meanwhile."""
    new = Step(what, total, unit, done, seconds)
    _steps.append(new)
    try:
        yield new
    finally:
        _steps.remove(new)  # by identity: steps of two threads may end in any order


def now() -> Step | None:
    """Return the step that is going on; None if nobody said what is done.

    Of steps inside each other: the outermost that counts its parts, because only that one can say
    how long everything takes; else the innermost.
    """
    going_on = list(_steps)  # another thread may end one meanwhile
    counted = [one for one in going_on if one.total]
    return counted[0] if counted else going_on[-1] if going_on else None
