"""Progress bars on stderr; if stderr is not a terminal, a line per measurement."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rescind.core.run_state import RoundResult


class RoundBar(AbstractContextManager["RoundBar"]):
    """A progress callback that shows the round and the last validation result.

    rounds: None if the total is not known; then the calls are counted
    """

    def __init__(self, title: str, rounds: int | None, measure: str = "NDCG@20") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self.title, self.rounds, self.measure = title, rounds, measure
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
        self.measured = self.calls = 0

    def __enter__(self) -> RoundBar:
        self.bar.start()
        if not self.terminal:
            total = "" if self.rounds is None else f": {self.rounds} rounds"
            print(f"{self.title}{total}", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, result: RoundResult) -> None:
        self.calls += 1
        at = result.now.state.round
        self._show(result, self.calls if self.rounds is None else at, f"round {at}")

    def _show(self, result: RoundResult, at: int, where: str) -> None:
        status = ""
        history = result.until.history if result.until else ()
        if history:
            status = f"valid {self.measure} {history[-1][1][self.measure]:.4f}"
        self.bar.update(self.task, completed=at, status=status)
        if not self.terminal and len(history) > self.measured:
            print(f"  {where}: {status}", file=sys.stderr, flush=True)
        self.measured = len(history)


class BlockBar(RoundBar):
    """A progress callback for streams; the bar restarts with every block."""

    block, start = -1, 0

    def __call__(self, result: RoundResult) -> None:
        block, at = result.now.vault.holdings.now, result.now.state.round
        if block != self.block:  # a run resumed inside a block has earlier measurements
            history = result.until.history if result.until else ()
            self.block, self.start = block, (history[0][0] if history else at) - 1
            self.measured = max(len(history) - 1, 0)
            self.bar.reset(self.task, description=f"{self.title}, block {block}", status="")
        self._show(result, at - self.start, f"block {block}, round {at - self.start}")
