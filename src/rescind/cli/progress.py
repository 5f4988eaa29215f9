"""Progress and interrupts of long commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import typer

RESUME = "\nstopped. To resume, give the same command."


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


@contextmanager
def interruptible(message: str = RESUME) -> Iterator[None]:
    """End an interrupted command with this message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message, err=True)
        raise typer.Exit(130) from None
