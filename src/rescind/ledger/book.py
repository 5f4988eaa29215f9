"""`Ledger`: the one object that the doors of a service use."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.ledger.batch import Answer, Once, Operation
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.generations import Generations
from rescind.ledger.keyfile import LOG_KEY, SIGNER
from rescind.ledger.options import Options
from rescind.ledger.outage import told_at_a_start
from rescind.ledger.parts import Parts, now
from rescind.ledger.reading import Reading
from rescind.ledger.releasing import Releasing
from rescind.ledger.rostering import Rostering
from rescind.ledger.start import Report, prepared
from rescind.ledger.writer import Writer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Ledger:
    """Who lent what, sealed; the log of all changes; the sum in memory. Made by `open`."""

    def __init__(self, parts: Parts, report: Report) -> None:
        """Use `open`: it does what a start must finish."""
        self.parts, self.report = parts, report
        self.state, self.catalogue, self.options = parts.state, parts.catalogue, parts.options
        self.keys, self.store, self.tree, self.live = (
            parts.keys,
            parts.store,
            parts.tree,
            parts.live,
        )
        self.clock = parts.clock
        self.writer = Writer(parts)
        self.reading = Reading(parts.store, parts.keys, parts.catalogue, self.writer.dates)
        self.releases = Releasing(parts, self.submit, self.signer)
        self.roster = Rostering(parts, self.submit, self.releases)
        self.generations = Generations(parts, self.submit)

    @classmethod
    @told_at_a_start()
    def open(
        cls,
        state: Path,
        *,
        catalogue: Catalogue | None = None,
        database: str | None = None,
        options: Options | None = None,
        keys_mirror: Path | None = None,
        live: Callable[[int], Any] | None = None,
        clock: Callable[[], datetime] = now,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Ledger:
        """Open a state folder and finish what a crash left, before anything is served.

        catalogue: needed the first time; database: URL of PostgreSQL, default SQLite in the folder;
        live: makes the sum over so many items; clock, entropy: for tests
        """
        chosen = options or Options()
        parts, report, seq, batch = prepared(
            state,
            catalogue=catalogue,
            database=database,
            options=chosen,
            keys_mirror=keys_mirror,
            live=live or (lambda items: _live_sum(items, chosen)),
            clock=clock,
            entropy=entropy,
        )
        ledger = cls(parts, report)
        ledger.writer.begin(seq, batch)
        try:
            ledger.releases.begin()
            ledger.roster.begin()
            ledger.generations.begin()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def submit(self, operation: Operation, once: Once | None = None) -> Future[Answer]:
        """Hand an operation to the writer. The future holds its answer, or why it was refused."""
        return self.writer.submit(operation, once)

    def keyed(self, purpose: bytes, data: bytes) -> bytes:
        return self.keys.keyed(purpose, data)

    @property
    def signer(self) -> Ed25519PrivateKey:
        return _private(self.keys.own(SIGNER))

    @property
    def log_key(self) -> Ed25519PrivateKey:
        return _private(self.keys.own(LOG_KEY))

    def close(self) -> None:
        """Answer what was submitted, remember the sum's digest, and end."""
        self.generations.close()
        self.roster.stop()
        self.writer.close()
        self.parts.resources.close()


def _private(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


def _live_sum(items: int, options: Options) -> Any:
    if options.instant:
        from rescind.methods.additive._live_inverse import InstantSum

        return InstantSum(items, min_count=options.min_count)
    from rescind.methods.additive._live_sum import LiveSum  # compiles on first use

    return LiveSum(items, min_count=options.min_count)
