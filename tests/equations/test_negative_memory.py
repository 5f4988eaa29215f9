"""CFRU's memory of hard negatives, against loops over people and entries."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from rescind.core.federation import Federation
from rescind.core.records import Withdraw
from rescind.core.tasks.ranking import draw_negatives
from rescind.methods.unlearning._negative_memory import (
    ITEM,
    MEAN,
    SQUARES,
    TIMES,
    empty,
    hardest,
    refreshed,
)
from rescind.methods.unlearning.cfru import CFRU
from rescind.models.lightgcn import LightGCN
from worlds import randoms, tiny_holdings

PEOPLE, ITEMS, SIZE, FRESH = 6, 14, 3, 5


def begin(**given) -> Federation:
    method = CFRU(model=LightGCN(dim=4), clients_per_round=4, **given)
    return Federation.start(tiny_holdings(PEOPLE, ITEMS), method)


def drawn_slowly(held, scores, cohort, clock) -> list[set[int]]:
    """Every candidate's score and luck, one person after another; the largest sums stay."""
    found = []
    for c in range(len(cohort)):
        mine = set(cohort.own.item[cohort.own.owner == c].tolist())
        new = [
            int(draw_negatives(clock, cohort, torch.tensor([c]), torch.tensor([k])))
            for k in range(FRESH)
        ]
        values: dict[int, float] = {}
        for place, item in enumerate([*held[ITEM][c].tolist(), *new]):
            if item >= 0 and item not in mine and item not in values:
                luck = float(clock.uniform("negative memory", cohort.ids[c : c + 1], place))
                values[item] = float(scores[c, item]) - math.log(-math.log(luck))
        found.append(set(sorted(values, key=lambda i: -values[i])[:SIZE]))
    return found


def test_a_memory_is_drawn_by_score_and_remembers_how_scores_wavered():
    fed = begin()
    cohort = fed.now.vault.holdings.cohort(torch.arange(PEOPLE))
    held, told = empty(PEOPLE, SIZE, cohort.ids.device), {}
    stayed = 0
    for turn in range(1, 9):
        clock, scores = fed.clock.at(turn), randoms(PEOPLE, ITEMS, seed=turn).float()
        wanted = drawn_slowly(held, scores, cohort, clock)
        held = refreshed(held, scores, cohort, clock, FRESH)
        now = [set(row[row >= 0].tolist()) for row in held[ITEM]]
        assert now == wanted
        before, told = told, {}
        for c in range(PEOPLE):
            for slot, item in enumerate(held[ITEM][c].tolist()):
                if item < 0:
                    continue
                told[c, item] = [*before.get((c, item), []), float(scores[c, item])]
                stayed += len(told[c, item]) > 2
                values = torch.tensor(told[c, item])
                assert held[TIMES][c, slot] == len(values)
                assert_close(held[MEAN][c, slot], values.mean())
                spread = held[SQUARES][c, slot] / held[TIMES][c, slot]
                assert_close(spread, values.var(correction=0), atol=1e-5, rtol=1e-4)
    assert stayed > 5


def test_the_hardest_entries_score_high_or_wavered():
    fed = begin()
    cohort = fed.now.vault.holdings.cohort(torch.arange(PEOPLE))
    held = empty(PEOPLE, SIZE, cohort.ids.device)
    for turn in (1, 2, 3):
        scores = randoms(PEOPLE, ITEMS, seed=turn).float()
        held = refreshed(held, scores, cohort, fed.clock.at(turn), FRESH)
    owner, positive = cohort.train.owner, cohort.train.item
    for doubt in (0.0, 5.0):
        found = hardest(held, scores, owner, positive, 2, doubt)
        for n, (c, i) in enumerate(zip(owner.tolist(), positive.tolist(), strict=True)):
            value = {}
            for slot, item in enumerate(held[ITEM][c].tolist()):
                if item >= 0:
                    above = float(scores[c, item] - scores[c, i])
                    times = float(held[TIMES][c, slot])
                    wavered = math.sqrt(float(held[SQUARES][c, slot]) / times)
                    value[item] = 1 / (1 + math.exp(-above)) + doubt * wavered
            best = sorted(value, key=lambda item: -value[item])[:2]
            assert found[n].tolist() == best + [-1] * (2 - len(best))


def test_a_person_alone_remembers_what_they_do_in_a_crowd():
    fed = begin(negatives_from="memory", memory_size=SIZE)
    public, clock = fed.now.state.public, fed.clock.at(2)

    def after(ids):
        cohort = fed.now.vault.holdings.cohort(ids)
        first = fed.method.client_init(ids, fed.clock)
        _, private = fed.method.client_train(public, first, cohort, clock)
        return private

    crowd = after(torch.arange(PEOPLE))
    for c in range(PEOPLE):
        alone = after(torch.tensor([c]))
        assert torch.equal(alone[ITEM][0], crowd[ITEM][c])


def test_a_run_with_it_keeps_entries_on_devices_learns_and_forgets():
    fed = begin(negatives_from="memory").run(4)
    plain = begin().run(4)
    assert not torch.equal(fed.now.state.public["item"], plain.now.state.public["item"])
    held = fed.now.vault.private[ITEM]
    assert bool((held >= 0).any())
    owned = fed.now.vault.holdings.cohort(torch.arange(PEOPLE)).own
    for c in range(PEOPLE):
        mine = set(owned.item[owned.owner == c].tolist())
        assert not mine & set(held[c].tolist())
    assert ITEM not in plain.now.vault.private
    after = fed.method.unlearn(fed, Withdraw(1))
    assert bool(after.now.state.public["item"].isfinite().all())
