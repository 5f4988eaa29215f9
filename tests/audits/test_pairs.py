"""Pairs of items that only those who asked had together: against a loop, and on planted tables."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

from rescind.audits import item_pairs as pairs
from rescind.audits.case import Case
from rescind.audits.item_pairs import pairs_of, together
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Erase, Records, Share, Unshare
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from worlds import hoarder, lendable, randoms, tiny_rows

ASKED = (0, 1, 2)


@pytest.fixture(autouse=True)
def small_worlds(monkeypatch):
    monkeypatch.setattr(pairs, "FEWEST", 1)
    monkeypatch.setattr(pairs, "MOST", 6)


def case_of(event=Erase) -> Case:
    method = FedShare(model=LightGCN(dim=4), clients_per_round=5)
    rows = [row for row in tiny_rows(12, 30, 0) if row[0] != hoarder(12)]  # who has all pairs
    records = Records.of(*([row[column] for row in rows] for column in range(3)))
    holdings = Holdings.of(records, torch.tensor([row[3] for row in rows]), 12, 30)
    fed = Federation.start(holdings, method)
    loans = lendable(fed.now.vault.holdings, *ASKED)
    fed = fed.apply(Share(loans)).run(1)
    return Case.of(fed, event(loans))


def had(records) -> dict[int, set[int]]:
    out: dict[int, set[int]] = {}
    for who, what in zip(records.client.tolist(), records.item.tolist(), strict=True):
        out.setdefault(who, set()).add(what)
    return out


def slowly(case: Case) -> tuple[set[tuple[int, int, int]], set[tuple[int, int]]]:
    """(person, item, item) that only people who asked have; (item, item) that nobody ever had."""
    often = [case.trained.item.tolist().count(i) for i in range(case.before.world.sizes.items)]
    rare = [i for i, n in enumerate(often) if 1 <= n <= 6]
    gone, every = had(case.forgotten), had(case.trained + case.valid + case.test)
    stays = {w: s - gone.get(w, set()) for w, s in had(case.trained).items()}
    mine, free = set(), set()
    for i, j in combinations(rare, 2):
        if not any({i, j} <= s for s in every.values()):
            free.add((i, j))
        if not any({i, j} <= s for s in stays.values()):
            mine |= {(w, i, j) for w, s in gone.items() if {i, j} <= s}
    return mine, free


def table_of(case: Case, item) -> Federation:
    state = case.before.now.state
    return case.before.with_(state=type(state)({"item": item}, state.own, state.memory))


def test_the_pairs_are_those_that_a_loop_finds():
    case = case_of()
    found = pairs_of(case)
    mine, free = slowly(case)
    people = sorted({w for w, _, _ in mine})
    named = zip(found.person.tolist(), found.one.tolist(), found.two.tolist(), strict=True)
    assert {(people[p], i, j) for p, i, j in named} == mine
    others = zip(*(part.tolist() for part in found.others), strict=True)
    assert set(others) == free
    assert mine
    assert free
    for p, person in enumerate(people):
        assert int(found.items[p]) == len({i for w, *ij in mine for i in ij if w == person})


def test_the_measure_is_how_often_a_pair_is_closer_than_one_that_nobody_has():
    case, item = case_of(), randoms(30, 4).float()
    found = together(case, table_of(case, item))
    assert found
    mine, free = slowly(case)
    unit = item.double() - item.double().mean(0)
    unit = unit / unit.norm(dim=1, keepdim=True)
    usual = [float(unit[i] @ unit[j]) for i, j in free]
    for p, person in enumerate(sorted({w for w, _, _ in mine})):
        near = [float(unit[i] @ unit[j]) for w, i, j in mine if w == person]
        won = [sum((n > u) + 0.5 * (n == u) for u in usual) / len(usual) for n in near]
        assert_close(float(found.value[p]), sum(won) / len(won))


def test_a_table_that_remembers_who_had_what_is_caught_and_one_that_does_not_is_not():
    case = case_of()
    noise = randoms(30, 4).float()
    blank = together(case, table_of(case, noise))
    at = pairs_of(case)
    pulled = noise.clone()
    for who, towards in zip(range(len(at.items)), torch.eye(4), strict=False):
        rows = torch.unique(torch.cat([at.one, at.two])[torch.cat([at.person, at.person]) == who])
        pulled[rows] += 8 * towards
    told = together(case, table_of(case, pulled))
    assert blank
    assert told
    means = [float((f.value * f.weight).sum() / f.weight.sum()) for f in (blank, told)]
    assert abs(means[0] - 0.5) < 0.2
    assert means[1] > means[0] + 0.2


def test_it_does_not_apply_where_devices_keep_the_records():
    case = case_of(Unshare)
    assert together(case, case.before) is None
