"""Ask ten times too much of a service for an hour, and compare: nothing lost, nothing kept.

    python tests/slow/soak_service.py --minutes 60
    python tests/slow/soak_service.py --minutes 2 --leak 4096      # must fail

Sixteen people call ten times as often as one session may: they lend, take back, look at their list.
Releases are made all along. Every answer must be an answer of success, 429 or 503, and a request to
take back is never refused. At the end everybody lends what was acknowledged, and the process holds
at most 5 % more memory than after the first tenth.

Ends with `broken 0, refused take-backs 0, lost 0, memory + 1.2 %`; exit code 1 if it is too much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "helpers"), str(ROOT / "bench")]

from service_calls import request  # noqa: E402

PEOPLE = 16
PER_MINUTE = 120
"""Calls of one kind that a session may make."""
OVERLOAD = 10
MOST_MEMORY = 5.0
"""Per cent that the process may grow."""


# ------------------------------------------------------------------ the service


def serve(port: int, state: Path, leak: int) -> None:
    """Serve forty films to the people, in this process. leak: bytes to keep of every call."""
    import uvicorn

    from rescind.ledger import accounts
    from rescind.ledger.book import Ledger
    from rescind.ledger.lending import Join, Lend
    from rescind.service.app import create_app
    from rescind.service.callers import new_secret
    from rescind.service.policy import Settings
    from served import CATALOGUE, ITEMS, OPTIONS, likes

    ledger = Ledger.open(state, catalogue=CATALOGUE, options=replace(OPTIONS, people=PEOPLE))
    said = []
    for number in range(PEOPLE):
        person = bytes.fromhex(ledger.submit(Join()).result().body["person"])
        loans = likes(number, ITEMS)
        ledger.submit(Lend(person, tuple(loans))).result()
        secret, digest = new_secret()
        ledger.submit(accounts.NewSession(digest, "person", person=person)).result()
        said.append((secret, [CATALOGUE.ids[one] for one in loans]))
    print(json.dumps(said), flush=True)
    app = create_app(ledger, Settings(origin=f"http://localhost:{port}"))
    kept: list[bytearray] = []

    async def called(scope: Any, receive: Any, send: Any) -> None:
        kept.append(bytearray(leak))
        await app(scope, receive, send)

    uvicorn.run(called if leak else app, port=port, log_level="error", access_log=False)
    ledger.close()


# ------------------------------------------------------------------ those who call


@dataclass
class Found:
    """What came back."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Kilobytes, once a second."""
    lost: int = 0

    @property
    def refused(self) -> int:
        """How many requests to take back were refused."""
        return self.answers["take back", 429]

    @property
    def growth(self) -> float:
        """Per cent between the first tenth and the last."""
        tenth = max(1, len(self.memory) // 10)
        before, after = max(self.memory[tenth : 2 * tenth]), max(self.memory[-tenth:])
        return 100 * (after / before - 1)

    @property
    def clean(self) -> bool:
        """Whether everything holds, and the overload was one."""
        wrong = len(self.broken) + self.refused + self.lost
        return not wrong and self.growth <= MOST_MEMORY and self.answers["lend", 429] > 0

    def __str__(self) -> str:
        return (
            f"broken {len(self.broken)}, refused take-backs {self.refused}, lost {self.lost}, "
            f"memory + {self.growth:.1f} %"
        )


class Caller:
    """One person: sends, waits for the answer, and remembers what was acknowledged."""

    def __init__(self, port: int, secret: str, loans: list[str], found: Found) -> None:
        self.port, self.secret, self.loans, self.found = port, secret, set(loans), found
        self.all = [f"film-{n}" for n in range(40)]
        self.turn = 0

    async def until(self, end: float) -> None:
        """Call until then, ten times as often as is allowed."""
        pause = 60 / (OVERLOAD * PER_MINUTE)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while (began := time.monotonic()) < end:
            await self._once(reader, writer)
            await asyncio.sleep(max(0.0, began + pause - time.monotonic()))
        writer.close()
        await self._compare()

    async def _compare(self) -> None:
        """Count what is lent and was not acknowledged, or the other way round."""
        status, asked = 429, request("GET", "/v1/me/loans", self.secret)
        while status == 429:  # a session reads again after a minute
            await asyncio.sleep(5)
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            status, body = await self._sent(reader, writer, "look", asked)
            writer.close()
        self.found.lost += len(self.loans ^ {one["id"] for one in json.loads(body)["items"]})

    async def _once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.turn += 1
        if self.turn % 5 == 0 and self.loans:  # more often than is allowed: slowed, not refused
            item = min(self.loans)
            sent = {"kind": "unshare", "items": [item]}
            asked = request("POST", "/v1/me/requests", self.secret, sent)
            status, _ = await self._sent(reader, writer, "take back", asked)
            self.loans -= {item} if status == 202 else set()
        elif self.turn % 2:
            item = self.all[self.turn * 7 % len(self.all)]
            asked = request("POST", "/v1/me/loans", self.secret, {"items": [item]})
            status, _ = await self._sent(reader, writer, "lend", asked)
            self.loans |= {item} if status in (200, 201) else set()
        else:
            asked = request("GET", "/v1/me/recommendations?k=5", self.secret)
            await self._sent(reader, writer, "look", asked)

    async def _sent(self, reader: Any, writer: Any, kind: str, asked: bytes) -> tuple[int, bytes]:
        writer.write(asked)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        status = int(head.split()[1])
        self.found.answers[kind, status] += 1
        fine = 200 <= status < 300 or (status in (429, 503) and b"retry-after: " in head)
        if not fine:
            self.found.broken.append(f"{kind}: {head[:60]!r} {body[:200]!r}")
        return status, body


async def soaked(port: int, pid: int, people: list[Any], minutes: float) -> Found:
    """Call for so many minutes; return what came back."""
    found, end = Found(), time.monotonic() + 60 * minutes

    async def weighed() -> None:
        while time.monotonic() < end:
            status = Path(f"/proc/{pid}/status").read_text()
            found.memory.append(int(status.split("VmRSS:")[1].split()[0]))
            await asyncio.sleep(1)

    callers = [Caller(port, secret, loans, found) for secret, loans in people]
    await asyncio.gather(weighed(), *(one.until(end) for one in callers))
    return found


def main() -> None:
    """Run, print the verdict, and end with its code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--leak", type=int, default=0, help="bytes that the service keeps per call")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "STATE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(int(given.serve[0]), Path(given.serve[1]), given.leak)
        return
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="rescind-soak-") as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        state = str(Path(folder) / "state")
        command = [sys.executable, __file__, "--leak", str(given.leak), "--serve", str(port), state]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            people = json.loads(process.stdout.readline())
            _listening(port)
            found = asyncio.run(soaked(port, process.pid, people, given.minutes))
        finally:
            process.terminate()
            process.wait()
    for fault in found.broken[:5]:
        print(fault)
    for (kind, status), number in sorted(found.answers.items()):
        print(f"{kind}: {number:,} x {status}")
    print(found)
    sys.exit(0 if found.clean else 1)


def _listening(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


if __name__ == "__main__":
    main()
