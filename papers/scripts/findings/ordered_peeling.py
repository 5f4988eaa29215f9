"""Attack SeqGram's sums by peeling: `python papers/scripts/findings/ordered_peeling.py` (minutes).

Whoever sees a sum of ordered pairs looks for items with a single owner and reads what came before
and after. A row per dataset and number of people in the sum; `Gram` stands beside, attacked by the
same idea. The control is a sum of one person, from which everything must be found.
"""

from __future__ import annotations

from typing import Any

import torch
from writing import write

from rescind.core.clock import Clock
from rescind.core.holdings import Holdings
from rescind.experiments.cell import DataSettings
from rescind.experiments.learning_run import prepare
from rescind.experiments.peeling_attack import peel, peel_ordered
from rescind.methods.additive._ordered import add_sequences
from rescind.methods.additive._pairs import mirrored, pair_sums, weight_of
from rescind.methods.additive.seq_gram import SeqGram

DATA = (DataSettings("ml-100k", core=5, split="last"), DataSettings("ml-1m", core=5, split="last"))
PEOPLE = (1, 10, 100, None)


def attacked(holdings: Holdings, ids: torch.Tensor) -> dict[str, int]:
    """Count the sequences that are read from the sums of these people, whole and in order."""
    lot, near = holdings.cohort(ids, ordered=True).own, SeqGram.sequences().nearness
    assert lot.time is not None
    total = torch.zeros(holdings.items**2, 2, dtype=torch.int64)
    add_sequences(total, lot, torch.ones(lot.clients).long(), near)
    truth = set()
    for person in range(lot.clients):
        mine = lot.owner == person
        truth.add(tuple(lot.item[mine][torch.argsort(lot.time[mine])].tolist()))
    read = peel_ordered(total, near)
    plain, _ = pair_sums(lot, weight_of(lot.count), holdings.items)
    sets = peel(mirrored(plain))
    sequences = {frozenset(mine) for mine in truth}
    return {
        "people": len(ids),
        "in order": len(truth & set(read)),
        "as a set": len(sequences & {frozenset(mine) for mine in read}),
        "as a set, from Gram": sets.right(sequences),
    }


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the data and a row per dataset and number of people."""
    digests, rows = {}, []
    for settings in DATA:
        data = prepare(settings)
        digests[f"{settings.name}, the last item left out"] = data.digest
        holdings = data.on_devices(0)
        order = torch.argsort(Clock(0).bits("peeled", torch.arange(holdings.clients)), stable=True)
        for people in PEOPLE:
            ids = order[:people].sort().values
            rows.append({"data": settings.name, **attacked(holdings, ids)})
            print(rows[-1], flush=True)
    return digests, rows


if __name__ == "__main__":
    write("ordered_peeling", *found())
