"""Measure a running service against yardsticks of the same run: ratios, not seconds.

    python bench/service.py [--data ml-1m] [--turns 9]
    python bench/service.py --write                     into docs/performance.md

The service runs in a process of its own, behind a real socket. CPU is what that process used, all
threads together; an empty route is one of FastAPI without guard, measures or ledger, served by the
same server, with as many callers. Syncs are raw `fdatasync` calls on a file beside the ledger.
Yardstick and measure take turns, and a row is the median of all turns.

A disk may sync in 40 microseconds (this machine's cache) or in some milliseconds. So what waits for
syncs is measured as it is here, and with every sync made to take 2 ms and 5 ms on both sides.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from service_calls import Running, request, sent, started, sync_seconds

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed: python bench/service.py --write -->\n", "<!-- end of speed -->\n"
FLIGHT = 64
SLOW = (0.002, 0.005)
"""Seconds of a sync on disks that write through."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    measure: str
    yardstick: str
    found: float
    goal: float | None = None
    at_least: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        if self.goal is None:
            return None
        return self.found >= self.goal if self.at_least else self.found <= self.goal

    def __str__(self) -> str:
        word = {True: "met", False: "**missed**", None: ""}[self.met]
        word = "**not measured**" if isnan(self.found) else word
        shown = f"{self.found:.2g}" if self.found < 0.1 else f"{self.found:.1f}"
        sign = ">=" if self.at_least else "<="
        goal = "-" if self.goal is None else f"{sign} {self.goal:g} {self.unit}".replace(" x", "x")
        return f"| {self.measure} | {self.yardstick} | {shown} {self.unit} | {goal} | {word} |"


def fill(state: Path, name: str) -> None:
    """Make a state folder in which people lend four fifths of a dataset."""
    from rescind.ledger.book import Ledger
    from rescind.service import demonstration

    everybody = demonstration.people_of(name, say=lambda _: None)
    kept = tuple(items[np.arange(len(items)) % 5 != 4] for items in everybody.loans)
    people = replace(everybody, loans=kept)
    ledger = Ledger.open(state, catalogue=people.catalogue)
    demonstration.fill(ledger, people, say=lambda _: None)
    ledger.close()


# ------------------------------------------------------------------ over HTTP


class Callers:
    """People who take records back and lend them again, another record each time."""

    def __init__(self, server: Running) -> None:
        self.server, self.people = server, server.said["sessions"]
        self._places, self._more = count(), count()

    def lists(self) -> list[bytes]:
        """Return a request for a list from everybody."""
        return [request("GET", "/v1/me/recommendations?k=20", s) for s, _, _ in self.people]

    def change(self) -> tuple[list[bytes], list[bytes]]:
        """Return requests of everybody to take one record back, and to lend it again."""
        place = next(self._places)
        chosen = [(secret, [mine[place % len(mine)]]) for secret, mine, _ in self.people]
        back = [
            request("POST", "/v1/me/requests", secret, {"kind": "unshare", "items": items})
            for secret, items in chosen
        ]
        return back, [request("POST", "/v1/me/loans", s, {"items": items}) for s, items in chosen]

    def lend_more(self) -> list[bytes]:
        """Return requests of everybody to lend one record more."""
        place = next(self._more)
        return [
            request("POST", "/v1/me/loans", s, {"items": [o[place]]}) for s, _, o in self.people
        ]


def over_http(state: Path, turns: int, starts: list[float]) -> Iterator[Row]:
    """Measure lists and changes, in turns with an empty route and with this disk."""
    empty, server = started("empty"), started("serve", str(state))
    starts.append(server.said["start"])
    try:
        people, nothing = Callers(server), [request("GET", "/empty")] * 400
        _warm_up(people)
        sent(empty, nothing)
        lists, lends, routes = [], [], []
        for _ in range(turns):
            plain = sent(empty, nothing).cpu
            lists.append(sent(server, people.lists()).cpu / plain)
            back, lend = people.change()
            sent(server, back, FLIGHT)
            crowd = sent(empty, nothing, FLIGHT)
            routes.append(sync_seconds(state) / crowd.seconds)
            lends.append(sent(server, lend, FLIGHT).cpu / crowd.cpu)
        yield Row("recommend 20 with reasons, CPU", "empty route", median(lists), 5)
        yield Row(f"lend, CPU, {FLIGHT} in flight", "empty route", median(lends), 6)
        micro = f"a sync takes {1e6 * sync_seconds(state, times=400):.0f} µs here"
        yield Row(f"*an empty route*, {FLIGHT} in flight", f"syncs per s; {micro}", median(routes))
        yield from _syncs(people, state, turns, 0.0, "syncs per s", "one sync")
    finally:
        server.stop()
        empty.stop()


