"""The processes that `bench/service.py` measures, and callers who send them requests.

    python bench/service_calls.py empty PORT            one route that does nothing
    python bench/service_calls.py serve PORT STATE [SYNC]

SYNC: seconds that every sync takes at least, for a disk that is slower than this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

PEOPLE = 256
"""People whose sessions the callers use."""
NEVER = 10**9
"""People and hours until a release: none is made while something else is measured."""


# ------------------------------------------------------------------ the processes


def serve_empty(port: int) -> None:
    """Serve one route that does nothing."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None)

    @app.get("/empty")
    async def empty() -> dict[str, bool]:
        return {"alive": True}

    uvicorn.run(app, port=port, log_level="error", access_log=False)


def serve(port: int, state: Path, sync: float) -> None:
    """Serve a state folder; print how long its start took, and sessions to call it with."""
    from rescind.ledger.book import Ledger
    from rescind.ledger.options import Options
    from rescind.service import connections
    from rescind.service.app import create_app
    from rescind.service.policy import Settings

    before = time.process_time()
    ledger = Ledger.open(state, options=replace(Options(), people=NEVER, hours=NEVER // 1000))
    started = time.process_time() - before
    print(json.dumps({"start": started, **_sessions(ledger)}), flush=True)
    if sync:
        slow_down(ledger, sync)
    settings = Settings(origin=f"http://localhost:{port}", changes=NEVER)
    with socket.create_server(("127.0.0.1", port)) as listening:
        connections.server(create_app(ledger, settings), settings).run(sockets=[listening])
    ledger.close()


def _sessions(ledger: Any) -> dict[str, Any]:
    """Make sessions of people who lend about as much as half of the others, and an operator's."""
    from rescind.ledger import accounts
    from rescind.service.callers import new_secret

    people = sorted(ledger.live.loans, key=lambda one: len(ledger.live.of(one)))
    sessions = []
    for person in people[len(people) // 2 - PEOPLE // 2 :][:PEOPLE]:
        secret, digest = new_secret()
        ledger.submit(accounts.NewSession(digest, "person", person=person)).result()
        mine = ledger.live.of(person)
        others = np.setdiff1d(np.arange(len(ledger.catalogue)), mine)[:64]
        names = ledger.catalogue.names_of
        sessions.append((secret, names(mine.tolist()), names(others.tolist())))
    secret, digest = new_secret()
    new = accounts.NewSession(digest, "operator", operator=secrets.token_bytes(16))
    ledger.submit(new).result()
    return {"sessions": sessions, "operator": secret}


def slow_down(ledger: Any, least: float) -> None:
    """Make every sync of keys and every commit take at least so many seconds."""
    from sqlalchemy import event

    os.fdatasync = slow_sync(least)
    # SQLite syncs inside its commit, where nobody can wait. So the wait comes before it.
    event.listen(ledger.store.writing, "commit", lambda _: time.sleep(least))


def slow_sync(least: float) -> Any:
    """Return a sync that takes at least so many seconds."""
    sync = os.fdatasync

    def slowly(file: int) -> None:
        end = time.perf_counter() + least
        sync(file)
        time.sleep(max(0.0, end - time.perf_counter()))

    return slowly


# ------------------------------------------------------------------ calling


@dataclass
class Running:
    """A server process, and what it printed first."""

    process: subprocess.Popen[bytes]
    port: int
    said: dict[str, Any]

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def children(self) -> list[int]:
        """Return the ids of the processes that it started."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(one) for task in tasks for one in (task / "children").read_text().split()]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def started(kind: str, *words: str) -> Running:
    """Start this file as a server, and wait until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, kind, str(port), *words]
    here = {"PYTHONPATH": os.pathsep.join(sys.path[1:]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | here)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline()) if kind == "serve" else {}
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return Running(process, port, said)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def request(method: str, path: str, secret: str = "", body: Any = None) -> bytes:
    """Return the bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "sec-fetch-site: same-origin"]
    if secret:
        lines.append(f"cookie: __Host-rescind={secret}")
    text = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        lines += [
            f"content-length: {len(text)}",
            "content-type: application/json",
            f"idempotency-key: {secrets.token_hex(16)}",
        ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


@dataclass(frozen=True)
class Sent:
    """What requests took, each, and what the last one was answered."""

    cpu: float
    """Seconds of the server's CPU."""
    seconds: float
    """Seconds of the clock."""
    answer: Any = None


def sent(server: Running, requests: Sequence[bytes], flight: int = 1) -> Sent:
    """Send requests over so many connections, which are open before anything is counted."""
    return asyncio.run(_sent(server, requests, flight))


async def _sent(server: Running, requests: Sequence[bytes], flight: int) -> Sent:
    queue, bodies = list(reversed(requests)), [b""]
    pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(flight)]

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while queue:
            writer.write(queue.pop())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            bodies[0] = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 20"):
                raise SystemExit(f"unexpected answer: {head[:100]!r} {bodies[0][:300]!r}")

    await asyncio.sleep(0.05)  # the server accepts them
    before, start = server.cpu(), time.perf_counter()
    await asyncio.gather(*(work(*pair) for pair in pairs))
    taken, used = time.perf_counter() - start, server.cpu() - before
    for _, writer in pairs:
        writer.close()
    return Sent(used / len(requests), taken / len(requests), json.loads(bodies[0]))


def sync_seconds(folder: Path, least: float = 0.0, times: int = 50) -> float:
    """Return the seconds of one raw sync of 4 KB. least: what it takes at the very least"""
    path = folder / "yardstick"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    sync = slow_sync(least) if least else os.fdatasync
    try:
        start = time.perf_counter()
        for _ in range(times):
            os.pwrite(handle, secrets.token_bytes(4096), 0)
            sync(handle)
        return (time.perf_counter() - start) / times
    finally:
        os.close(handle)
        path.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "empty":
        serve_empty(int(sys.argv[2]))
    else:
        serve(int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4] if sys.argv[4:] else 0))
