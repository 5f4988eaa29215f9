"""Answers that do not end: the start of one, then its parts as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from doors import Browser
from rescind.service.callers import COOKIE


@dataclass
class Stream:
    """What came so far."""

    status: int = 0
    parts: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def next(self) -> str:
        """Return the next part, or fail after two seconds."""
        return (await asyncio.wait_for(self.parts.get(), 2)).decode()


@asynccontextmanager
async def opened_stream(caller: Browser, path: str) -> AsyncIterator[Stream]:
    """Open a stream, and hang up at the end of the block."""
    stream, begun, gone = Stream(), asyncio.Event(), asyncio.Event()
    headers = [(b"host", b"localhost:8000")]
    if caller.secret:
        headers.append((b"cookie", f"{COOKIE}={caller.secret}".encode()))
    if caller.bearer:
        headers.append((b"authorization", f"Bearer {caller.bearer}".encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": (caller.address, 1),
        "server": ("localhost", 8000),
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            stream.status = message["status"]
            begun.set()
        elif message.get("body"):
            stream.parts.put_nowait(message["body"])

    task = asyncio.create_task(caller.house.app(scope, receive, send))
    await asyncio.wait_for(begun.wait(), 5)
    try:
        yield stream
    finally:
        gone.set()
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(task, 5)
