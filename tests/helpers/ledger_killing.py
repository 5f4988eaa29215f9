"""Writers that send changes to a ledger which is killed meanwhile, and what must hold then."""

from __future__ import annotations

import json
import os
import queue
import random  # noqa: TID251  when to kill; nothing is learnt from it
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledgers import Loans, kept, opened
from rescind.ledger.kept_part import name_of
from rescind.ledger.options import Options
from rescind.ledger.tables import named_slots

CHILD = Path(__file__).with_name("ledger_child.py")
ITEMS = 20


class Server:
    """A ledger in a process that can be killed and started again."""

    def __init__(self, state: Path, *more: str) -> None:
        self.place = str(state.parent / "ledger.sock")
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(state), self.place, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.pid = 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def start(self, failpoint: str | None = None) -> None:
        """Start a ledger and wait until it listens; a failpoint may end it before."""
        assert self._process.stdin is not None
        if failpoint:
            self._process.stdin.write(f"name {failpoint}\n")
        self._process.stdin.write("start\n")
        self._process.stdin.flush()
        said = self._lines.get(timeout=60)
        assert said.startswith("ready "), said
        self.pid = int(said.split()[1])

    def kill(self) -> None:
        """Kill it as a power failure of the process would, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        said = self._lines.get(timeout=60)
        assert said.startswith("ended "), said
        return int(said.split()[1])

    def ask(self, **asked: Any) -> dict[str, Any] | None:
        """Send one request on a connection of its own; None if there was no answer."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(30)
                connection.connect(self.place)
                connection.sendall(json.dumps(asked).encode() + b"\n")
                line = connection.makefile("rb").readline()
        except OSError:
            return None
        return json.loads(line) if line else None

    def close(self) -> None:
        """End everything."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(30)


@dataclass
class Writer:
    """One person who changes their loans, and what they were told."""

    number: int
    ask: Callable[..., dict[str, Any] | None]
    random: random.Random
    person: str = ""
    lent: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    """What their browser keeps and has sent to the sum."""
    acknowledged: list[tuple[int, str, int]] = field(default_factory=list)
    """seq, kind, number of items: in the order of their answers"""
    people: list[tuple[str, set[int]]] = field(default_factory=list)
    """People of before, who left, and the person of now."""
    faults: list[str] = field(default_factory=list)
    left: int = 0
    sent: int = 0

    def run(self, stop: threading.Event) -> None:
        """Change something again and again; what got no answer is sent again with its key."""
        while not stop.is_set():
            if not self.person:
                self.person = self._sent(do="join")["body"]["person"]
                self.lent, self.kept = set(), set()
            self._change()

    def _change(self) -> None:
        away = set(range(ITEMS)) - self.lent
        choice = self.random.random()
        if choice < 0.05:
            self._acknowledge(self._sent(do="leave", person=self.person))
            self.people.append((self.person, set()))
            self.person = ""
            self.left += 1
        elif away and choice < 0.25:
            items = self.random.sample(sorted(away), min(len(away), self.random.randint(1, 6)))
            old = sorted(self.kept)
            asked = {"do": "contribute", "person": self.person, "old": old, "items": items}
            self._acknowledge(self._sent(**asked))
            self.kept = set(items)
        elif away and (choice < 0.65 or not self.lent):
            items = self.random.sample(sorted(away), min(len(away), self.random.randint(1, 4)))
            self._acknowledge(self._sent(do="lend", person=self.person, items=items))
            self.lent |= set(items)
            self.kept -= set(items)
        elif self.lent:
            there = sorted(self.lent | self.kept)
            items = self.random.sample(there, min(len(there), 2))
            kind = self.random.choice(("unshare", "erase"))
            self._acknowledge(self._sent(do=kind, person=self.person, items=items))
            self.lent -= set(items)
            self.kept -= set(items)

    def _sent(self, **asked: Any) -> dict[str, Any]:
        self.sent += 1
        key = f"writer-{self.number}-{self.sent:012d}"
        while True:
            found = self.ask(key=key, **asked)
            if found is None or found["status"] in (409, 503, 507):
                time.sleep(0.01)
                continue
            if found["status"] >= 300:
                self.faults.append(f"{asked['do']}: {found}")
            return found

    def _acknowledge(self, found: dict[str, Any]) -> None:
        if "acknowledgement" in found["body"]:
            said = found["body"]["acknowledgement"]
            self.acknowledged.append((said["seq"], said["kind"], said["leaf"]))


@dataclass
class Verdict:
    """What is wrong after kills. All zero: nothing."""

    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    unopened: int = 0
    keys_without_box: int = 0
    unfinished: int = 0
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0

    @property
    def clean(self) -> bool:
        return not (
            self.lost
            + self.doubled
            + self.disordered
            + self.unopened
            + self.keys_without_box
            + self.unfinished
            + len(self.faults)
        )

    def __str__(self) -> str:
        return (
            f"lost {self.lost}, doubled {self.doubled}, unopened {self.unopened}, "
            f"keys without a box {self.keys_without_box}, unfinished {self.unfinished}"
        )


def killed(
    state: Path,
    kills: int,
    seed: int,
    *,
    writers: int = 8,
    without_sweep: bool = False,
    database: str | None = None,
) -> Verdict:
    """Let writers write, kill the ledger at random moments, start it again; then judge."""
    draw = random.Random(seed)
    more = ["--without-sweep"] * without_sweep + (["--database", database] if database else [])
    server, stop = Server(state, *more), threading.Event()
    people = [Writer(n, server.ask, random.Random(seed * 1000 + n)) for n in range(writers)]
    threads = [threading.Thread(target=one.run, args=(stop,), daemon=True) for one in people]
    try:
        server.start()
        for thread in threads:
            thread.start()
        for _ in range(kills):
            _until(people, draw.randint(1, 24))
            time.sleep(draw.uniform(0, 0.02))
            server.kill()
            server.start()
        stop.set()
        for thread in threads:
            thread.join(60)
        server.kill()
    finally:
        stop.set()
        server.close()
    return judge(state, people, without_sweep, database)


def _until(people: list[Writer], more: int) -> None:
    """Wait for so many acknowledgements, so that a slow machine kills busy ledgers, too."""
    enough = sum(len(one.acknowledged) for one in people) + more
    end = time.monotonic() + 3
    while sum(len(one.acknowledged) for one in people) < enough and time.monotonic() < end:
        time.sleep(0.002)


def judge(
    state: Path, people: list[Writer], without_sweep: bool, database: str | None = None
) -> Verdict:
    """Compare what writers were told with what a start finds."""
    ledger = opened(state, live=Loans, options=Options(sweep=not without_sweep), database=database)
    verdict = Verdict(faults=[fault for one in people for fault in one.faults])
    try:
        events = {row.seq: row for row in ledger.reading.events(most=10**9)}
        leaves = [row.leaf for row in events.values() if row.leaf is not None]
        verdict.doubled += len(leaves) - len(set(leaves))
        told = set()
        for one in people:
            seqs = [seq for seq, _, _ in one.acknowledged]
            verdict.disordered += seqs != sorted(seqs)
            for seq, kind, leaf in one.acknowledged:
                row = events.get(seq)
                verdict.lost += row is None or (row.kind, row.leaf) != (kind, leaf)
                verdict.doubled += seq in told
                told.add(seq)
            _judge_loans(ledger, one, verdict)
        # Everything was answered in the end, so what nobody was told was done twice.
        verdict.doubled += sum(
            row.leaf is not None and seq not in told for seq, row in events.items()
        )
        verdict.acknowledged = len(told)
        report = ledger.report
        verdict.unopened = report.people_dropped + report.accounts_dropped
        verdict.unopened += report.kept_parts_dropped
        with ledger.store.reading() as connection:
            verdict.keys_without_box = len(ledger.keys.without_box(named_slots(connection)))
        verdict.unfinished = sum(r.erased_at is None for r in ledger.reading.open_requests())
    finally:
        ledger.close()
    return verdict


def _judge_loans(ledger: Any, one: Writer, verdict: Verdict) -> None:
    if one.person:
        found = set(map(int, ledger.reading.loans(bytes.fromhex(one.person))))
        verdict.lost += len(one.lent - found)
        verdict.doubled += len(found - one.lent)
        person = bytes.fromhex(one.person)
        verdict.lost += set(ledger.live.loans.get(person, ())) != one.lent
        verdict.lost += set(ledger.live.loans.get(name_of(person), ())) != one.kept
        verdict.lost += set(kept(ledger, person)) != one.kept
    for name, _ in one.people:
        person = bytes.fromhex(name)
        verdict.doubled += person in ledger.live.loans or name_of(person) in ledger.live.loans
