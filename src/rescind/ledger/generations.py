"""Generations: a recipe of the house trained on the loans of one moment, beside the release.

One learns at a time, in a niced process (`generation_worker`). Whatever somebody takes back makes
every earlier generation stale: it is not served from that commit on, its key is destroyed, and a
learning one begins anew without the records. Until the next one is ready, the release is served.

A start goes on with one that was learning, if nothing changed since it began: loans of an earlier
moment are kept nowhere. Otherwise it begins anew.

One serves after its audit, if the operator chose it. What the audit asks about is in memory only:
after a start there is nothing to judge, and the verdict says so. How many were taken back is in the
history (`release_counts`): only where they were few, it says that they were.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, select

from rescind.audits.finding import Finding
from rescind.errors import DataError, RescindError
from rescind.ledger import jobs, tables, worker_io
from rescind.ledger.batch import Answer, Items, Once
from rescind.ledger.failpoints import reach
from rescind.ledger.jobs import (
    CHECKPOINT,
    FAILED,
    LEARNING,
    LISTS,
    LONGEST,
    READY,
    STALE,
    Choose,
    EndJob,
    Precommit,
    RoundDone,
    StartJob,
)
from rescind.ledger.kept_part import is_kept, lent_alone
from rescind.ledger.keyslots import unseal
from rescind.ledger.parts import Parts
from rescind.ledger.release_worker import finding_of

SEED = 0
NOTHING: Items = np.empty(0, np.int32)


@dataclass(frozen=True)
class Copied:
    """Loans of the moment at which a generation began."""

    loans: dict[bytes, Items] = field(repr=False)
    gone: dict[bytes, Items] = field(repr=False)
    """What the same people took back since the last generation began."""
    lost: int | None = 0
    """How many records a start has forgotten of that, at most; None: that was not counted."""

    @classmethod
    def of(
        cls, loans: dict[bytes, Items], before: dict[bytes, Items], lost: int | None = 0
    ) -> Copied:
        """Compare the loans of two moments; an array that is the same object did not change."""
        gone = {
            person: np.setdiff1d(before[person], now).astype(np.int32)
            for person, now in loans.items()
            if person in before and before[person] is not now
        }
        return cls(loans, gone, lost)


@dataclass(frozen=True)
class Served:
    """Lists of a generation that is ready, by person."""

    job: str
    seq: int
    place: dict[bytes, int] = field(repr=False)
    lists: NDArray[np.int32] = field(repr=False)


class Generations:
    """Starts, follows and serves the generations of an open ledger."""

    def __init__(self, parts: Parts, submit: Callable[..., Future[Answer]]) -> None:
        self._parts, self._submit = parts, submit
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._copy: dict[str, Copied] = {}
        self._learnt: dict[bytes, Items] | None = None
        """Loans that the last generation learnt; None: none has begun since the start."""
        self._chosen: str | None = None
        self._served: Served | None = None
        self._fresh: tuple[int, bool] = (-1, False)
        self._ending = False
        self.nice = 15
        """How far the process stands back behind people who ask."""
        self.tell: Callable[[str, dict[str, Any]], None] = lambda *_: None
        """Called with `round` or `generation` and its numbers, from any thread."""

    def start(self, recipe: str, rounds: int, once: Once | None = None) -> Answer:
        """Begin a generation; the answer has its id. Not from the writer's thread."""
        answer = self._submit(StartJob(recipe, rounds, self._begun), once).result()
        if not answer.replayed:
            self._launch(answer.body["job"])
        return answer

    def choose(self, job: str | None, once: Once | None = None) -> Answer:
        answer = self._submit(Choose(job), once).result()
        self._read_chosen()
        return answer

    def _read_chosen(self) -> None:
        with self._parts.store.reading() as tx:
            self._chosen = tables.setting_of(tx, jobs.CHOSEN) or None
        self._fresh = (-1, False)

    def begin(self) -> None:
        """Go on after a start: resume what was learning, or begin it anew; end what is stale."""
        with self._parts.store.reading() as tx:
            rows = tx.execute(select(tables.job).where(tables.job.c.key.is_not(None))).all()
            kinds = {LEARNING: jobs.CHANGES, READY: jobs.TAKE_BACKS}
            stay = {r.id for r in rows if not jobs.changed_since(tx, r.seq, kinds[r.state])}
        for path in self._parts.state.glob(jobs.PATTERN):
            if path.name.partition("-")[2].partition(".")[0] not in stay:
                path.unlink()
        self._read_chosen()
        for row in rows:
            if row.id not in stay:
                self._submit(EndJob(row.id, STALE)).result()
            elif row.state == READY:
                self._watch()
            else:
                self._begun(row.id, row.seq)
                self._launch(row.id)
        for row in rows:
            if row.state == LEARNING and row.id not in stay:
                self.start(row.recipe, int(row.detail))

    def close(self) -> None:
        """End the process; a start goes on with it."""
        self._ending = True
        self._stop()
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join()

    def recommend(self, person: bytes, owned: Items, k: int = 20) -> list[int] | None:
        """Return a list of the generation in service; None: serve the release."""
        served = self.served()
        if served is None or person not in served.place:
            return None
        mine = served.lists[served.place[person]]
        return [int(item) for item in mine[(mine >= 0) & ~np.isin(mine, owned)][:k]]

    def served(self) -> Served | None:
        """Return the generation that the operator chose, unless something was taken back since."""
        if self._chosen is None:
            return None
        size = len(self._parts.tree)  # every change is a leaf, so nothing else needs a look
        if self._fresh[0] != size:
            with self._parts.store.reading() as tx:
                row = tx.execute(
                    select(tables.job).where(tables.job.c.id == self._chosen)
                ).one_or_none()
                if row is not None and (row.state != READY or jobs.changed_since(tx, row.seq)):
                    row = None
            if row is None:
                self._served = None
            elif self._served is None or self._served.job != row.id:
                self._served = self._loaded(row)
            self._fresh = (size, row is not None)
        return self._served if self._fresh[1] else None

    def _loaded(self, row: Row) -> Served:
        path = jobs.file_of(self._parts.state, row.id, LISTS)
        key = self._parts.keys.get(row.key).key
        plain = unseal(key, path.read_bytes(), jobs.bound(row.id, LISTS))
        people = len(plain) // (4 * LONGEST + 16)
        names = plain[: 16 * people]
        lists = np.frombuffer(plain, "<i4", offset=16 * people).reshape(people, LONGEST)
        place = {names[16 * n : 16 * (n + 1)]: n for n in range(people)}
        return Served(row.id, row.seq, place, lists.astype(np.int32))

    # -- one that learns ---------------------------------------------------------------------------

    def _begun(self, job: str, seq: int) -> None:
        """Copy the loans of this moment and look out for what is taken back from now on."""
        loans = lent_alone(self._parts.live.loans)
        lost: int | None = 0
        if self._learnt is None:
            with self._parts.store.reading() as tx:
                lost = jobs.taken_back_since_the_one_before(tx, job, seq)
        self._copy = {job: Copied.of(loans, self._learnt or {}, lost)}
        self._learnt = self._copy[job].loans
        self._watch()

    def _watch(self) -> None:
        if self._changed not in self._parts.live.watch:
            self._parts.live.watch.append(self._changed)

    def _changed(self, part: bytes, old: Items, new: Items) -> None:
        """End what learnt from a record that is gone. In the writer's thread: it must not wait."""
        if not is_kept(part) and len(np.setdiff1d(old, new)):  # nothing learns from kept parts
            self._stop()
            with self._parts.store.reading() as tx:
                alive = tx.scalars(select(tables.job.c.id).where(tables.job.c.key.is_not(None)))
                names = list(alive)
            for job in names:
                self._submit(EndJob(job, STALE))
                self.tell("generation", {"job": job, "state": STALE})
                for kind in (CHECKPOINT, LISTS):
                    jobs.file_of(self._parts.state, job, kind).unlink(missing_ok=True)

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _launch(self, job: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True, name="learning")
        self._thread.start()

    def _run(self, job: str) -> None:
        try:
            self._follow(job)
        except RescindError:
            if not self._ending:  # the ledger closed meanwhile: a start goes on
                raise

    def _follow(self, job: str) -> None:
        with self._parts.store.reading() as tx:
            row = jobs.job_row(tx, job)
        if row.state != LEARNING:
            return
        copied = self._copy.pop(job)
        people = sorted(copied.loans)
        try:
            # What it will be made from is durable in the log before the first round begins.
            key, rounds = self._parts.keys.get(row.key).key, int(row.detail)
            made_from = (row.id, row.recipe, rounds, SEED, copied.loans, key)
            self._submit(Precommit(row.id, jobs.precommitment(*made_from))).result()
            finding, why = self._trained(row, copied, people)
        except DataError as error:  # its key is gone: something was taken back meanwhile
            finding, why = None, str(error)
        if self._ending:
            return
        with self._parts.store.reading() as tx:
            stale = jobs.changed_since(tx, row.seq)
        if stale:
            self._submit(EndJob(job, STALE)).result()
            self.start(row.recipe, int(row.detail))
            return
        if finding is not None:
            self._name_people(row, people)
        end = EndJob(job, FAILED if finding is None else READY, why, finding)
        state = self._submit(end).result().body["state"]
        self.tell("generation", {"job": job, "state": state})
        if state == STALE:
            self.start(row.recipe, int(row.detail))

    def _trained(self, row: Row, copied: Copied, people: list[bytes]) -> tuple[Finding | None, str]:
        """Return what the audit found; None if the process did not end well, and why."""
        facts = {
            "job": row.id,
            "recipe": row.recipe,
            "rounds": int(row.detail),
            "seed": SEED,
            "nice": self.nice,
            "items": len(self._parts.catalogue),
            "lost": copied.lost,
            "state": str(self._parts.state),
            "key": self._parts.keys.get(row.key).key.hex(),
        }
        how = worker_io.command("rescind.ledger.generation_worker")
        pipe = subprocess.PIPE
        with subprocess.Popen(**how, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            self._process = process
            assert process.stdin and process.stdout and process.stderr  # noqa: PT018
            with suppress(BrokenPipeError):  # it ended already; its message says why
                kept = worker_io.joined("kept", [copied.loans[one] for one in people])
                gone = worker_io.joined("gone", [copied.gone.get(one, NOTHING) for one in people])
                process.stdin.write(worker_io.written(facts, {**kept, **gone}))
                process.stdin.close()
            finding = self._followed(row, map(json.loads, process.stdout))
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        if process.returncode or finding is None:
            return None, (lines or ["it ended without a word"])[-1]
        return finding, ""

    def _followed(self, row: Row, lines: Iterable[dict[str, Any]]) -> Finding | None:
        """Write every round that the process tells of; return what its audit found."""
        finding = None
        for line in lines:
            if "audit" in line:
                finding = finding_of(line["audit"])
                continue
            self._submit(RoundDone(row.id, line)).result()
            self.tell("round", {"job": row.id, "rounds": int(row.detail), **line})
            reach("generation running")
        return finding

    def _name_people(self, row: Row, people: list[bytes]) -> None:
        """Put the ids of people before their lists: the process that learnt had none."""
        from rescind.core.files import write_atomically
        from rescind.ledger.keyslots import seal

        path, key = jobs.file_of(self._parts.state, row.id, LISTS), self._parts.keys.get(row.key)
        where = jobs.bound(row.id, LISTS)
        lists: Any = unseal(key.key, path.read_bytes(), where)
        if len(lists) != 4 * LONGEST * len(people):
            raise DataError("the generation made lists for another number of people.")
        write_atomically(path, seal(key.key, b"".join(people) + lists, where), private=True)
