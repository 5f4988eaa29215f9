"""Generations that are ready without having been trained, for tests of what comes after."""

from __future__ import annotations

import numpy as np

from ledgers import done
from rescind.audits.finding import Finding
from rescind.ledger.book import Ledger
from rescind.ledger.jobs import LISTS, LONGEST, EndJob, StartJob, bound, file_of, job_row
from rescind.ledger.keyslots import seal

AUDIT = Finding("audit", "UNAUDITED", note="Nothing was measured.")


def made(ledger: Ledger, people: list[bytes], finding: Finding | None = AUDIT) -> str:
    """Write a generation that is ready; everybody's list is the catalogue from its end."""
    begun = done(ledger, StartJob("FedShare", 3, ledger.generations._begun)).body["job"]
    with ledger.store.reading() as tx:
        row = job_row(tx, begun)
    key, items = ledger.keys.get(row.key).key, len(ledger.catalogue)
    mine = np.full(LONGEST, -1, "<i4")
    mine[: min(items, LONGEST)] = np.arange(items)[::-1][:LONGEST]
    plain = b"".join(sorted(people)) + np.tile(mine, (len(people), 1)).tobytes()
    file_of(ledger.state, begun, LISTS).write_bytes(seal(key, plain, bound(begun, LISTS)))
    done(ledger, EndJob(begun, "ready", finding=finding))
    return str(begun)
