"""How a long command ends when it is stopped, by Ctrl-C (SIGINT) or by SIGTERM: one way for both.

Whatever cleans up after an interrupt also cleans up after SIGTERM, because it arrives as one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells have it."""
TERMINATED = 143
"""Exit code of a command that got SIGTERM, as shells have it."""
SAME = "To go on, give the same command."


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


class _Told:
    """What is known of the end of this command."""

    code = INTERRUPTED
    said = False


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does. A second one is not heard: it ends already."""
    _Told.code, _Told.said = INTERRUPTED, False
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _Told.code = TERMINATED
        raise Terminated

    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) in (heard, signal.SIG_IGN):
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def interruptible(kept: str = "What is finished is kept.", go_on: str = SAME) -> Iterator[None]:
    """End a stopped command with one line that says what was kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(kept, go_on)
        raise typer.Exit(_Told.code) from None


def say(kept: str, go_on: str = SAME) -> None:
    """Say once what was kept and how to go on."""
    if not _Told.said:
        typer.echo(f"\nstopped. {kept} {go_on}".rstrip(), err=True)
    _Told.said = True


def code_of(stop: SystemExit) -> int | str | None:
    """Return the exit code of a command, and say that it was stopped if nobody did."""
    if stop.code not in (INTERRUPTED, TERMINATED):
        return stop.code
    say("Give the same command to begin again.", "")
    return _Told.code
