"""Answers on their way from the writer's thread to the loop of the doors, many at a time.

The writer answers a batch of callers at once. Waking the loop for each of them takes longer than
the answer, so the loop is woken once and hands out whatever has arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from rescind.ledger.batch import Answer, Tell

_Waiting = asyncio.Future[Answer]


class Arriving:
    """Hands answers to those who wait on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[_Waiting, Answer | BaseException]] = deque()
        self._woken = False

    def expect(self) -> tuple[_Waiting, Tell]:
        """Return what the caller waits for, and what tells it. Any thread may call the latter."""
        waiting: _Waiting = self.loop.create_future()

        def tell(outcome: Answer | BaseException) -> None:
            self._arrived.append((waiting, outcome))
            if not self._woken:  # else the loop has yet to begin handing out: it takes this, too
                self._woken = True
                with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    self.loop.call_soon_threadsafe(self._hand_out)

        return waiting, tell

    def _hand_out(self) -> None:
        self._woken = False  # first: what arrives from now on wakes the loop again
        while self._arrived:
            waiting, outcome = self._arrived.popleft()
            if waiting.done():  # given up
                continue
            if isinstance(outcome, Answer):
                waiting.set_result(outcome)
            else:
                waiting.set_exception(outcome)
