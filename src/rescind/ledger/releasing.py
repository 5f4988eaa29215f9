"""Releases: when one is due, making it, sealing it, and what is served from it.

The sum forgets at once. What is served forgets with the next release, which mixes the changes of
many people, so that nobody can tell what one of them took back. A release is due when `people` of
the last one have other loans now (`release_counts`) and it is `least_hours` old, or `hours` after
the first change since. A start makes none, unless an operator has asked for it: whoever can crash
the service could otherwise look at models of few changes.

    1  a copy of the sum         after a batch, so that its `seq` says what is in it
    2  solve, cut, audit         in a process of its own
    3  file, row, leaf           one transaction; the file is sealed under a key of its own
    4  receipts                  requests up to that `seq`
    5  the old key is destroyed  and its file removed
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Row, func, select

from rescind.audits.finding import Finding, overall
from rescind.errors import ConfigError, DataError
from rescind.ledger import fulfilment, tables
from rescind.ledger.batch import Answer, Items, Operation
from rescind.ledger.failpoints import reach
from rescind.ledger.fulfilment import Issue, Served
from rescind.ledger.kept_part import is_kept
from rescind.ledger.keyslots import unseal
from rescind.ledger.noising import Noising
from rescind.ledger.parts import Parts
from rescind.ledger.release_counts import at_most
from rescind.ledger.release_steps import (
    PATTERN,
    Due,
    EndOld,
    Release,
    ReleaseMade,
    TakeCopy,
    Unlisted,
    bound,
    facts_of,
    path_of,
)
from rescind.ledger.release_worker import Copy, finding_of, make
from rescind.methods.additive import _live_release as live_release
from rescind.methods.additive._live_inverse import InstantSum
from rescind.methods.additive._live_release import Form, Reasoned
from rescind.methods.additive._solving import Solving

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NEVER = 2**62


class Releasing:
    """Makes releases of an open ledger and serves from the last one."""

    def __init__(
        self,
        parts: Parts,
        submit: Callable[[Operation], Future[Answer]],
        signer: Ed25519PrivateKey,
        form: Form | None = None,
    ) -> None:
        options = parts.options
        self.noising = Noising(parts, submit)
        chosen = form or (Form(Solving()) if options.instant else Form())
        self.form = replace(chosen, neighbours=options.neighbours, min_count=options.min_count)
        if options.noise:
            self.form = self.noising.form(options)
        elif not options.instant:
            self.form = replace(self.form, rounding=options.rounding)
        if isinstance(parts.live, InstantSum):
            parts.live.min_count, parts.live.form = options.min_count, self.form
        self._parts, self._submit, self._signer = parts, submit, signer
        self._making = threading.Lock()
        self._release: Release | None = None
        self.unread: str | None = None
        """Why the file of the release in service could not be read at the start."""
        self._seq = 0
        self._made_at: datetime | None = None
        self._known_from = 0
        """The `seq` from which on the memory has what was taken back."""
        self.unlisted: Unlisted | None = None
        """The last release, until its roster is made. In memory only: a start lists nothing."""

    # -- what a start does -------------------------------------------------------------------------

    def begin(self) -> None:
        """Load the release in service, issue what is due, end what is old. Makes no release."""
        table = tables.release
        with self._parts.store.reading() as tx:
            self._known_from = tx.scalar(select(func.max(tables.event.c.seq))) or 0
        self.noising.begin()
        with self._parts.store.reading() as tx:
            rows = tx.execute(select(table).order_by(table.c.number.desc())).all()
            self._parts.tally.begin(tx, rows[0].seq if rows else None)
            waiting = tx.scalar(
                select(func.max(tables.request.c.seq)).where(fulfilment.open_until(NEVER))
            )
        self._seq = rows[0].seq if rows else 0
        self._made_at = rows[0].at if rows else None
        served = next((row for row in rows if row.key is not None), None)
        self._release = self._loaded(served) if served is not None else None
        if self._release is not None:
            if waiting is not None:
                self._fulfil(self._served(self._release, self._findings(self._release.number)))
            if sum(row.key is not None for row in rows) > 1:
                self._end_old(self._release.number)
        if waiting is not None and (issue := self.at_once(waiting)) is not None:
            self._submit(issue).result()
        kept = None if served is None else path_of(self._parts.state, served.number)
        for path in self._parts.state.glob(PATTERN):
            if path != kept:  # without a row, or without a key: noise
                path.unlink()

    def _loaded(self, row: Row) -> Release | None:
        """Open the file of a release; None if it is missing or changed: the next one serves."""
        path = path_of(self._parts.state, row.number)
        try:
            box = path.read_bytes()
            file = unseal(self._parts.keys.get(row.key).key, box, bound(row.number))
            plain = live_release.unpacked(file)
            weights = live_release.read(plain)[0]
        except (FileNotFoundError, DataError) as error:
            gone = isinstance(error, FileNotFoundError)
            self.unread = f"{path} is {'not there' if gone else 'damaged'}"
            return None
        return Release(
            row.number,
            row.seq,
            row.at,
            row.people,
            row.sum_digest,
            row.weights_digest,
            weights,
            file,
            row.audit,
        )

    # -- when --------------------------------------------------------------------------------------

    def due(self) -> Due:
        tally, options, made = self._parts.tally, self._parts.options, self._made_at
        latest = None if tally.first is None else tally.first + timedelta(hours=options.hours)
        earliest = None if made is None else made + timedelta(hours=options.least_hours)
        return Due(max(0, options.people - tally.number), latest, earliest)

    def is_due(self, now: datetime) -> bool:
        """Return whether a release is due now; never in the instant form."""
        due = self.due()
        if self._parts.options.instant or due.at is None or self.noising.spent:
            return False
        enough = due.people_left == 0 and (due.earliest is None or now >= due.earliest)
        return enough or now >= due.at

    # -- making ------------------------------------------------------------------------------------

    def check_possible(self) -> None:
        """Refuse where no release can be made: the instant form, a budget that is spent."""
        if self._parts.options.instant:
            raise ConfigError(
                "in the instant form every change is served at once: there is no release to make."
            )
        self.noising.next()

    def make(self, ledger: Any = None, asked: int | None = None) -> Release:
        """Make a release now, and issue what it fulfils. Not from the writer's thread.

        asked: the note that it answers, if an operator asked for it (`release_steps`)
        """
        self.check_possible()
        with self._making:
            noise = self.noising.next()
            copy, seq, loans, gone, people = self._copy()
            try:
                made = make(copy, self._parts.catalogue.ids, self.form, noise)
                file = live_release.packed(made.file)
                operation = ReleaseMade(self._parts.state, seq, people, made, file, asked)
                body = self._submit(operation).result().body
            except BaseException:
                self._parts.live.unsettle(gone)  # the next one is judged by it
                self._parts.tally.failed()
                raise
            reach("release committed")
            release = Release(
                body["number"],
                seq,
                datetime.fromisoformat(body["at"]),
                people,
                made.sum_digest,
                live_release.file_digest(made.file),
                made.weights,
                file,
                overall(made.findings),
            )
            old, self._release, self.unread = self._release, release, None
            self._seq, self._made_at = seq, release.at
            self._fulfil(self._served(release, made.findings))
            reach("receipts committed")
            self._end_old(release.number)
            if old is not None:
                with suppress(FileNotFoundError):
                    path_of(self._parts.state, old.number).unlink()
            if noise is None:  # with noise nothing exact is told, and a roster counts people
                facts = facts_of(release.number, people, made)
                counted = self.form.min_count > 0
                self.unlisted = Unlisted(facts, copy.sums, loans, counted)
            return release

    def listed(self, release: Unlisted) -> None:
        """Take note that the roster of a release is made, and let its copy of the sum go."""
        if self.unlisted is release:
            self.unlisted = None

    def _copy(self) -> tuple[Copy, int, dict[bytes, Items], dict[bytes, Items], int]:
        """Copy the sum after a batch.

        Return also its `seq`, the loans, what was taken back, and how many people it mixes.
        """
        with self._parts.store.reading() as tx:
            lost = at_most(tx, self._seq, self._known_from)
        found: list[tuple[Any, int, int]] = []

        def take(seq: int) -> None:
            settled = self._parts.live.settle()
            found.append((settled, seq, self._parts.tally.copied(settled[1])))

        self._submit(TakeCopy(take)).result()
        (sums, loans, gone), seq, people = found[0]
        left_out = self.noising.left_out(seq)
        if self._parts.options.noise:  # it covers one part of each person: what they lend
            left_out |= {name for name in (*loans, *gone) if is_kept(name)}
        return Copy.of(sums, loans, gone, left_out, lost), seq, loans, gone, people

    def _fulfil(self, served: Served) -> None:
        while self._submit(Issue(served, self._signer)).result().body["more"]:
            pass

    def _end_old(self, number: int) -> None:
        self._submit(EndOld(number)).result()

    def _served(self, release: Release, findings: tuple[Finding, ...]) -> Served:
        return Served(
            release.number,
            release.seq,
            release.at,
            release.people,
            self._parts.options.people,
            release.sum_digest,
            release.digest,
            self.form,
            findings,
            (self.noising.promise() or {}).get("says", ""),
        )

    def _findings(self, number: int) -> tuple[Finding, ...]:
        table = tables.audit
        with self._parts.store.reading() as tx:
            detail = tx.scalar(select(table.c.detail).where(table.c.release == number))
        return tuple(map(finding_of, json.loads(detail or "[]")))

    # -- the instant form --------------------------------------------------------------------------

    def at_once(self, seq: int) -> Operation | None:
        """Return what fulfils a request of this `seq` in the instant form; None otherwise.

        Submit it when the take-back is answered: then the sum and the inverse are without it.
        """
        if not self._parts.options.instant:
            return None
        served = Served(0, seq, self._parts.clock(), 1, 1, "", "", self.form)
        return Issue(served, self._signer, self._parts.live.digest)

    def fulfils(self, seq: int | None) -> bool:
        """Return whether what is served is without a request of this `seq`: its receipt is issued.

        Or it is being written: that takes some seconds after a release that mixes many people.
        """
        if seq is None or self._parts.options.instant:
            return seq is not None
        return self._release is not None and seq <= self._release.seq

    # -- serving -----------------------------------------------------------------------------------

    @property
    def current(self) -> Release | None:
        """The release in service; None before the first one, and in the instant form."""
        return self._release

    @property
    def missing(self) -> bool:
        return self._release is None and not self._parts.options.instant

    def recommend(self, items: Items, k: int = 20) -> list[Reasoned]:
        """Return a list for somebody who owns these items (sorted places), with reasons."""
        if isinstance(self._parts.live, InstantSum):
            return self._parts.live.ready().recommend(items, k)
        if self._release is None:
            return [Reasoned(item) for item in self.popular(items, k)]
        return self._release.weights.recommend(_known_to(self._release, items), k)

    def reasoned(self, items: Items, k: int) -> live_release.Arrays | None:
        """Return the list of the release in service as arrays; None if it has too few lines."""
        instant = isinstance(self._parts.live, InstantSum)
        if instant or self._release is None:
            return None
        items = _known_to(self._release, items)
        if len(items) < live_release.FEWEST:
            return None
        found = self._release.weights.reasoned(items, k)
        return found if len(found[0]) == k else None

    def popular(self, items: Items, k: int = 20) -> list[int]:
        """Return what most people lend and this person does not, as of the release in service.

        Before the first release it is the order of the catalogue: counts of now would show changes.
        """
        order = np.arange(len(self._parts.catalogue), dtype=np.int32)
        if self._release is not None:
            order = self._release.weights.popular
        return [line.item for line in live_release.popular(order, items, k)]

    def file(self) -> bytes:
        """Return the file of the release in service, compressed with gzip."""
        if self._release is None:
            raise DataError("there is no release yet. Wait for the first one, or make it.")
        return self._release.file


def _known_to(release: Release, items: Items) -> Items:
    """Return those items (sorted) that a release has: others were added to the catalogue since."""
    known: Items = items[: np.searchsorted(items, release.weights.items)]
    return known
