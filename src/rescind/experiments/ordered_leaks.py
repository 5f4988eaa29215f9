"""Attack SeqGram's sums by peeling: how many sequences can be read from the sum of few or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.holdings import Holdings
from rescind.experiments.peeling_attack import peel, peel_ordered
from rescind.methods.additive._ordered import Nearness, add_sequences
from rescind.methods.additive._pairs import mirrored, pair_sums, weight_of

PEOPLE = (1, 10, 100, None)
"""How many people a sum is of; None: everybody. One person is the control: all must be found."""


def ordered_leaks(
    holdings: Holdings, near: Nearness, progress: Callable[[int], Any] = lambda _: None
) -> list[dict[str, int]]:
    """Return a line for each number of people in the sum; `Gram` stands beside."""
    everybody = holdings.available.nonzero().squeeze(1)
    order = everybody[torch.argsort(Clock(0).bits("peeled", everybody), stable=True)]
    lines = []
    for people in PEOPLE:
        if people is None or people < len(order):
            lines.append(attacked(holdings, near, order[:people].sort().values))
            progress(len(order[:people]))
    return lines


def attacked(holdings: Holdings, near: Nearness, ids: Tensor) -> dict[str, int]:
    """Count the sequences that are read from the sums of these people, whole and in order."""
    lot = holdings.cohort(ids, ordered=True).own
    assert lot.time is not None
    total = torch.zeros(holdings.items**2, 2, dtype=torch.int64)
    add_sequences(total, lot, torch.ones(lot.clients).long(), near)
    truth = set()
    for person in range(lot.clients):
        mine = lot.owner == person
        truth.add(tuple(lot.item[mine][torch.argsort(lot.time[mine])].tolist()))
    read = peel_ordered(total, near)
    plain, _ = pair_sums(lot, weight_of(lot.count), holdings.items)
    sequences = {frozenset(mine) for mine in truth}
    return {
        "people": len(ids),
        "in order": len(truth & set(read)),
        "as a set": len(sequences & {frozenset(mine) for mine in read}),
        "as a set, from Gram": peel(mirrored(plain)).right(sequences),
    }