def on_a_slow_disk(state: Path, turns: int, starts: list[float], least: float) -> Iterator[Row]:
    """Measure changes where every sync takes some milliseconds, ours and the yardstick's."""
    server = started("serve", str(state), str(least))
    starts.append(server.said["start"])
    try:
        people = Callers(server)
        _warm_up(people)
        of = f"of {1000 * least:g} ms"
        yield from _syncs(people, state, turns, least, f"syncs {of} per s", f"one sync {of}")
    finally:
        server.stop()


def _warm_up(people: Callers) -> None:
    for requests in (people.lists(), *people.change()):
        sent(people.server, requests, FLIGHT)


def _syncs(
    people: Callers, state: Path, turns: int, least: float, rate: str, one: str
) -> Iterator[Row]:
    server, lends, takes, alone = people.server, [], [], []
    for _ in range(turns):
        back, lend = people.change()
        sync = sync_seconds(state, least)
        takes.append(sync / sent(server, back, FLIGHT).seconds)
        lends.append(sync_seconds(state, least) / sent(server, lend, FLIGHT).seconds)
        back, lend = people.change()
        sync = sync_seconds(state, least)
        alone.append(sent(server, back[:FLIGHT]).seconds / sync)
        sent(server, lend[:FLIGHT], FLIGHT)
    flight = f"{FLIGHT} in flight"
    yield Row(f"lend, {flight}", rate, median(lends), 3, at_least=True)
    yield Row(f"take back, {flight}", rate, median(takes), 2, at_least=True)
    yield Row("take back until erased and committed, one caller", one, median(alone), 8)


def while_learning(state: Path, turns: int, starts: list[float]) -> Iterator[Row]:
    """Measure lists and lends while a generation trains and while it is halted, in turns.

    Taking back is not among them: it ends a generation that learnt from the record.
    """
    server = started("serve", str(state))
    starts.append(server.said["start"])
    try:
        people = Callers(server)
        _warm_up(people)
        body = {"recipe": "FedShare", "rounds": 10_000}
        sent(server, [request("POST", "/v1/operator/jobs", server.said["operator"], body)])
        worker = _learning(server)
        shares = _shares(people, worker, turns) if worker else {"nothing": [nan]}
        worst = min(median(one) for one in shares.values())
        yield Row(
            "lists and lends while a generation trains, the slower one",
            "the same, quiet",
            100 * worst,
            50,
            at_least=True,
            unit="%",
        )
    finally:
        server.stop()


def _shares(people: Callers, worker: int, turns: int) -> dict[str, list[float]]:
    """Return the speed of lists and of lends beside a process, as a share of that without it."""
    found: dict[str, list[float]] = {"lists": [], "lends": []}
    for turn in range(turns + 1):
        seconds = {}
        for order in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(worker, order)
            lists, lends = people.lists(), people.lend_more()
            seconds[order] = {
                "lists": sent(people.server, lists, FLIGHT).seconds,
                "lends": sent(people.server, lends, FLIGHT).seconds,
            }
        for name in found if turn else ():  # the first turn warms up
            found[name].append(seconds[signal.SIGSTOP][name] / seconds[signal.SIGCONT][name])
    return found


def _learning(server: Running) -> int | None:
    """Wait until a generation has done a round; return its process, None if it did not begin."""
    ask = [request("GET", "/v1/operator/jobs", server.said["operator"])]
    for _ in range(180):
        job = sent(server, ask).answer["jobs"][0]
        if job["state"] != "learning":
            raise SystemExit(f"the generation ended: {job}")
        if job["rounds"]:
            return server.children()[0]
        time.sleep(1)  # the operator's session may ask 120 times a minute
    return None


# ------------------------------------------------------------------ in this process


