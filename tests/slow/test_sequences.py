"""Sequences at the size of ML-1M: a thousand requests, what one person costs, and the solve."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Lot
from rescind.data import k_core, load
from rescind.data.sequences import in_order, next_item
from rescind.methods.additive import _ordered as ordered
from rescind.methods.additive.seq_gram import SeqGram

pytestmark = [pytest.mark.slow, pytest.mark.data]


def only(lot: Lot, person: int, without: int | None = None) -> Lot:
    """One person's sequence, perhaps without one of the records inside it."""
    begin, end = int(lot.first[person]), int(lot.first[person] + lot.count[person])
    item, when = lot.item[begin:end], lot.time[begin:end]
    if without is not None:
        kept = torch.arange(end - begin) != without
        item, when = item[kept], when[kept]
    return Lot(torch.zeros_like(item), item, 1, when)


def together(people: dict[int, Lot]) -> Lot:
    """Everybody who is left, in one lot."""
    lots = list(people.values())
    owner = torch.repeat_interleave(torch.arange(len(lots)), torch.tensor([len(x) for x in lots]))
    item, when = (torch.cat([getattr(x, name) for x in lots]) for name in ("item", "time"))
    return Lot(owner, item, len(lots), when)


def test_a_thousand_requests_on_ml_1m_leave_the_sum_of_what_remains():
    data = next_item(k_core(in_order(load("ml-1m")), 5))
    holdings, method = data.on_devices(0), SeqGram.sequences()
    everybody = torch.arange(holdings.clients)
    lot, near = holdings.cohort(everybody, ordered=True).own, method.nearness
    people = {person: only(lot, person) for person in everybody.tolist()}
    total = torch.zeros(holdings.items**2, 2, dtype=torch.int32)
    ordered.add_sequences(total, lot, torch.ones(lot.clients).long(), near)
    took, dice = [], Clock(5)
    for number in range(1000):
        left = sorted(people)
        draw = dice.at(number).integers("who", torch.arange(2), 0, 2**30).tolist()
        who = left[draw[0] % len(left)]
        old = people.pop(who)
        begun = time.process_time()  # other programs may be running
        ordered.add_sequences(total, old, torch.tensor([-1]), near)
        if number % 2 and len(old) > 3:  # a record inside the sequence: the part is replaced whole
            people[who] = only(old, 0, without=draw[1] % len(old))
            ordered.add_sequences(total, people[who], torch.tensor([1]), near)
        else:
            took.append(time.process_time() - begun)
        if number % 143 == 0 or number == 999:
            never = torch.zeros_like(total)
            ordered.add_sequences(never, together(people), torch.ones(len(people)).long(), near)
            assert params.digest({"sum": total}) == params.digest({"sum": never}), number
    begun = time.process_time()
    weights = method.server_weights({"gram/0000": total})
    solved = time.process_time() - begun
    matrix = weights[0].clone()
    begun = time.process_time()
    torch.mm(matrix, matrix)  # how fast this machine is at this moment
    product = time.process_time() - begun
    assert torch.equal(weights, method.server_weights({"gram/0000": never}))
    print(
        f"a person: {1e3 * median(took):.2f} ms median; solve: {solved:.2f} CPU s, "
        f"one product {product:.2f}"
    )
    assert median(took) < 1e-3
