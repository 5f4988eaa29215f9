"""Releases that an operator asks for: made beside the routes, because solving takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rescind.service import problems


class ReleaseNow:
    """What became of the last one that was asked for."""

    def __init__(self) -> None:
        self._outcome: dict[str, Any] | None = None
        self._running: list[asyncio.Future[None]] = []

    def start(self, make: Callable[[], dict[str, Any]], asked: str | None) -> None:
        """Begin to make one, in a thread. make: returns its number    asked: the time"""
        self._running = [one for one in self._running if not one.done()]
        loop = asyncio.get_running_loop()
        self._running.append(loop.run_in_executor(None, self._make, make, asked))

    def _make(self, make: Callable[[], dict[str, Any]], asked: str | None) -> None:
        try:
            self._outcome = {"state": "made", **make(), "asked_at": asked}
        except Exception as error:
            why = problems.of(error).detail
            self._outcome = {"state": "failed", "why": why, "asked_at": asked}

    def state(self) -> dict[str, Any] | None:
        """Return `making`, or how the last one ended; None: none was asked for."""
        making = any(not one.done() for one in self._running)
        return {"state": "making"} if making else self._outcome

    async def settled(self) -> None:
        """Wait until nothing is being made."""
        await asyncio.gather(*self._running)
