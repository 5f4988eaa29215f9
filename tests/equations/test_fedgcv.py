"""FedGCV and its baselines, equation by equation, against gradients of dense matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from graphs import Dense, tiny_graph, tiny_subgraphs
from rescind import Erase, Federation, Withdraw
from rescind.audits import mait
from rescind.audits.virtual_client import leak
from rescind.core.clock import Clock
from rescind.core.holdings import TRAIN
from rescind.core.params import add, dot, norm
from rescind.data.partition import subgraphs
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.methods._client_removal import FORGET, KEEP, clipped, one_step, with_reference
from rescind.methods.graphs._vgae import VGAE, low_frequencies
from rescind.methods.graphs.drop import Drop
from rescind.methods.graphs.fedavg import GraphFedAvg, GraphFedSGD
from rescind.methods.graphs.fedgcv import FedGCV, projected
from rescind.methods.graphs.fedosd import FedOSD, orthonormal
from rescind.methods.graphs.noisy_gd import NoisyGD
from rescind.methods.graphs.pga import PGA, GraphAscent
from rescind.methods.graphs.regen_proxy import ReGEnProxy
from rescind.methods.graphs.sga import EWCSGA, SGADegree, SGARandom
from rescind.methods.graphs.ulkd import SENT, ULKD
from rescind.models.gcn import GCN

NAMES = ("one/weight", "one/bias", "two/weight", "two/bias")
SMALL = GCN(hidden=5)
LEAVER = 2
ROLES = {0: KEEP, 1: KEEP, LEAVER: FORGET, 3: KEEP}
UNLEARNERS = (
    FedGCV, GraphAscent, PGA, SGARandom, SGADegree, EWCSGA, NoisyGD, ULKD, ReGEnProxy, FedOSD, Drop
)  # fmt: skip


@cache
def trained(method: GraphFedAvg | None = None, rounds: int = 12) -> Federation:
    """Four clients after some rounds, in float64: once for all tests, a federation is a value."""
    method = method or GraphFedAvg(model=SMALL)
    fed = Federation.start(tiny_subgraphs(clients=4, nodes=60), method, seed=5)
    wide = {
        part: {n: v.double() for n, v in getattr(fed.now.state, part).items()}
        for part in ("public", "own")
    }
    return fed.with_(state=replace(fed.now.state, **wide)).run(rounds)


@cache
def one_never_trained() -> Federation:
    """Four clients after three rounds, one of whom has nothing to train on."""
    graph, part = tiny_graph(60, 4)
    graph.y[part == LEAVER] = -1
    return Federation.start(subgraphs(graph, part), ULKD(model=SMALL), seed=1).run(3)


def leaves(public) -> dict[str, torch.Tensor]:
    return {name: public[name].clone().requires_grad_() for name in NAMES}


@pytest.mark.parametrize("sharpness", [1.0, 5.0])
def test_corrected_steps_equal_npo_projected_off_the_others_with_one_adam(sharpness):
    fed = trained()
    held, first = fed.now.vault.holdings, fed.now.state.public
    w = leaves(first)
    adam = torch.optim.Adam(w.values(), lr=0.02)
    sizes, conflicts = torch.bincount(held.graph.owner).double(), []
    for round_ in range(13, 18):
        clock = fed.clock.at(round_).step(0).batch(0)
        before = Dense.of(held, LEAVER).entropy({n: first[n] for n in NAMES})
        far = Dense.of(held, LEAVER).entropy(w, 0.3, clock) - before
        npo = (2 / sharpness * functional.softplus(-sharpness * far)).mean()
        up = torch.autograd.grad(npo, w.values())
        rest = [c for c in range(4) if c != LEAVER]
        kept = sum(sizes[c] * Dense.of(held, c).entropy(w, 0.3, clock).mean() for c in rest)
        down = torch.autograd.grad(kept / sizes[rest].sum(), w.values())
        against = sum(float((a * b).sum()) for a, b in zip(up, down, strict=True))
        conflicts.append(against < 0)
        if against < 0:
            size = sum(float((b * b).sum()) for b in down)
            up = [a - against / size * b for a, b in zip(up, down, strict=True)]
        for leaf, grad in zip(w.values(), up, strict=True):
            leaf.grad = grad.clone()
        adam.step()
    method = FedGCV(model=SMALL, forget_rounds=5, repair_rounds=0, sharpness=sharpness)
    after = method.unlearn(fed, Withdraw(LEAVER)).now.state
    assert any(conflicts)
    assert_close(dict(after.public), {n: v.detach() for n, v in w.items()}, atol=1e-8, rtol=0)
    assert after.own == {}  # moments made of the leaver's gradients are gone


def test_with_batches_a_step_is_on_one_batch_of_every_client_drawn_anew():
    fed = trained()
    held = fed.now.vault.holdings
    many = {c: int(((held.split == TRAIN) & (held.records.client == c)).sum()) for c in range(4)}
    method = FedGCV(model=SMALL, batch_size=3)
    seen = []
    for role, ids in ((FORGET, [LEAVER]), (KEEP, [0, 1, 3])):
        cohort = replace(held.cohort(torch.tensor(ids)), role=role)
        for round_ in (1, 2):
            plan = method.client_plan(fed.now.state.public, None, cohort, Clock(0, round_))
            count = torch.bincount(plan.owner, minlength=len(ids)).tolist()
            assert count == [min(3, many[c]) for c in ids]
            assert plan.sizes == (sum(count),)
            seen.append(sorted(plan.values["node"].tolist()))
    assert seen[0] != seen[1]
    # A batch that holds everything is the full batch, to the last bit.
    full, whole = (
        FedGCV(model=SMALL, forget_rounds=3, repair_rounds=0, batch_size=size)
        .unlearn(fed, Withdraw(LEAVER)).now.state.public
        for size in (None, 1000)
    )  # fmt: skip
    small = replace(method, forget_rounds=3, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    assert_close(dict(full), dict(whole))
    assert float((small.now.state.public["one/weight"] - full["one/weight"]).abs().max()) > 1e-3


def test_projection_takes_away_conflicts_only():
    # step (1, 1), others (-1, 0): dot -1, so the part along others goes: (0, 1).
    step, others = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([-1.0, 0.0])}
    assert projected(step, others)["w"].tolist() == [0.0, 1.0]
    assert projected(step, {"w": torch.tensor([1.0, 0.0])})["w"].tolist() == [1.0, 1.0]
    assert projected(step, {"w": torch.zeros(2)})["w"].tolist() == [1.0, 1.0]
    assert projected(step, {})["w"].tolist() == [1.0, 1.0]


def test_the_scale_has_no_effect_under_adam_and_has_one_without():
    fed = trained()

    def after(**fields):
        method = FedGCV(model=SMALL, forget_rounds=4, repair_rounds=0, **fields)
        return method.unlearn(fed, Withdraw(LEAVER)).now.state.public["one/weight"]

    # Four steps of .02 move a weight by up to .08; what is left is Adam's epsilon.
    assert_close(after(scale=1.0), after(scale=50.0), atol=2e-4, rtol=0)
    plain = [after(scale=s, forget_optimiser="plain") for s in (1.0, 50.0)]
    assert float((plain[0] - plain[1]).abs().max()) > 1e-3


def test_the_model_stays_in_the_ball_and_repair_leaves_it():
    fed = trained()
    began = fed.now.state.public
    inside = FedGCV(model=SMALL, radius=0.2, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    gone = add({n: inside.now.state.public[n] for n in NAMES}, began, -1.0)
    assert norm(gone) == pytest.approx(0.2, rel=1e-6)
    repaired = FedGCV(model=SMALL, radius=0.2, repair_rounds=4).unlearn(fed, Withdraw(LEAVER))
    again = inside.run(4, method=fed.method)
    assert_close(dict(repaired.now.state.public), dict(again.now.state.public))


@pytest.mark.parametrize("fields", [{}, {"margin": 3.0}])
def test_the_radius_can_be_a_share_of_the_length_of_the_model(fields):
    fed = trained()
    began = {n: fed.now.state.public[n] for n in NAMES}
    method = FedGCV(model=SMALL, radius_share=0.05, repair_rounds=0, **fields)
    after = method.unlearn(fed, Withdraw(LEAVER)).now.state.public
    gone = add({n: after[n] for n in NAMES}, began, -1.0)
    assert norm(gone) == pytest.approx(0.05 * norm(began), rel=1e-6)


def test_the_margin_pushes_the_leavers_loss_over_the_threshold():
    fed = trained(rounds=30)
    cut = mait.threshold(fed, LEAVER)
    mine = mait.training_nodes(fed, LEAVER)
    pulled = replace(FedGCV(model=SMALL, forget_rounds=3, repair_rounds=0), sharpness=50.0)
    far = {}
    for margin in (0.0, 3.0):
        after = replace(pulled, margin=margin).unlearn(fed, Withdraw(LEAVER))
        far[margin] = float(fed.with_(state=after.now.state).query(mine, "loss").mean())
    assert far[3.0] > far[0.0]
    assert float(fed.query(mine, "loss").mean()) < float(cut) + mait.MARGIN


def test_the_loss_auc_counts_pairs_of_a_training_and_a_held_out_node():
    fed = trained(rounds=30)
    held = fed.now.vault.holdings
    mine = held.records.client == LEAVER
    ones, twos = (
        fed.query(held.records[mine & part], "loss").tolist()
        for part in (held.split == TRAIN, held.split != TRAIN)
    )
    pairs = [(a < b) + 0.5 * (a == b) for a in ones for b in twos]
    assert mait.loss_auc(fed, fed, LEAVER) == pytest.approx(sum(pairs) / len(pairs))
    still = replace(fed.now.state, public={n: v * 0 for n, v in fed.now.state.public.items()})
    assert mait.loss_auc(fed, fed.with_(state=still), LEAVER) == 0.5  # all alike: ties


def test_the_literal_equations_are_those_printed():
    # Eq. (3.4)-(3.6) with p_j = 1/4: w = (4, 0), w_j = w, the others stay at w too.
    # Delta_u = w - w/4 = (3, 0), Delta_r = 3/4 w - w = (-1, 0): dot -3, so all of Delta_u goes.
    from rescind.core.update import Sum

    w = {"w": torch.tensor([4.0, 0.0])}
    still = {
        role: Sum({"w": torch.zeros(2)}, weight, 1) for role, weight in ((FORGET, 1.0), (KEEP, 3.0))
    }
    assert FedGCV().server_literal(w, still)["w"].tolist() == [4.0, 0.0]
    # The leaver's step is (0, 100), its rate .02: w_j = (4, 2), Delta_u = (3, -.5); (0, -.5) stays.
    still[FORGET] = Sum({"w": torch.tensor([0.0, 100.0])}, 1.0, 1)
    assert FedGCV().server_literal(w, still)["w"].tolist() == [4.0, -0.5]


def test_without_correction_is_ascent_with_retention_eq_2_6():
    fed = trained()
    plain = {"model": SMALL, "forget_rounds": 2, "repair_rounds": 0}
    one = FedGCV.without_correction(**plain).unlearn(fed, Withdraw(LEAVER)).now.state.public
    two = GraphAscent(**plain).unlearn(fed, Withdraw(LEAVER)).now.state.public
    assert all(torch.equal(one[n], two[n]) for n in NAMES)
    held, first = fed.now.vault.holdings, fed.now.state.public
    w = leaves(first)
    clock = fed.clock.at(13).step(0).batch(0)
    sizes = torch.bincount(held.graph.owner).double()
    rest = [c for c in range(4) if c != LEAVER]
    kept = sum(sizes[c] * Dense.of(held, c).entropy(w, 0.3, clock).mean() for c in rest)
    loss = kept / sizes[rest].sum() - Dense.of(held, LEAVER).entropy(w, 0.3, clock).mean()
    loss.backward()
    step = GraphAscent(**{**plain, "forget_rounds": 1}, forget_optimiser="plain", scale=1.0)
    after = step.unlearn(fed, Withdraw(LEAVER)).now.state.public
    for name in NAMES:
        assert_close(after[name], first[name] - 0.02 * w[name].grad, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "cls", [*UNLEARNERS, partial(FedGCV, virtual=True), partial(FedGCV, private_virtual=True)]
)
def test_a_client_that_never_trained_leaves_the_weights_unchanged(cls):
    fed = one_never_trained()
    after = cls(model=SMALL).unlearn(fed, Withdraw(LEAVER))
    assert not bool(after.world.members[LEAVER])
    for name in NAMES:
        assert torch.equal(after.now.state.public[name], fed.now.state.public[name])


@pytest.mark.parametrize("cls", UNLEARNERS)
def test_nothing_is_left_of_an_unlearner_but_the_model(cls):
    fed = trained(ULKD(model=SMALL), rounds=4)
    after = cls(model=SMALL).unlearn(fed, Withdraw(LEAVER))
    assert set(after.now.state.public) == set(NAMES)
    assert set(after.now.state.own) == {SENT.format(n) for n in NAMES}
    for value in after.now.state.own.values():
        assert not bool(value[LEAVER].any())
    assert LEAVER not in after.now.vault.holdings.graph.owner.tolist()
    assert after.method is fed.method
    changed = norm(add({n: after.now.state.public[n] for n in NAMES}, fed.now.state.public, -1.0))
    assert changed > 1e-3
    with pytest.raises(ConsentError, match="not a member"):
        cls(model=SMALL).unlearn(after, Withdraw(LEAVER))


def test_single_nodes_are_forgotten_by_training_again():
    fed = trained(rounds=3)
    held = fed.now.vault.holdings
    some = held.records[held.split == TRAIN][torch.arange(2)]
    one = FedGCV(model=SMALL).unlearn(fed, Erase(some)).now.state.public
    two = fed.retrained(Erase(some)).now.state.public
    assert all(torch.equal(one[n], two[n]) for n in NAMES)


@pytest.mark.parametrize(("cls", "online"), [
    (FedGCV, {0, 1, 2, 3}), (SGARandom, {LEAVER}), (PGA, {LEAVER}), (NoisyGD, {0, 1, 3}),
    (ULKD, {0, 1, 3}), (Drop, set()),
])  # fmt: skip
def test_only_those_an_unlearner_needs_must_be_online(cls, online):
    fed = trained(ULKD(model=SMALL), rounds=4)
    seen: set[int] = set()
    watch = (lambda m: seen.update(c for s in m.sums.values() for c in s.who.tolist()),)
    probing = {0, 1, 2, 3} if cls is PGA else set()  # one plain round tells it the others' mean
    cls(model=SMALL, repair_rounds=0).unlearn(replace(fed, watch=watch), Withdraw(LEAVER))
    assert seen == online | probing


def test_ulkd_takes_back_exactly_what_a_client_was_added_with():
    method = ULKD(model=SMALL)
    fed = trained(method, rounds=3)
    begun = trained(method, rounds=0).now.state.public
    moved = sum(fed.now.state.own[SENT.format("one/weight")][c] for c in range(4))
    assert_close(begun["one/weight"] + moved, fed.now.state.public["one/weight"])
    only = replace(method, forget_rounds=0, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    left = fed.now.state.public["one/weight"] - fed.now.state.own[SENT.format("one/weight")][LEAVER]
    assert_close(only.now.state.public["one/weight"], left)
    plain = trained(GraphFedAvg(model=SMALL), rounds=3)
    assert_close(plain.now.state.public["one/weight"], fed.now.state.public["one/weight"])
    with pytest.raises(ConfigError, match="did not keep updates"):
        method.unlearn(plain, Withdraw(LEAVER))
    with pytest.raises(ConfigError, match="server_optimiser"):
        ULKD(server_optimiser="adam")


def test_distillation_brings_the_answers_back():
    fed = trained(ULKD(model=SMALL), rounds=20)
    keep = torch.tensor([0, 1, 3])
    answers = {}
    for steps in (0, 60):
        method = ULKD(model=SMALL, forget_rounds=steps, repair_rounds=0)
        after = fed.with_(state=method.unlearn(fed, Withdraw(LEAVER)).now.state)
        cohort = fed.now.vault.holdings.cohort(keep)
        answers[steps] = torch.softmax(
            fed.method.client_scores(after.now.state.public, fed.now.vault.read(keep), cohort), 1
        )
    old = torch.softmax(
        fed.method.client_scores(fed.now.state.public, fed.now.vault.read(keep), cohort), 1
    )
    assert float((answers[60] - old).abs().mean()) < 0.5 * float((answers[0] - old).abs().mean())


def test_half_of_the_nodes_by_chance_and_by_degree():
    # Nodes 0 to 39 know each other (degree 39), 40 to 79 nobody: 40 to 1 are their weights.
    graph, _ = tiny_graph(80, 1)
    graph.y[:] = np.maximum(graph.y, 0)
    one, other = np.nonzero(1 - np.eye(40))
    busy = replace(graph, edge_index=np.stack((one, other)))
    held = subgraphs(busy, np.zeros(80, dtype=np.int64), ratio=(100, 0, 0))
    cohort = replace(held.cohort(torch.tensor([0])), role=FORGET)
    share = {}
    for cls in (SGARandom, SGADegree):
        plans = [cls().client_plan({}, None, cohort, Clock(seed)) for seed in range(20)]
        chosen = torch.stack([plan.values["node"] for plan in plans])
        assert chosen.shape == (20, 40)
        assert all(len(set(row)) == 40 for row in chosen.tolist())
        share[cls] = float((chosen < 40).double().mean())
    assert share[SGARandom] == pytest.approx(0.5, abs=0.05)
    assert share[SGADegree] > 0.85


def test_the_fisher_information_is_the_mean_square_of_single_gradients():
    fed = trained(rounds=5)
    held, w = fed.now.vault.holdings, leaves(fed.now.state.public)
    total, many = torch.zeros_like(w["one/weight"]), 0
    for client in (0, 1, 3):
        for loss in Dense.of(held, client).entropy(w):
            (grad,) = torch.autograd.grad(loss, [w["one/weight"]], retain_graph=True)
            total, many = total + grad.detach() ** 2, many + 1
    found = EWCSGA(model=SMALL).references(fed, ROLES)
    assert_close(found["fisher/one/weight"], total / many)
    assert torch.equal(found["one/weight"], fed.now.state.public["one/weight"])


def test_a_stiffer_spring_keeps_the_model_nearer():
    fed = trained(rounds=8)
    far = []
    for stiffness in (0.0, 1e3, 1e6):
        method = EWCSGA(model=SMALL, stiffness=stiffness)
        after = method.unlearn(fed, Withdraw(LEAVER)).now.state.public
        far.append(norm(add({n: after[n] for n in NAMES}, fed.now.state.public, -1.0)))
    assert far[0] > far[1] > far[2]


def test_the_proxy_of_regen_chooses_the_nodes_whose_gradients_conflict_least():
    fed = trained(rounds=8)
    held, w = fed.now.vault.holdings, leaves(fed.now.state.public)
    others = ReGEnProxy(model=SMALL).references(fed, ROLES)
    assert norm(others) == pytest.approx(1.0)
    cohort = replace(held.cohort(torch.tensor([LEAVER])), role=FORGET)
    given = {f"reference/{n}": v for n, v in others.items()}
    plan = ReGEnProxy(model=SMALL).client_plan(
        {**fed.now.state.public, **given}, None, cohort, fed.clock
    )
    # The others' descent is -g_r, so the ascent g_v undoes it where <g_v, -g_r> < 0.
    gains = []
    for loss in Dense.of(held, LEAVER).entropy(w):
        grads = torch.autograd.grad(loss, list(w.values()), retain_graph=True)
        gains.append(
            dot(dict(zip(NAMES, grads, strict=True)), {n: others[f"others/{n}"] for n in NAMES})
        )
    best = cohort.train.item[torch.tensor(gains).argsort(descending=True)[: -(-len(gains) // 2)]]
    chosen = cohort.graph.index[plan.values["node"]]
    assert sorted(chosen.tolist()) == sorted(best.tolist())


def test_fedosd_steps_at_right_angles_to_every_other_gradient():
    vectors = [{"w": torch.tensor(v).double()} for v in ([1.0, 1, 0], [1.0, 1.0, 0], [0.0, 1, 1])]
    found = orthonormal(vectors)
    assert len(found) == 2
    assert abs(dot(found[0], found[1])) < 1e-12
    fed = trained(rounds=8)
    after = FedOSD(model=SMALL, forget_rounds=1, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    step = add({n: after.now.state.public[n] for n in NAMES}, fed.now.state.public, -1.0)
    w = leaves(fed.now.state.public)
    for client in (0, 1, 3):
        loss = Dense.of(fed.now.vault.holdings, client).entropy(w).mean()
        grads = dict(zip(NAMES, torch.autograd.grad(loss, list(w.values())), strict=True))
        assert abs(dot(step, grads)) < 1e-9 * norm(step) * norm(grads) + 1e-12


def test_fedosds_recovery_does_not_go_back():
    fed = trained(rounds=12)
    far = []
    for rounds in (0, 5):
        after = FedOSD(model=SMALL, repair_rounds=rounds).unlearn(fed, Withdraw(LEAVER))
        far.append(
            norm(add({n: after.now.state.public[n] for n in NAMES}, fed.now.state.public, -1.0))
        )
    assert far[1] >= far[0] - 1e-9


def test_noisy_steps_are_clipped_and_noisy():
    fed = trained(rounds=5)
    quiet = NoisyGD(model=SMALL, noise=0.0, clip=1e-3, forget_rounds=1)
    after = quiet.unlearn(fed, Withdraw(LEAVER)).now.state.public
    moved = norm(add({n: after[n] for n in NAMES}, fed.now.state.public, -1.0))
    assert moved == pytest.approx(0.05 * 1e-3, rel=1e-6)
    loud = NoisyGD(model=SMALL, forget_rate=0.0, forget_rounds=1)
    noise = loud.unlearn(fed, Withdraw(LEAVER)).now.state.public["one/weight"]
    spread = float((noise - fed.now.state.public["one/weight"]).std())
    assert spread == pytest.approx(0.02, rel=0.4)


def test_pga_begins_at_the_others_mean_and_stays_near_it():
    fed = trained(rounds=6)
    start = PGA(model=SMALL).others_mean(fed, ROLES)
    held, public = fed.now.vault.holdings, fed.now.state.public
    sums, _ = fed.executor.train(
        fed.method, public, None, fed.now.vault, torch.arange(4), {LEAVER: "x"}, fed.clock.at(7)
    )
    sizes = torch.bincount(held.graph.owner).double()
    p = float(sizes[LEAVER] / sizes.sum())
    mine = add({n: public[n] for n in NAMES}, sums["x"].mean())
    for name in NAMES:
        assert_close(start[name], (public[name] - p * mine[name]) / (1 - p))
    still = PGA(model=SMALL, enough=0.0, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    for name in NAMES:  # lost already, so not one step is made
        assert_close(still.now.state.public[name], start[name])


def test_the_threshold_is_the_best_balanced_cut():
    # Members .1 .2 .9, others .5 .6: below .5 are two thirds of members and no other: 5/6.
    cut = mait.best_threshold(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0.5, 0.6]))
    assert float(cut) == 0.5
    assert float(mait.best_threshold(torch.tensor([1.0]), torch.tensor([0.0]))) == 0.0
    slow = Clock(0).normal("test", torch.arange(40))
    member, other = slow[:15], slow[15:] + 0.5
    cuts = torch.cat([slow, slow + 0.5])
    best = max(float((member < c).double().mean() - (other < c).double().mean()) for c in cuts)
    mine = mait.best_threshold(member, other)
    assert float((member < mine).double().mean() - (other < mine).double().mean()) == best


def test_the_attack_is_told_beside_that_of_a_retraining():
    fed = trained(rounds=10)
    after = Drop(model=SMALL).unlearn(fed, Withdraw(LEAVER))
    again = fed.retrained(Withdraw(LEAVER))
    rate = mait.rate(fed, after, again, LEAVER)
    cut = float(mait.threshold(fed, LEAVER))
    mine = mait.training_nodes(fed, LEAVER)
    losses = fed.with_(state=again.now.state).query(mine, "loss")
    assert rate.retrained == float((losses < cut).double().mean())
    assert rate.gap == rate.unlearnt - rate.retrained
    loud = mait.noisy(fed.now.vault.holdings.graph, Clock(1))
    assert len(loud.value) == 60 * 8
    assert 0.4 < float((loud.value - tiny_dense(fed.now.vault.holdings.graph)).std()) < 0.6
    with pytest.raises(DataError, match="hold no graph"):
        mait.losses(fed.with_(vault=replace(fed.now.vault, holdings=replace(
            fed.now.vault.holdings, graph=None))))  # fmt: skip


def tiny_dense(graph) -> torch.Tensor:
    out = np.zeros((60, 8), dtype=np.float32)
    out[graph.node.numpy(), graph.feature.numpy()] = graph.value.numpy()
    return torch.from_numpy(out).reshape(-1)


def test_a_virtual_client_takes_part_in_the_repair_and_leaves_again():
    fed = trained(rounds=6)
    plain = FedGCV(model=SMALL, forget_rounds=2, repair_rounds=2)
    seen: list[set[str]] = []
    watch = (lambda moment: seen.append(set(moment.sums)),)
    after = replace(plain, virtual=True).unlearn(replace(fed, watch=watch), Withdraw(LEAVER))
    assert seen == [{FORGET, KEEP}] * 2 + [{"train", "host"}] * 2
    assert after.world.hosted == ()
    assert after.now.hosted == ()
    assert not any(type(event).__name__ == "Host" for _, event in after.past.story)
    other = plain.unlearn(fed, Withdraw(LEAVER))
    assert not torch.equal(
        after.now.state.public["one/weight"], other.now.state.public["one/weight"]
    )


def test_a_stand_in_uses_low_frequencies_and_gives_real_edges_away():
    held = tiny_subgraphs(clients=1, nodes=60)
    double = VGAE(steps=80, spectrum=20).stand_in(held.graph, Clock(0))
    assert torch.equal(double.edge[0].sort().values, double.edge[1].sort().values)
    chosen = (double.likely > 0.7) & ~torch.eye(60, dtype=torch.bool)
    assert double.edge.shape[1] == int(chosen.sum())
    linked = torch.zeros(60, 60, dtype=torch.float64)
    linked[held.graph.edge[0], held.graph.edge[1]] = 1.0
    basis = low_frequencies(linked, 5)
    assert_close(basis.T @ basis, torch.eye(5, dtype=torch.float64))
    degree = linked.sum(1)
    flat = torch.where(degree > 0, degree.sqrt(), 0.0)  # smooth on the graph: eigenvalue 0
    assert float((basis @ (basis.T @ flat) - flat).norm()) < 1e-8 * float(flat.norm())
    found = leak(held.graph, double.likely, double.features)
    assert found.edge_auc > 0.7
    assert leak(held.graph, linked, tiny_dense(held.graph).view(60, 8)).edge_auc == 1.0
    none = torch.zeros_like(double.likely)
    assert leak(held.graph, none, double.features).edge_auc == 0.5


def test_helpers():
    assert clipped({"w": torch.tensor([3.0, 4.0])}, 1.0)["w"].tolist() == pytest.approx([0.6, 0.8])
    assert clipped({"w": torch.tensor([0.3])}, 1.0)["w"].tolist() == pytest.approx([0.3])
    one = one_step(GraphFedSGD(), dropout=0.1)
    assert (one.epochs, one.optimiser, one.rate, one.weight_decay) == (1, "sgd", 1.0, 0.0)
    fed = with_reference(trained(rounds=0), {"x": torch.ones(1)}, ROLES, only=KEEP)
    assert fed.now.state.own["online"].tolist() == [0, 1, 3]
    assert "reference/x" in fed.now.state.public
