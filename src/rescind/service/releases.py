"""Releases and generations, as the doors start them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from rescind.ledger import scanner, tables
from rescind.ledger.errors import Busy, Closing, DiskFull
from rescind.ledger.jobs import LEARNING
from rescind.ledger.release_steps import FAILED, MAKING, BeginAsked, EndAsked, asked_in
from rescind.ledger.scanner import Canary
from rescind.service import problems
from rescind.service.answers import moment

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

ROUNDS = 150
SCAN = "scan"
"""The setting that holds what the last scan found: counts and a time."""
FEW, LONG = 3, 8
"""People whose loans a scan looks for, and how many items make them unmistakable."""
LATER = (Busy, DiskFull, Closing)
"""What hinders a release now, and is no reason to give it up."""


def under_way(ledger: Ledger) -> dict[str, Any] | None:
    """Return what is learning now and how far it is; None if nothing is."""
    job, table = tables.job, tables.round_
    with ledger.store.reading() as tx:
        row = tx.execute(select(job).where(job.c.state == LEARNING)).first()
        if row is None:
            return None
        mine = select(table).where(table.c.job == row.id).order_by(table.c.number.desc())
        last = tx.execute(mine.limit(1)).first()
    facts = {"job": row.id, "recipe": row.recipe, "rounds": int(row.detail)}
    return {**facts, "round": last.number if last else 0, "asked": last.asked if last else None}


def scan(ledger: Ledger) -> dict[str, Any]:
    """Look for the loans of a few people in every file and in the ledger, in every form.

    They are sealed, so nothing may be found; the scanner plants and finds them itself first.
    """
    rows = (items.tolist() for items in ledger.live.loans.values() if len(items) >= LONG)
    lenders = list(islice((row for row in rows if scanner.unmistakable(row)), FEW))
    canaries = [Canary(f"loans {n}", numbers=tuple(row)) for n, row in enumerate(lenders)]
    with nullcontext() if ledger.store.sqlite else ledger.store.reading() as database:
        found = scanner.scan([ledger.state], canaries, database)
    return {"looked_for": len(canaries), "planted": found.planted, "found": len(found.found)}


class ReleaseNow:
    """Makes what the ledger notes as asked for, also by a process that was killed."""

    def __init__(self, ledger: Ledger, released: Callable[[int], None]) -> None:
        """released: is told the number of each"""
        self._ledger, self._released = ledger, released
        self._making = threading.Lock()
        self._look = True  # the process before this one may have left a note
        self._running: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Make the one that was just noted, in a thread."""
        self._look = True
        self._running = [one for one in self._running if not one.done()]
        loop = asyncio.get_running_loop()
        self._running.append(loop.run_in_executor(None, self._now))

    def _now(self) -> None:
        with suppress(*LATER):  # the chore makes it
            self.work()

    def work(self) -> None:
        """Make releases until none is noted. Asks the database only if there may be one."""
        with self._making:
            while self._look:
                self._look = False
                try:
                    self._make_noted()
                except LATER:
                    self._look = True
                    raise

    def _make_noted(self) -> None:
        if self.state() != {"state": MAKING}:
            return
        begun = self._ledger.submit(BeginAsked()).result().body
        if not begun:  # it was begun too often
            return
        self._look = True  # another one may be asked for meanwhile
        try:
            self._released(self._ledger.releases.make(self._ledger, begun["n"]).number)
        except LATER:
            raise
        except Exception as error:
            failed = {"state": FAILED, "why": problems.of(error).detail}
            self._ledger.submit(EndAsked(begun["n"], failed)).result()

    def state(self) -> dict[str, Any] | None:
        """Return `making`, or how the last one ended; None: none was asked for."""
        with self._ledger.store.reading() as tx:
            note = asked_in(tx)
        if note is None:
            return None
        if note["state"] == MAKING:
            return {"state": MAKING}
        asked_at = moment(datetime.fromisoformat(note["asked_at"]))
        hidden = ("n", "begun")
        told = {name: value for name, value in note.items() if name not in hidden}
        return {**told, "asked_at": asked_at}

    async def settled(self) -> None:
        await asyncio.gather(*self._running)
