"""The audit of a generation: does it know what was taken back since the last one learnt?

The attacker has the model and scores each record that is gone, and as popular ones that the same
person never lent, beside a model of another seed that never had the records. Models of known answer
are judged with it:

    no-op      trained with the records, as the last generation was   must FAIL
    retrain    trained without them, with a third seed                must PASS

Otherwise the verdict is VOID. Each of the three is a training of its own. Only people who still
lend something are judged: nobody else has a model left here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rescind.audits.case import evidence
from rescind.audits.finding import Finding
from rescind.core.federation import Federation
from rescind.core.records import Records
from rescind.ledger.release_audit import Floats, Person, judged, matched, measured, with_lost
from rescind.ledger.release_counts import FEWEST, why_not_judged
from rescind.ledger.worker_io import Items

Trained = Callable[[Sequence[Items], int], Federation]
"""Trains on loans with a seed."""
JUDGED = "that the last generation learnt, of people who still lend,"


def audited(
    subject: Federation,
    kept: Sequence[Items],
    gone: Sequence[Items],
    items: int,
    seed: int,
    trained: Trained,
    lost: int | None = 0,
) -> Finding:
    """Judge a generation. kept, gone: of each person, what they lend and what they took back

    lost: how many were taken back that no memory has, at most; None: that was not counted
    """
    records = sum(map(len, gone))
    if records < FEWEST:
        return Finding("audit", "UNAUDITED", note=why_not_judged(records, lost, JUDGED))
    people = matched(kept, gone, items)
    before = [np.union1d(one, two).astype(np.int32) for one, two in zip(kept, gone, strict=True)]
    reference = _known(trained(kept, seed + 1), people)
    models = {
        "subject": _known(subject, people),
        "no-op": _known(trained(before, seed), people),
        "retrain": _known(trained(kept, seed + 2), people),
    }
    found = {
        name: measured([a - b for a, b in zip(known, reference, strict=True)], people)
        for name, known in models.items()
    }
    return with_lost(judged(found, {"no-op": "FAIL", "retrain": "PASS"}, records), lost)[0]


def _known(fed: Federation, people: Sequence[Person]) -> list[Floats]:
    """Return how well a model knows each person's items that are gone or were never lent."""
    asked = [np.concatenate([one.gone, one.never]) for one in people]
    client = np.repeat([one.number for one in people], [len(items) for items in asked])
    item = np.concatenate(asked).astype(np.int64)
    known = evidence(fed, Records.of(torch.from_numpy(client), torch.from_numpy(item)))
    out, at = [], 0
    for items in asked:
        row = np.zeros(fed.world.sizes.items)
        row[items] = known[at : at + len(items)].double().numpy()
        at += len(items)
        out.append(row)
    return out
