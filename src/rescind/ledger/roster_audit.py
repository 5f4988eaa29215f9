"""Checks a roster as whoever may rebuild does: the ledger's sum is the published one, and gives the
weights that are served. Right after a release: later changes destroyed the seeds of their lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rescind.errors import DataError
from rescind.ledger.open_sum import OpenSum
from rescind.methods.additive._live_release import unpacked
from rescind.proof.roster import Public, Stated
from rescind.proof.sum_hash import LENGTH, blinding

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger


def audit(ledger: Ledger, public: Public) -> list[str]:
    """Return what holds; raise `DataError` with the first thing that does not."""
    stated = Stated.parse(public.stated)
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
    releases, small = ledger.releases, np.zeros((3, LENGTH), np.int64)
    for seed in seeds:
        small += blinding(seed)
    own = OpenSum(stated.number, releases.form, ledger.live.copy(), small)
    own.check(public, unpacked(releases.file()))
    return ["the sum over the ledger is the published one", "the weights served follow from it"]