def cpu_of(call: Callable[[], Any], times: int = 1) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def of_the_sum(name: str, turns: int, starts: list[float]) -> Iterator[Row]:
    """Measure the sum, a release and the instant form against one solve of the same sum."""
    from rescind.methods.additive import _live_release as live
    from rescind.methods.additive._live_inverse import InstantSum
    from rescind.service import demonstration

    people = demonstration.people_of(name, say=lambda _: None)
    parts = [items[np.arange(len(items)) % 5 != 4].astype(np.int32) for items in people.loans]
    everybody = InstantSum(len(people.catalogue))
    everybody.load({n.to_bytes(16, "big"): items for n, items in enumerate(parts)})
    form, sums, none = live.Form(), everybody.sums, np.empty(0, np.int32)

    def made() -> None:
        file = live.release_of(sums, form).to_bytes(people.catalogue.ids)
        live.file_digest(file)
        live.packed(file)

    some = [n for n in range(0, len(parts), max(1, len(parts) // 400)) if len(parts[n])]

    def leave(chosen: list[int]) -> float:
        before = time.process_time()
        for n in chosen:
            everybody.change(n.to_bytes(16, "big"), parts[n], none)
        return (time.process_time() - before) / len(chosen)

    made()  # compile
    leave(some[:2])
    solves, releases, left, instant = [], [], [], []
    for turn in range(2, 2 + turns):
        solves.append(cpu_of(lambda: sums.inverse(form.solving.ridges)))
        releases.append(cpu_of(made) / solves[-1])
        left.append(leave(some[10 * turn : 10 * turn + 10]) / solves[-1])
    half = sums.inverse(form.solving.ridges)
    everybody.ready()
    leave(some[200:202])
    for turn in range(turns):
        copied = cpu_of(half.copy, 5)
        instant.append(leave(some[210 + 5 * turn : 215 + 5 * turn]) / copied)
    loans = sum(map(len, parts))
    yield Row("sum without a person", "solve", median(left), 0.001)
    yield Row("release", "solve", median(releases), 2.5)
    yield Row(f"start with {loans:,} loans, CPU", "solve", median(starts) / median(solves), 2)
    yield Row("instant change of one person", "copying the half of C", median(instant), 1)


def of_the_log() -> Iterator[Row]:
    """Measure the log against hashing, and how much somebody with a receipt has to carry."""
    from rescind.proof.notes import Proof
    from rescind.proof.tlog import Tree

    data, leaves, some = secrets.token_bytes(64), 1_000_000, 100_000
    tree, entry, appended = Tree(), secrets.token_bytes(33), []
    for _ in range(leaves // some):
        hashed = cpu_of(lambda: [hashlib.sha256(data).digest() for _ in range(some)])
        appended.append(cpu_of(lambda: [tree.append(entry) for _ in range(some)]) / hashed)
    verified = cpu_of(tree.root)
    path: list[bytes] = []

    def prove() -> None:
        path[:] = tree.inclusion(secrets.randbelow(leaves))

    proved = cpu_of(prove, 200)
    size = len(str(Proof(leaves - 1, tuple(path), "x" * 300)).encode())
    yield Row("log: append", "SHA-256 of 64 bytes", median(appended), 3)
    yield Row("log: verify 1,000,000 leaves", "-", verified, 5, unit="s")
    yield Row("inclusion proof", "-", 1000 * proved, 2, unit="ms")
    yield Row("its size", "-", size / 1000, 4, unit="KB")
    yield Row("its size with the receipt", "-", (size + receipt_size()) / 1000, 8, unit="KB")


def receipt_size() -> int:
    """Return the bytes of a receipt, from a small ledger."""
    from rescind.ledger.book import Ledger
    from rescind.ledger.catalogue import Catalogue
    from rescind.ledger.lending import Join, Lend, TakeBack

    with tempfile.TemporaryDirectory(prefix="rescind-bench-") as folder:
        ledger = Ledger.open(
            Path(folder) / "state", catalogue=Catalogue([str(n) for n in range(50)])
        )
        try:
            for first in range(20):
                person = bytes.fromhex(ledger.submit(Join()).result().body["person"])
                ledger.submit(Lend(person, tuple(range(first, first + 20)))).result()
            asked = ledger.submit(TakeBack(person, "unshare", (20, 21))).result().body
            ledger.releases.make(ledger)
            return len(ledger.reading.request(asked["request_id"]).receipt)
        finally:
            ledger.close()


def rows_of(data: str, turns: int, filled: Path | None) -> Iterator[Row]:
    """Yield every row of the table. filled: a folder that `fill` made before; it is copied"""
    starts: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rescind-bench-") as folder:
        state = Path(folder) / "state"
        if filled is None:
            fill(state, data)
        else:
            shutil.copytree(filled, state)
        yield from over_http(state, turns, starts)
        for least in SLOW:
            yield from on_a_slow_disk(state, turns, starts, least)
        yield from of_the_sum(data, turns, starts)
        yield from of_the_log()
        yield from while_learning(state, turns, starts)


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--data", default="ml-1m")
    words.add_argument("--turns", type=int, default=9, choices=range(1, 16), metavar="1-15")
    words.add_argument("--state", type=Path, help="a folder that a fill made before; copied")
    words.add_argument("--fill", type=Path, help="only make such a folder")
    words.add_argument("--write", action="store_true", help="write the table into the pages")
    given = words.parse_args()
    if given.fill:
        return fill(given.fill, given.data)
    made = f"| {given.data} | yardstick | found | goal | |\n|---|---|---|---|---|\n"
    print(made, end="", flush=True)
    missed = 0
    for row in rows_of(given.data, given.turns, given.state):
        print(row, flush=True)
        made += f"{row}\n"
        missed += row.met is False
    print(f"{missed} missed")
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + made + END + rest.split(END)[1], encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
