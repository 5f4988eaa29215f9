"""PDC-FRS-R: the mechanism, what the server sees of it, and fusion (baselines.md 2.3, a to d)."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.records import Records, Unshare
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.pdc_frs import (
    PDCFRSR,
    SENT,
    SIMILAR,
    law,
    perturbed,
    perturbed_graph,
)
from rescind.models.lightgcn import LightGCN
from worlds import begin_in_groups, randoms

SMALL = PDCFRSR(
    model=LightGCN(dim=4), clients_per_round=6, warm_up=1, auxiliary_steps=2, auxiliary_pairs=16,
    hints=4, hint_share=0.5,
)  # fmt: skip


def digests(fed: Federation) -> tuple[str, str, str]:
    state = fed.now.state
    return tuple(params.digest(p) for p in (state.public, state.own, fed.now.vault.private))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_a_no_output_is_more_than_e_to_the_epsilon_times_likelier_for_another_input(epsilon):
    chances = law(randoms(50, 6, seed=1), torch.arange(50), epsilon)
    assert_close(chances.sum(1), torch.ones(50, dtype=torch.float64))
    worst = chances.max(0).values / chances.min(0).values
    assert float(worst.max()) <= math.exp(epsilon) * (1 + 1e-12)


def test_the_law_by_hand():
    # Items along x, along y and against x: q(0, .) = 1, 1/2, 0. With epsilon = 2 ln 4 the weights
    # are 4, 2, 1, so the law is 4/7, 2/7, 1/7.
    table = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    found = law(table, torch.tensor([0]), 2 * math.log(4))
    assert_close(found, torch.tensor([[4.0, 2.0, 1.0]], dtype=torch.float64) / 7)


def test_b_no_budget_is_the_uniform_law_and_an_endless_one_the_identity():
    table, items = randoms(50, 6, seed=1), torch.arange(50)
    assert_close(law(table, items, 0.0), torch.full((50, 50), 0.02, dtype=torch.float64))
    chance = Clock(1).uniform("draw", items)
    assert torch.equal(perturbed(table, items, chance, 1e6), items)


def test_c_draws_follow_the_law_by_chi_square():
    table, many = randoms(20, 3, seed=4), 100_000
    chance = Clock(5).uniform("draw", torch.arange(many))
    drawn = perturbed(table, torch.full((many,), 7), chance, 5.0)
    expected = law(table, torch.tensor([7]), 5.0)[0] * many
    counted = torch.bincount(drawn, minlength=20)
    chi = float(((counted - expected) ** 2 / expected).sum())
    assert chi < 43.8  # 99.9 % of chi-square with 19 degrees of freedom


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_d_without_fusion_and_suggestions_it_is_averaging_bit_for_bit(executor):
    off = replace(SMALL, fusion=0.0, hints=0)
    same = {f.name: getattr(off, f.name) for f in fields(FedAvg)}
    plain = FedAvg(**{**same, "local_includes_shared": True})
    one, two = begin_in_groups(off, executor).run(4), begin_in_groups(plain, executor).run(4)
    assert torch.equal(one.now.state.public["item"], two.now.state.public["item"])
    assert torch.equal(one.now.vault.private["user"], two.now.vault.private["user"])
    assert not len(one.now.state.own["sent/item"]), "what is not needed is not asked for"


def test_d_contributing_alone_leaves_training_as_it_is():
    off = replace(SMALL, fusion=0.0, hint_share=0.0)
    same = {f.name: getattr(off, f.name) for f in fields(FedAvg)}
    plain = FedAvg(**{**same, "local_includes_shared": True})
    readable = InProcess(fused=False)
    one, two = begin_in_groups(off, readable).run(4), begin_in_groups(plain, readable).run(4)
    assert torch.equal(one.now.state.public["item"], two.now.state.public["item"])
    assert len(one.now.state.own["sent/item"])


def test_the_server_receives_exactly_the_perturbed_items_of_each_sharer():
    method = replace(SMALL, clients_per_round=None, epsilon=1.0)
    fed = begin_in_groups(method).run(2)
    state, shared = fed.now.state, fed.world.shared
    table = state.public[SIMILAR]
    assert torch.equal(table, begin_in_groups(method).run(1).now.state.public["item"])
    chance = fed.clock.uniform("perturbed item", shared.client, shared.item)
    answer = perturbed(table, shared.item, chance, 1.0)
    expected = set(zip(shared.client.tolist(), answer.tolist(), strict=True))
    sent = list(zip(state.own["sent/user"].tolist(), state.own["sent/item"].tolist(), strict=True))
    assert set(sent) == expected
    assert len(sent) == len(expected), "without duplicates"
    assert expected != set(zip(shared.client.tolist(), shared.item.tolist(), strict=True))


def test_nothing_the_server_does_depends_on_which_items_were_lent():
    fed = begin_in_groups(SMALL).run(4)
    state, world, clock = fed.now.state, fed.world, fed.clock.at(5)
    shared = world.shared
    elsewhere = replace(world, shared=Records.of(shared.client, 13 - shared.item, shared.time))
    ids = SMALL.server_sample(state, world, clock)
    assert torch.equal(ids, SMALL.server_sample(state, elsewhere, clock))
    letters = [SMALL.server_mail(state, w, ids, clock) for w in (world, elsewhere)]
    assert params.digest(letters[0].values) == params.digest(letters[1].values)
    sums, _ = fed.executor.train(SMALL, state.public, letters[0], fed.now.vault, ids, None, clock)
    one, two = (SMALL.server_step(state, sums, w, clock) for w in (world, elsewhere))
    assert params.digest(one.public) == params.digest(two.public)
    assert params.digest(one.own) == params.digest(two.own)


def test_a_device_contributes_once_and_an_outdated_contribution_goes():
    method = replace(SMALL, clients_per_round=None)
    fed = begin_in_groups(method).run(2)
    sent = fed.now.state.own["sent/item"]
    mail = method.server_mail(fed.now.state, fed.world, torch.arange(9), fed.clock.at(3))
    assert not bool(mail.values["slot"].any())
    assert torch.equal(fed.run(1).now.state.own["sent/item"], sent)
    back = fed.apply(Unshare(fed.lent(0)[torch.tensor([0])]))
    mail = method.server_mail(back.now.state, back.world, torch.arange(9), fed.clock.at(3))
    assert mail.ids[mail.values["slot"] > 0].tolist() == [0]
    again = back.run(1).now.state.own
    mine = again["sent/item"][again["sent/user"] == 0].tolist()
    assert set(mine) <= set(sent[fed.now.state.own["sent/user"] == 0].tolist()), "the same answers"
    gone = back.apply(Unshare(back.lent(0))).run(1).now.state.own
    assert not bool((gone["sent/user"] == 0).any())


def test_a_contribution_survives_chunks_single_clients_and_partial_rounds():
    runs = []
    for executor in (InProcess(), InProcess(chunk=2), OneByOne()):
        fed = begin_in_groups(SMALL, executor).run(5)
        own = fed.now.state.own
        runs.append((sorted(zip(own["sent/user"].tolist(), own["sent/item"].tolist(), strict=True)),
                     fed.now.state.public["item"]))  # fmt: skip
    assert runs[0][0]
    for sent, item in runs[1:]:
        assert sent == runs[0][0]
        assert_close(item, runs[0][1], atol=1e-5, rtol=1e-4)


def test_suggestions_are_positives_of_less_weight_and_never_negatives():
    fed = begin_in_groups(SMALL)
    ids = torch.tensor([3, 6])
    own = fed.now.vault.holdings.of_clients("own", torch.tensor([3])).item
    free = [i for i in range(14) if i not in own.tolist()]
    hints = torch.tensor([[int(own[0]), free[1], free[0], -1]])
    one = torch.ones(1, dtype=torch.int64)
    mail = Mail(torch.tensor([3]), {"slot": one - 1, "slots": one, "hints": hints})
    cohort = InProcess().cohort(SMALL, fed.now.vault, ids, mail=mail)
    cohort = replace(cohort, train=cohort.own)
    owner, item = SMALL.client_hints(cohort)
    most = round(0.5 * len(own))
    assert owner.tolist() == [0] * min(2, most)
    assert item.tolist() == [free[1], free[0]][:most], "what it has already is no news"
    private = fed.now.vault.read(ids)
    for step in range(20):
        plan = SMALL.client_plan(fed.now.state.public, private, cohort, fed.clock.step(step))
        mine = plan.owner == 0
        assert not set(plan.items["negative"][mine].tolist()) & set(item.tolist())
        told = torch.isin(plan.items["positive"], item) & mine
        assert bool((plan.values["weight"][told] == torch.tensor(0.3)).all())
        assert bool((plan.values["weight"][~told] == 1).all())
        assert int(told.sum()) == len(item) * SMALL.negatives


def test_a_weight_of_one_counts_a_suggestion_like_any_item_and_zero_like_none():
    fed = begin_in_groups(SMALL).run(3)
    state, clock = fed.now.state, fed.clock.at(4)
    ids = torch.arange(6)
    mail = SMALL.server_mail(state, fed.world, ids, clock)
    assert bool((mail.values["hints"] >= 0).any())
    moved = {}
    for weight in (0.0, 0.3, 1.0):
        method = replace(SMALL, hint_weight=weight)
        cohort = InProcess().cohort(method, fed.now.vault, ids, mail=mail)
        update, _ = method.client_train(state.public, fed.now.vault.read(ids), cohort, clock)
        moved[weight] = update.fold(cohort.weight).totals["item"]
    # One batch, so the step is linear in the weight.
    expected = 0.7 * moved[0.0] + 0.3 * moved[1.0]
    assert_close(moved[0.3], expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(moved[0.0], moved[1.0], atol=1e-4)


def test_fusion_mixes_the_tables_on_contributed_items_only():
    method = replace(SMALL, clients_per_round=None, fusion=0.25, hints=0)
    fed = begin_in_groups(method).run(1)
    fused, apart = fed.run(1), fed.run(1, method=replace(method, fusion=1e-9))
    state = fused.now.state
    rows = perturbed_graph(state.own, fed.world).lent_items
    expected = apart.now.state.public["item"].clone()
    expected[rows] = 0.75 * expected[rows] + 0.25 * state.own["auxiliary/item"][rows]
    assert_close(state.public["item"], expected, atol=1e-6, rtol=1e-5)
    assert_close(state.own["federated/item"], apart.now.state.public["item"])
    # What devices send later moves the federated table, not the fused one.
    later, clock = fused.run(1).now.state, fused.clock.at(3)
    ids = torch.arange(9)
    sums, _ = fused.executor.train(method, state.public, None, fused.now.vault, ids, None, clock)
    moved = later.own["federated/item"] - state.own["federated/item"]
    assert_close(moved, sums["train"].totals["item"] / 8, atol=1e-5, rtol=1e-4)
    contrast = fed.run(1, method=replace(method, fuse="infonce"))
    moved = (contrast.now.state.public["item"] - apart.now.state.public["item"]).abs().amax(
        1
    ) > 1e-6
    assert set(moved.nonzero().squeeze(1).tolist()) == set(rows.tolist())


def test_the_same_seed_gives_the_same_run_after_the_warm_up_too():
    assert digests(begin_in_groups(SMALL).run(4)) == digests(begin_in_groups(SMALL).run(4))
    assert SENT not in begin_in_groups(SMALL).run(4).now.state.public
