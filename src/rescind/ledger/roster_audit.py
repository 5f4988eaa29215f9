"""Checks a roster as whoever may rebuild does: the ledger's sum is the published one, and gives the
weights that are served. Right after a release: later changes destroyed the seeds of their lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rescind.errors import DataError
from rescind.ledger.roster_worker import LENT
from rescind.methods.additive._live_release import file_digest, release_of
from rescind.proof.roster import Public, Stated
from rescind.proof.sum_hash import LENGTH, OWNERS, blinding, opens

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger


def audit(ledger: Ledger, public: Public) -> list[str]:
    """Return what holds; raise `DataError` with the first thing that does not."""
    stated, sums = Stated.parse(public.stated), ledger.live.copy()
    if stated.items != len(ledger.catalogue):
        raise DataError(
            f"the roster is of {stated.items} items, and the catalogue has {len(ledger.catalogue)} "
            f"since. Make a release, then check its roster."
        )
    seeds = ledger.roster.seeds(ledger.live.loans)
    if len(seeds) != stated.lines:
        raise DataError(
            f"{stated.lines - len(seeds)} of {stated.lines} lines cannot be opened: people changed "
            f"what they lend since this roster was made. Make a release, then check its roster."
        )
    small = np.zeros((3, LENGTH), np.int64)
    for seed in seeds:
        small += blinding(seed)
    halves = {LENT: sums.total.astype(np.int64, copy=False)}
    if ledger.options.min_count:
        halves[OWNERS] = sums.owners
    total = np.frombuffer(public.total, "<u8").astype(np.uint64)
    if wrong := opens(total, halves, small, stated.lines, stated.items):
        raise DataError(f"the ledger's sum is not the published one: {wrong}.")
    file = release_of(sums, ledger.releases.form).to_bytes(ledger.catalogue.ids)
    if file_digest(file) != stated.weights:
        raise DataError("the weights that are served were not solved from the published sum.")
    return ["the sum over the ledger is the published one", "the weights served follow from it"]
