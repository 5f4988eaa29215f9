"""Measure a running service against yardsticks of the same run: ratios, not seconds.

    python bench/service.py [--data ml-1m] [--times 400]
    python bench/service.py --write                     into docs/service.md

The service runs in a process of its own, behind a real socket. CPU is what that process used, all
threads together; an empty route is one of FastAPI without guard, measures or ledger, served by the
same server. Syncs are raw `fdatasync` calls on a file beside the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "service.md"
BEGIN, END = "<!-- speed: python bench/service.py --write -->\n", "<!-- end of speed -->\n"
FLIGHT = 64
PEOPLE = 256
"""People whose sessions the callers use."""


# ------------------------------------------------------------------ the process that is measured


def serve_empty(port: int) -> None:
    """Serve one route that does nothing."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None)

    @app.get("/empty")
    async def empty() -> dict[str, bool]:
        return {"alive": True}

    uvicorn.run(app, port=port, log_level="error", access_log=False)


def serve(state: Path, port: int) -> None:
    """Serve a state folder; print how long its start took, and sessions to call it with."""
    import uvicorn

    from rescind.ledger import accounts
    from rescind.ledger.book import Ledger
    from rescind.service.app import create_app
    from rescind.service.callers import new_secret
    from rescind.service.settings import Settings

    before = time.process_time()
    ledger = Ledger.open(state)
    started = time.process_time() - before
    people = sorted(ledger.live.loans, key=lambda one: len(ledger.live.of(one)))
    chosen = people[len(people) // 2 - PEOPLE // 2 :][:PEOPLE]
    sessions = []
    for person in chosen:
        secret, digest = new_secret()
        ledger.submit(accounts.NewSession(digest, "person", person=person)).result()
        sessions.append((secret, ledger.catalogue.names_of(ledger.live.of(person))))
    print(json.dumps({"start": started, "sessions": sessions}), flush=True)
    settings = Settings(origin=f"http://localhost:{port}", limits=False)
    app = create_app(ledger, settings)
    uvicorn.run(app, port=port, log_level="error", access_log=False)
    ledger.close()


def fill(state: Path, name: str) -> None:
    """Make a state folder in which people lend four fifths of a dataset."""
    from rescind.ledger.book import Ledger
    from rescind.service import demonstration

    everybody = demonstration.people_of(name, say=lambda _: None)
    kept = tuple(items[np.arange(len(items)) % 5 != 4] for items in everybody.loans)
    people = demonstration.People(everybody.catalogue, kept)
    ledger = Ledger.open(state, catalogue=people.catalogue)
    demonstration.fill(ledger, people, say=lambda _: None)
    ledger.close()


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

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def started(*words: str) -> Running:
    """Start this file as a server, and wait until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *words, "--port", str(port)]
    here = {"PYTHONPATH": os.pathsep.join(sys.path[1:]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | here)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline()) if "--serve" in words else {}
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


async def answered(port: int, requests: Sequence[bytes], flight: int) -> float:
    """Send requests over so many connections; return the seconds until the last answer."""
    queue = list(reversed(requests))
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(flight)]

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while queue:
            writer.write(queue.pop())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 20"):
                raise SystemExit(f"unexpected answer: {head[:200]!r}")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)

    start = time.perf_counter()
    await asyncio.gather(*(work(*pair) for pair in pairs))
    taken = time.perf_counter() - start
    for _, writer in pairs:
        writer.close()
    return taken


def sent(server: Running, requests: Sequence[bytes], flight: int = 1) -> tuple[float, float]:
    """Return CPU seconds of the server and seconds of the clock, per request."""
    before = server.cpu()
    seconds = asyncio.run(answered(server.port, requests, flight))
    return (server.cpu() - before) / len(requests), seconds / len(requests)


def sync_seconds(folder: Path, times: int = 100) -> float:
    """Return the seconds of one raw sync of 4 KB."""
    path = folder / "yardstick"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        start = time.perf_counter()
        for _ in range(times):
            os.pwrite(handle, secrets.token_bytes(4096), 0)
            os.fdatasync(handle)
        return (time.perf_counter() - start) / times
    finally:
        os.close(handle)
        path.unlink()


# ------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    measure: str
    yardstick: str
    found: float
    goal: float
    at_least: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.found >= self.goal if self.at_least else self.found <= self.goal

    def __str__(self) -> str:
        sign, word = (">=" if self.at_least else "<="), ("met" if self.met else "**missed**")
        shown = f"{self.found:.2g}" if self.found < 0.1 else f"{self.found:.1f}"
        goal = f"{sign} {self.goal:g} {self.unit}".replace(" x", "x")
        return f"| {self.measure} | {self.yardstick} | {shown} {self.unit} | {goal} | {word} |"


def over_http(state: Path, times: int) -> tuple[list[Row], float]:
    """Measure the routes, in turns with their yardsticks; return also the CPU of the start."""
    empty, server = started("--empty"), started("--serve", str(state))
    try:
        sessions = server.said["sessions"]
        secret = [one[0] for one in sessions]
        lists = [request("GET", "/v1/me/recommendations?k=20", s) for s in secret]
        nothing = [request("GET", "/empty")] * times
        sent(empty, nothing[:100])
        sent(server, lists[:100])
        turns = [(sent(empty, nothing)[0], sent(server, lists)[0]) for _ in range(3)]
        plain, listed = median(a for a, _ in turns), median(b for _, b in turns)
        back = {s: items[:6] for s, items in sessions}
        one, rows = _changes(server, state, back, plain)
        found = [Row("recommend 20 with reasons, CPU", "empty route", listed / plain, 5)]
        return [*found, *rows, one], float(server.said["start"])
    finally:
        server.stop()
        empty.stop()


def _changes(
    server: Running, state: Path, back: dict[str, list[str]], plain: float
) -> tuple[Row, list[Row]]:
    """Take back and lend again, one by one and with 64 in flight."""

    def take(place: int) -> list[bytes]:
        path, kind = "/v1/me/requests", "unshare"
        return [
            request("POST", path, s, {"kind": kind, "items": [items[place]]})
            for s, items in back.items()
        ]

    def lend(place: int) -> list[bytes]:
        return [request("POST", "/v1/me/loans", s, {"items": [i[place]]}) for s, i in back.items()]

    sent(server, take(0)[:32])  # compile and warm up
    sent(server, lend(0)[:32])
    many: list[tuple[float, float, float, float]] = []
    for place in range(1, 4):
        sync = sync_seconds(state)
        taken = sent(server, take(place), FLIGHT)[1]
        cpu, lent = sent(server, lend(place), FLIGHT)
        many.append((sync, taken, lent, cpu))
    alone = []
    for place in range(4, 6):
        sync = sync_seconds(state)
        alone.append(sent(server, take(place)[:64])[1] / sync)
    speed = f"{FLIGHT} in flight"
    return (
        Row("take back until erased and committed, one caller", "one sync", median(alone), 8),
        [
            Row(f"lend, CPU, {speed}", "empty route", median(m[3] for m in many) / plain, 6),
            Row(
                f"lend, {speed}", "syncs per s", median(m[0] / m[2] for m in many), 3, at_least=True
            ),
            Row(
                f"take back, {speed}",
                "syncs per s",
                median(m[0] / m[1] for m in many),
                2,
                at_least=True,
            ),
        ],
    )


def cpu_of(call: Callable[[], Any], times: int = 1) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def of_the_sum(name: str, start: float) -> list[Row]:
    """Measure the sum and a release against one solve of the same sum."""
    from rescind.methods.additive._live_release import Form, release_of
    from rescind.methods.additive._live_sum import LiveSum
    from rescind.service import demonstration

    people = demonstration.people_of(name, say=lambda _: None)
    live = LiveSum(len(people.catalogue))
    parts = [items[np.arange(len(items)) % 5 != 4].astype(np.int32) for items in people.loans]
    live.load({n.to_bytes(16, "big"): items for n, items in enumerate(parts)})
    form = Form()
    sums = live.sums
    release_of(sums, form)  # compile
    solve = median(cpu_of(lambda: sums.inverse(form.solving.ridges)) for _ in range(2))
    made = median(cpu_of(lambda: release_of(sums, form)) for _ in range(2))
    some = [n for n in range(0, len(parts), max(1, len(parts) // 200)) if len(parts[n])]
    none = np.empty(0, np.int32)
    live.change(some[0].to_bytes(16, "big"), parts[some[0]], none)

    def leave() -> None:
        for n in some[1:]:
            live.change(n.to_bytes(16, "big"), parts[n], none)

    left = cpu_of(leave) / (len(some) - 1)
    loans = sum(map(len, parts))
    return [
        Row("sum without a person", "solve", left / solve, 0.001),
        Row("release", "solve", made / solve, 2.5),
        Row(f"start with {loans:,} loans, CPU", "solve", start / solve, 2),
    ]


def of_the_log() -> list[Row]:
    """Measure the log against hashing."""
    from rescind.proof.notes import Proof
    from rescind.proof.tlog import Tree

    data, count = secrets.token_bytes(64), 1_000_000
    hashed = cpu_of(lambda: [hashlib.sha256(data).digest() for _ in range(100_000)]) / 100_000
    tree, entry = Tree(), secrets.token_bytes(33)
    appended = cpu_of(lambda: [tree.append(entry) for _ in range(count)]) / count
    verified = cpu_of(tree.root)
    path: list[bytes] = []

    def prove() -> None:
        path[:] = tree.inclusion(secrets.randbelow(count))

    proved = cpu_of(prove, 200)
    size = len(str(Proof(count - 1, tuple(path), "x" * 300)))
    return [
        Row("log: append", "SHA-256 of 64 bytes", appended / hashed, 3),
        Row("log: root of 1,000,000 leaves", "-", verified, 5, unit="s"),
        Row("inclusion proof", "-", 1000 * proved, 2, unit="ms"),
        Row("its size", "-", size / 1000, 4, unit="KB"),
    ]


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--data", default="ml-1m")
    words.add_argument("--times", type=int, default=400)
    words.add_argument("--write", action="store_true", help="write the table into the page")
    for hidden in ("--empty", "--serve", "--fill"):
        more: dict[str, Any] = {"action": "store_true"} if hidden == "--empty" else {"type": Path}
        words.add_argument(hidden, help=argparse.SUPPRESS, **more)
    words.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.empty:
        return serve_empty(given.port)
    if given.serve:
        return serve(given.serve, given.port)
    with tempfile.TemporaryDirectory(prefix="rescind-bench-") as folder:
        state = Path(folder) / "state"
        fill(state, given.data)
        rows, start = over_http(state, given.times)
        rows += of_the_sum(given.data, start)
    rows += of_the_log()
    head = f"| {given.data} | yardstick | found | goal | |\n|---|---|---|---|---|\n"
    made = head + "".join(f"{row}\n" for row in rows)
    print(made)
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + made + END + rest.split(END)[1], encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
