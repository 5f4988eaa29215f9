"""The one thread that writes: batches, idempotency, and the order of syncs.

    1  new keys are synced          before anything needs them
    2  one commit                   events, boxes, requests, entries, leaves, recorded answers
    3  old keys are destroyed       and synced: the old boxes are noise
    4  the live sum changes
    5  answers

Killed anywhere, a start finishes the rest (`ledger.start`). A failed sync ends the process: after
it, nobody knows what is on the disk, and trying again may lie. A full disk refuses the batch.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from rescind.errors import RescindError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch, Once, Operation, Tell, settle
from rescind.ledger.errors import Busy, Closing, DiskFull, StillRunning
from rescind.ledger.failpoints import reach
from rescind.ledger.keyfile import Head
from rescind.ledger.outage import Outage
from rescind.ledger.parts import Parts
from rescind.ledger.recorded import EVERY, Expire, Recorded
from rescind.ledger.statements import Driver, Prepared
from rescind.ledger.store import WAL_PAGES

MOST = 512
"""Operations in one batch: whoever waits is in it."""
PAUSE, TIDY = 0.02, 64
"""Seconds without a change that are a pause, and batches after which there is one in any case:
whoever sends one change after the other does not wait for what can be done later."""
EXIT = 74
"""Exit code after a failed sync (EX_IOERR of sysexits)."""
_DATED = Prepared(
    update(tables.request)
    .where(tables.request.c.id == bindparam("name"), tables.request.c.erased_at.is_(None))
    .values(
        erased_at=bindparam("erased"),
        summed_at=bindparam("summed"),
        level=tables.at_least_erased(),
    )
)
_CLEAN = Prepared(
    update(tables.setting).where(tables.setting.c.name == "clean").values(value=bindparam("clean"))
)
_BATCH = Prepared(
    update(tables.setting).where(tables.setting.c.name == "batch").values(value=bindparam("number"))
)


@dataclass
class _Job:
    """An operation on its way: where its answer goes, and what was found out so far."""

    operation: Operation
    once: Once | None = None
    lookup: bytes | None = None
    tell: Tell | None = None
    answer: Answer | None = None
    refusal: BaseException | None = None


class _Ended(Exception):
    """The service ends while it is not known whether the last commit took effect."""


class Writer:
    """Owns the writing connection and `keys.bin` while a ledger is open."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._keys, self._store = parts, parts.keys, parts.store
        self._recorded = Recorded(parts.keys)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._running: set[bytes] = set()
        self._gate = threading.Lock()
        self._open = False
        self._seq = self.batch = self._untidied = 0
        self._expired: datetime | None = None
        self._outage = Outage("changes are refused", "changes are written again")
        self.dates: dict[str, tuple[datetime, datetime]] = {}
        """When requests were erased and summed, until it is written."""
        self._thread = threading.Thread(target=self._run, name="ledger writer", daemon=True)

    def begin(self, seq: int, batch: int) -> None:
        """Start the thread. seq, batch: the last numbers in the ledger"""
        self._seq, self.batch, self._open = seq, batch, True
        self._thread.start()

    def submit(self, operation: Operation, once: Once | None) -> Future[Answer]:
        future: Future[Answer] = Future()
        self.take(operation, once, lambda outcome: settle(future, outcome))
        return future

    def take(self, operation: Operation, once: Once | None, tell: Tell) -> None:
        """Queue an operation, unless one with the same Idempotency-Key is under way.

        tell: is called once, from any thread
        """
        person = getattr(operation, "person", None)
        lookup = self._recorded.lookup(person, once) if once else None
        wrong = tables.unkeepable(operation)
        with self._gate:
            refusal = wrong or self._refusal(lookup)
            if refusal is None:
                if lookup is not None:
                    self._running.add(lookup)
                self._queue.put(_Job(operation, once, lookup, tell))
        if refusal is not None:
            tell(refusal)

    def _refusal(self, lookup: bytes | None) -> RescindError | None:
        if not self._open:
            return Closing("the service is ending. Send it again later.")
        if lookup in self._running:
            text = "the first request with this Idempotency-Key is still running. Wait for it."
            return StillRunning(text)
        return None

    @property
    def fault(self) -> DiskFull | Busy | None:
        """Why the last batch was refused as a whole; None: the last one was written."""
        return self._outage.fault

    @property
    def running(self) -> bool:
        """Whether operations are taken: the thread lives and has not been told to end."""
        return self._open and self._thread.is_alive()

    def close(self) -> None:
        """Answer what is queued, then remember the sum's digest: this stop is a clean one."""
        with self._gate:
            was_open, self._open = self._open, False
        if was_open:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        try:
            while jobs := self._take():
                self._carry(jobs)
                self._untidied += 1
                now = self._parts.clock()
                expiring = self._expired is None or now - self._expired >= EVERY
                if self._untidied >= TIDY:
                    self._quiet()
                if expiring and self._queue.empty():
                    self._expired = now
                    self._carry([_Job(Expire())])
            self._stop_clean()
        except _Ended:
            return  # old and new keys are both there: a start finds out which are needed
        except BaseException as error:  # the thread is the service: without it nothing is durable
            self._end(f"{type(error).__name__}: {error}")

    def _take(self) -> list[_Job]:
        """Return whoever waits, at most 512, or nothing at the end."""
        jobs: list[_Job] = []
        while len(jobs) < MOST:
            try:
                job = self._queue.get(block=not jobs, timeout=self._patience)
            except queue.Empty:
                if jobs:
                    break
                if self._untidied:
                    self._quiet()
                    continue
                job = _Job(Expire())
            if job is None:
                if jobs:
                    self._queue.put(None)  # the end comes after these
                break
            jobs.append(job)
        return jobs

    @property
    def _patience(self) -> float:
        """Seconds to wait for somebody: few if a pause is to be used, else until things expire."""
        return PAUSE if self._untidied else EVERY.total_seconds()

    def _carry(self, jobs: list[_Job]) -> None:
        try:
            batch = self._committed(jobs)
        except (DiskFull, Busy) as error:
            for job in jobs:
                if job.refusal is None and not (job.answer and job.answer.replayed):
                    job.refusal = error
            self._outage.hit(error)
            self._tell(jobs)
            return
        if batch is not None:
            self._outage.over()
            self._after(batch, jobs)
        self._tell(jobs)

    def _committed(self, jobs: list[_Job]) -> Batch | None:
        """Do steps 1 and 2. Return None if there was nothing to write."""
        try:
            connection = self._store.writer()
            transaction = connection.begin()
        except DBAPIError as error:
            raise self._meaning(error) from error
        batch, committing = Batch(connection, self._parts, self._seq), False
        try:
            if not self._write(batch, jobs):
                transaction.rollback()
                self._synced()
                return None
            self._store.check_log()
            reach("before keys synced")
            self._synced()
            reach("keys synced")
            reach("inside commit")
            committing = True
            transaction.commit()
        except (DBAPIError, DiskFull) as error:
            with suppress(DBAPIError):
                transaction.rollback()
            if not self._took_effect(error, committing, jobs):
                # First: after a failed sync the commit may be on the disk, and needs its keys.
                meaning = self._meaning(error)
                self._undo(batch)
                raise meaning from error
        return batch

    def _write(self, batch: Batch, jobs: list[_Job]) -> bool:
        """Carry out what is new, and record its answers. Return whether anything was."""
        known = self._recorded.find(batch.driver, [job.lookup for job in jobs if job.lookup])
        rows: list[dict[str, Any]] = []
        fresh = False
        for job in jobs:
            if job.once and job.lookup in known:
                self._replay(job, job.once, known[job.lookup])
                continue
            self._carry_out(batch, job)
            if job.answer is not None:
                fresh = True
                if job.once and job.lookup:
                    rows.append(self._recorded.row(batch, job.lookup, job.once, job.answer))
        if not fresh:
            return False
        batch.driver.insert(tables.answered, rows)
        batch.flush()
        self._write_dates(batch.driver)
        batch.driver.run(_BATCH, {"number": str(self.batch + 1)})
        return True

    def _replay(self, job: _Job, once: Once, row: Any) -> None:
        try:
            job.answer = self._recorded.replay(row, once)
        except RescindError as error:
            job.refusal = error

    def _carry_out(self, batch: Batch, job: _Job) -> None:
        mark = batch.mark()
        batch.driver.say("SAVEPOINT operation")
        try:
            job.answer = job.operation.carry_out(batch)
        except DiskFull:
            raise
        except DBAPIError as error:
            if not isinstance(error, IntegrityError):
                raise
            job.refusal = error
        except Exception as error:  # refused, or a fault of this operation alone
            job.refusal = error
        if job.refusal is not None:
            batch.driver.say("ROLLBACK TO SAVEPOINT operation")
            batch.go_back(mark)
        batch.driver.say("RELEASE SAVEPOINT operation")

    def _synced(self) -> None:
        try:
            self._keys.sync()
        except OSError as error:
            self._end(f"the keys could not be synced: {error.strerror}")

    def _took_effect(self, error: BaseException, committing: bool, jobs: list[_Job]) -> bool:
        """Return whether a batch that ended with an error is in the database after all.

        If it broke in the commit, that is not known until the database is back. Until then nothing
        else is written, and everybody is told to come again.
        """
        if not isinstance(error, DBAPIError) or not isinstance(self._store.known(error), Busy):
            return False
        if not committing:
            self._store.forget_broken()
            return False

        def refuse(away: Busy) -> None:
            self._tell_early(jobs, away)
            with suppress(queue.Empty):
                while (job := self._queue.get_nowait()) is not None:
                    self._tell_early([job], away)
                raise _Ended

        return self._store.batch_after(refuse) == self.batch + 1

    def _tell_early(self, jobs: list[_Job], away: Busy) -> None:
        """Tell callers to come again, while it is not known what became of their batch."""
        self._outage.hit(away)
        for job in jobs:
            own, job.refusal = job.refusal, job.refusal or away
            self._tell([job])
            job.refusal = own
            job.tell = job.lookup = None  # told; its key may come again, and be under way anew

    def _meaning(self, error: BaseException) -> BaseException:
        """Return what the callers are told, or end the process."""
        if isinstance(error, DiskFull | Busy):
            return error
        if isinstance(error, DBAPIError):
            if (known := self._store.known(error)) is not None:
                return known
            self._end(f"the database failed: {error.orig}")
        return error

    def _undo(self, batch: Batch) -> None:
        """Destroy the keys of a batch that was not written."""
        self._recorded.forget_key()
        try:
            for slot_id in batch.made:
                self._keys.destroy(slot_id)
            self._keys.sync()
        except (OSError, DiskFull) as error:
            self._end(f"keys could not be overwritten: {error}")

    def _after(self, batch: Batch, jobs: list[_Job]) -> None:
        """Do steps 3 and 4, then what others wanted to do afterwards."""
        reach("committed")
        parts = self._parts
        self._seq, self.batch = batch.seq, self.batch + 1
        for entry in batch.entries:
            parts.tree.append(entry)
        try:
            for slot_id in batch.doomed:
                self._keys.destroy(slot_id)
            if batch.doomed or batch.made or batch.entries:
                self._keys.write_head(Head(len(parts.tree), self.batch, parts.tree.root()))
            self._keys.sync()
        except (OSError, DiskFull) as error:
            self._end(f"old keys could not be destroyed: {error}")
        reach("old keys destroyed")
        erased = parts.clock()
        for person, (old, new) in batch.changes.items():
            parts.live.change(person, old, new)
        summed = parts.clock()
        parts.tally.note(batch)
        self.dates.clear()  # those of before are in this batch
        self.dates.update(dict.fromkeys(batch.erased, (erased, summed)))
        for job in jobs:
            if job.answer is not None and not job.answer.replayed and "steps" in job.answer.body:
                job.answer = _dated(job.answer, erased, summed)
        for call in batch.calls:
            call()

    def _tell(self, jobs: list[_Job]) -> None:
        """Step 5. A key may come again as soon as its answer is there."""
        with self._gate:
            self._running.difference_update(job.lookup for job in jobs if job.lookup)
        for job in jobs:
            outcome = job.refusal or job.answer
            assert outcome is not None
            if job.tell is not None:
                job.tell(outcome)

    def _quiet(self, clean: str = "") -> None:
        """Use a pause: write dates of steps and what a clean stop leaves; move the WAL."""
        self._untidied = 0
        try:
            if self.dates or clean:
                connection = self._store.writer()
                with connection.begin():
                    self._write_dates(Driver(connection))
                    if clean:
                        Driver(connection).run(_CLEAN, {"clean": clean})
                self.dates.clear()
            self._store.checkpoint(0 if clean else WAL_PAGES)
        except DBAPIError as error:
            if self._store.known(error) is None:
                self._end(f"the database failed: {error.orig}")
        except (DiskFull, Busy):
            return  # dates stay in memory; the next pause writes them

    def _write_dates(self, driver: Driver) -> None:
        rows = [
            {"name": name, "erased": erased, "summed": summed}
            for name, (erased, summed) in self.dates.items()
        ]
        if rows:
            driver.many(_DATED, rows)

    def _stop_clean(self) -> None:
        self._quiet()
        items, digest = len(self._parts.catalogue), self._parts.live.digest()
        self._quiet(json.dumps({"batch": self.batch, "digest": digest, "items": items}))

    def _end(self, reason: str) -> None:
        """End the process at once: what is on the disk is what a start will find."""
        sys.stderr.write(
            f"rescind: {reason}. The service ends here and does not try again. Nothing that was "
            f"acknowledged is lost. Check the disk, then start it.\n"
        )
        sys.stderr.flush()
        os._exit(EXIT)


def _dated(answer: Answer, erased: datetime, summed: datetime) -> Answer:
    times = {"erased": erased.isoformat(), "summed": summed.isoformat()}
    body = {**answer.body, "level": "L1", "steps": {**answer.body["steps"], **times}}
    return replace(answer, body=body)
