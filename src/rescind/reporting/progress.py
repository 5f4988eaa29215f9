"""Progress bars on stderr; where stderr is no terminal, a line per measurement."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rescind.core.run_state import RoundResult


class RoundBar(AbstractContextManager["RoundBar"]):
    """Shows how far a run is and what validation last said. Used as a watcher.

    rounds: None where nobody knows how many there will be; then those that were seen are counted
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
            TextColumn("{task.fields[said]}"),
            console=Console(stderr=True),
            disable=not self.terminal,
        )
        self.task = self.bar.add_task(title, total=rounds, said="")
        self.seen = self.made = 0

    def __enter__(self) -> RoundBar:
        self.bar.start()
        if not self.terminal:
            many = "" if self.rounds is None else f": {self.rounds} rounds"
            print(f"{self.title}{many}", file=sys.stderr, flush=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def __call__(self, moment: RoundResult) -> None:
        self.made += 1
        at = moment.now.state.round
        self._show(moment, self.made if self.rounds is None else at, f"round {at}")

    def _show(self, moment: RoundResult, at: int, where: str) -> None:
        said = ""
        history = moment.until.history if moment.until else ()
        if history:
            said = f"valid {self.measure} {history[-1][1][self.measure]:.4f}"
        self.bar.update(self.task, completed=at, said=said)
        if not self.terminal and len(history) > self.seen:
            print(f"  {where}: {said}", file=sys.stderr, flush=True)
        self.seen = len(history)


class BlockBar(RoundBar):
    """Shows the rounds of each block of a stream; the bar begins anew with every block."""

    block, begun = -1, 0

    def __call__(self, moment: RoundResult) -> None:
        block, at = moment.now.vault.holdings.now, moment.now.state.round
        if block != self.block:  # a run that goes on inside a block has measured rounds behind it
            history = moment.until.history if moment.until else ()
            self.block, self.begun = block, (history[0][0] if history else at) - 1
            self.seen = max(len(history) - 1, 0)
            self.bar.reset(self.task, description=f"{self.title}, block {block}", said="")
        self._show(moment, at - self.begun, f"block {block}, round {at - self.begun}")
