"""Progress bars on stderr; if stderr is not a terminal, a line per measurement or ten seconds."""

from __future__ import annotations

import math
import sys
import threading
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING

from rescind.core import doing
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.core.run_state import RoundResult


EVERY = 10.0
"""Seconds between lines where stderr is no terminal."""
EACH = 1.0
"""Seconds between looks at what is done, on a terminal."""
BEFORE, AFTER = "the first round, which also compiles", "evaluating and saving"


class RoundBar(AbstractContextManager["RoundBar"]):
    """A progress callback that shows the round and the last validation result.

    rounds: None if the total is not known; then the calls are counted    after: what is done when
    all rounds are
    """

    def __init__(
        self, title: str, rounds: int | None, measure: str = "NDCG@20", after: str = AFTER
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self.title, self.rounds, self.measure, self.after = title, rounds, measure, after
        self.terminal = sys.stderr.isatty()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            Left(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            disable=not self.terminal,
        )
        self.task = self.bar.add_task(title, total=rounds, status="")
        self.calls = self.at = 0
        self.begun = self.latest = monotonic()
        self.pace = doing.Pace()
        self._ended = threading.Event()
        self._speaker = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> RoundBar:
        self.bar.start()
        self.bar.update(self.task, status=BEFORE)
        if not self.terminal:
            total = "" if self.rounds is None else f": {count_of(self.rounds, 'round')}"
            print(f"{self.title}{total}", file=sys.stderr, flush=True)
        self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.bar.stop()

    def _speak(self) -> None:
        """Say every ten seconds what is going on, so that nobody waits in silence."""
        while not self._ended.wait(EACH if self.terminal else EVERY):
            if not self.terminal:
                print(f"  {self.told(monotonic())}", file=sys.stderr, flush=True)
            elif step := doing.now():
                self.bar.update(self.task, status=step.told(monotonic()))

    def told(self, now: float) -> str:
        """Return a line about what is going on. now: seconds of a clock that only goes forward"""
        if step := doing.now():
            return step.told(now)
        if not self.calls:
            return f"{BEFORE}: {now - self.begun:.0f} s so far"
        if self.at == self.rounds:
            return f"{self.after}: {now - self.latest:.0f} s so far"
        if self.rounds is None or self.at > self.rounds:  # a method that repeats rounds
            return f"round {self.at}: {now - self.begun:.0f} s so far"
        left = self.pace.left(self.rounds, now)
        told = "" if left is None else f", about {left:.0f} s left"
        return f"round {self.at} of {self.rounds}{told}"

    def __call__(self, result: RoundResult) -> None:
        self.calls += 1
        at = result.now.state.round
        self._show(result, self.calls if self.rounds is None else at, f"round {at}")

    def _show(self, result: RoundResult, at: int, where: str) -> None:
        status, self.at = self.after if at == self.rounds else "", at
        self.latest = monotonic()
        self.pace.reached(at, self.latest)
        history = result.until.history if result.until else ()
        if history and math.isnan(history[-1][1][self.measure]):  # no held-out rows
            history = ()
        if history:
            measured = f"valid {self.measure} {history[-1][1][self.measure]:.4f}"
            status = f"{measured}, {status}" if status else measured
        self.bar.update(self.task, completed=at, status=status)
        # A run that resumes has earlier measurements, which were told before.
        if not self.terminal and history and history[-1][0] == result.now.state.round:
            print(f"  {where}: {measured}", file=sys.stderr, flush=True)


class BlockBar(RoundBar):
    """A progress callback for streams; the bar restarts with every block."""

    block, start = -1, 0

    def __call__(self, result: RoundResult) -> None:
        self.calls += 1
        block, at = result.now.vault.holdings.now, result.now.state.round
        if block != self.block:
            history = result.until.history if result.until else ()
            self.block, self.start = block, (history[0][0] if history else at) - 1
            self.bar.reset(self.task, description=f"{self.title}, block {block}", status="")
            self.pace = doing.Pace()
        self._show(result, at - self.start, f"block {block}, round {at - self.start}")
