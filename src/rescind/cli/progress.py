"""Progress of long commands."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Self

import typer

from rescind.core import doing

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (.+)")
_REQUEST = re.compile(r"request \d+ of \d+")
_ROUND = re.compile(r"round (\d+):")
EVERY = 10.0
"""Seconds between lines where stderr is no terminal."""
EACH = 1.0
"""Seconds between looks at what is done, on a terminal."""


class Bar:
    """Progress bar on stderr. Without a terminal, subclasses print lines instead."""

    def __init__(self, title: str, unit: str | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self.terminal = sys.stderr.isatty()
        units = [TextColumn(unit)] if unit else []
        head = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        self.bar = Progress(*head, *units, Left(), console=console, disable=not self.terminal)
        self.task = self.bar.add_task(title, total=None)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


class Steps:
    """A bar with an estimate for known steps; without a terminal, a line every ten seconds.

    Call it with steps done, steps in all, and what is done now.
    """

    def __init__(self, title: str, unit: str = "steps") -> None:
        self.title, self.unit = title, unit
        self._shown = Bar(title, unit)
        self._pace, self._said = doing.Pace(), monotonic()

    def __enter__(self) -> Self:
        self._shown.__enter__()
        if not self._shown.terminal:
            print(self.title, file=sys.stderr, flush=True)
        return self

    def __exit__(self, *problem: object) -> None:
        self._shown.__exit__(*problem)

    def __call__(self, done: int, total: int, what: str = "") -> None:
        self._shown.bar.update(self._shown.task, completed=done, total=total)
        now = monotonic()
        self._pace.reached(done, now)
        if not self._shown.terminal and (now - self._said >= EVERY or done == total):
            self._said = now
            left = self._pace.left(total, now)
            told = "" if left is None else f", about {left:.0f} s left"
            print(
                f"  {done:,} of {total:,} {self.unit}{told} {what}".rstrip(),
                file=sys.stderr, flush=True,
            )  # fmt: skip


class Countdown:
    """Says after each long step how many are done, and how long the others will take."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self.what, self._clock = what, clock
        self._first: tuple[int, float] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        first, begun = self._first = self._first or (done, now)
        left = ""
        if first < done < total:  # those that were found from an earlier time took none
            left = f", about {(now - begun) / (done - first) * (total - done):.0f} s left"
        typer.echo(f"  {done} of {total} {self.what}{left}", err=True)


class Followed:
    """Reads from a log that another process writes what that process does now."""

    def __init__(self, log: Path, rounds: int | None = None) -> None:
        self._log, self._rounds = log, rounds
        self._read = log.stat().st_size if log.is_file() else 0  # of earlier runs in this folder
        self._last, self._request = "waiting for the server", ""

    def told(self) -> str:
        """Return the last line of the log without its time."""
        if self._log.is_file():
            with self._log.open("rb") as file:
                file.seek(self._read)
                lines, end, _ = file.read().rpartition(b"\n")  # the last one may not be whole
            self._read += len(lines) + len(end)
            for line in lines.decode("utf-8", "replace").splitlines():
                if found := _LOGGED.match(line):
                    self._last = found.group(1)
                    if _REQUEST.fullmatch(self._last):
                        self._request = f"{self._last}, "
        if (found := _ROUND.match(self._last)) and self._rounds:
            at = int(found.group(1))
            of = f" of {self._rounds}" if at <= self._rounds else ""
            return f"{self._request}round {at}{of}"
        return self._last


@contextmanager
def working(title: str) -> Iterator[Callable[[str], None]]:
    """Show that work of unknown length is going on: a spinner, or a line every ten seconds.

    Parts of it that count themselves (`core.doing`) are told with their fraction and an estimate.
    yields: a function that takes what is done now
    """
    said, ended, begun = [title], threading.Event(), monotonic()
    terminal = sys.stderr.isatty()

    def told(now: float) -> str:
        if step := doing.now():
            return f"{said[0]}: {step.told(now)}"
        return said[0] if terminal else f"{said[0]}: {now - begun:.0f} s so far"

    def speak(show: Callable[[str], object]) -> None:
        while not ended.wait(EACH if terminal else EVERY):
            show(told(monotonic()))

    with ExitStack() as stack:
        show: Callable[[str], object] = _line
        if terminal:
            from rich.console import Console

            show = stack.enter_context(Console(stderr=True).status(title)).update
        thread = threading.Thread(target=speak, args=(show,), daemon=True)
        thread.start()

        def say(text: str) -> None:
            said[0] = text
            if terminal:
                show(text)

        try:
            yield say
        finally:
            ended.set()
            thread.join()


def _line(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
