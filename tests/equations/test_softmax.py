"""The softmax loss and its dense form: the readable form and plain sums are the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.records import Share
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.methods.baselines.softmax import Softmax
from rescind.models.bag import Bag, TwoBags
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import lendable, tiny_holdings

MODEL = Bag(dim=4)


def federation(method: Softmax) -> Federation:
    fed = Federation.start(tiny_holdings(), method, seed=3)
    return fed.apply(Share(lendable(fed.now.vault.holdings)[::3]))


def one_by_hand(fed: Federation, client: int) -> torch.Tensor:
    """The mean over what a device kept of -log softmax over all but what it lent."""
    method, public = fed.method, {n: v.double() for n, v in fed.now.state.public.items()}
    lots = fed.now.vault.holdings
    ids = torch.tensor([client])
    kept = lots.of_clients("unshared", ids).item.tolist()
    lent = set(lots.of_clients("own", ids).item.tolist()) - set(kept)
    u = public["item"][kept].sum(0)
    logit = {}
    for j in range(lots.items):
        if j not in lent:
            v = public["item"][j]
            logit[j] = float(u @ v / (u.norm() * v.norm())) / method.model.temperature
            logit[j] += float(public["bias"][j, 0])
    whole = torch.logsumexp(torch.tensor(list(logit.values()), dtype=torch.float64), 0)
    return whole - torch.tensor([logit[i] for i in kept], dtype=torch.float64).mean()


def readable_loss(fed: Federation, client: int) -> torch.Tensor:
    """The same through plan, work and loss."""
    from rescind.core.plan import Work

    method, ids, clock = fed.method, torch.tensor([client]), Clock(0).at(1)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    private = fed.now.vault.read(ids)
    plan = method.client_plan(public, private, cohort, clock.step(0))
    work = Work.begin([plan], public, method.model.tables, public, {}, cohort)
    (batch,) = work.batches(plan)
    return method.client_loss(work, batch, public, private, cohort, clock)[0].detach()


def test_the_loss_is_the_cross_entropy_of_what_a_device_kept() -> None:
    fed = federation(Softmax(model=MODEL))
    bias = torch.linspace(-1, 1, fed.world.sizes.items).unsqueeze(1)
    state = replace(fed.now.state, public={**fed.now.state.public, "bias": bias})
    fed = fed.with_(state=state)
    for client in fed.now.vault.holdings.keeps.nonzero().squeeze(1).tolist():
        torch.testing.assert_close(readable_loss(fed, client), one_by_hand(fed, client))


@pytest.mark.parametrize("candidates", [None, 3])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_dense_form_is_the_fold_of_single_updates(
    candidates: int | None, reduce: str, shared: bool
) -> None:
    method = Softmax(
        model=MODEL, candidates=candidates, reduce=reduce, local_includes_shared=shared
    )
    fed = federation(method)
    clock = fed.clock.at(1)
    ids = fed.now.vault.holdings.keeps.nonzero().squeeze(1)
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    private = fed.now.vault.read(ids)
    update, _ = method.client_train(public, private, cohort, clock)
    slow: Sum = update.fold(cohort.weight)
    fast, _ = method.client_sum(public, private, cohort, clock)
    for name, total in slow.totals.items():
        torch.testing.assert_close(fast.totals[name], total, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            fast.touched[name].double(), slow.touched[name].double(), rtol=1e-6, atol=0
        )
    assert (fast.up, fast.clients, fast.weight) == (slow.up, slow.clients, slow.weight)


def test_two_vectors_for_an_item_one_as_owned_and_one_as_shown() -> None:
    method = Softmax(model=TwoBags(dim=4), local_includes_shared=True)
    fed = federation(method).run(2)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    ids = fed.now.vault.holdings.keeps.nonzero().squeeze(1)
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    private = fed.now.vault.read(ids)
    found = method.client_scores(public, private, cohort)
    for place, client in enumerate(ids.tolist()):
        own = fed.now.vault.holdings.of_clients("own", torch.tensor([client])).item.tolist()
        u = public["item"][own].sum(0)
        for j, v in enumerate(public["shown"]):
            logit = float(u @ v / (u.norm() * v.norm())) / 0.2 + float(public["bias"][j, 0])
            assert float(found[place, j]) == pytest.approx(logit, abs=1e-9)
    update, _ = method.client_train(public, private, cohort, fed.clock.at(9))
    fast, _ = method.client_sum(public, private, cohort, fed.clock.at(9))
    slow = update.fold(cohort.weight)
    assert set(slow.totals) == {"item", "shown", "bias"}
    for name, total in slow.totals.items():
        assert bool(total.any()), name
        torch.testing.assert_close(fast.totals[name], total, rtol=1e-10, atol=1e-12)


def test_sampled_candidates_give_the_whole_softmax_on_average() -> None:
    few = federation(Softmax(model=MODEL, candidates=64))
    whole = federation(Softmax(model=MODEL))
    ids = few.now.vault.holdings.keeps.nonzero().squeeze(1)
    cohort = InProcess().cohort(few.method, few.now.vault, ids)
    public, private = few.now.state.public, few.now.vault.read(ids)
    exact, _ = whole.method.client_sum(public, private, cohort, Clock(0))
    runs = [few.method.client_sum(public, private, cohort, Clock(0).at(n))[0] for n in range(60)]
    mean = torch.stack([r.totals["item"] for r in runs]).mean(0)
    plain = torch.linalg.vector_norm(exact.totals["item"])
    assert torch.linalg.vector_norm(mean - exact.totals["item"]) < 0.02 * plain
    fewest = replace(few.method, candidates=4)  # one batch of few draws is far from it
    once, _ = fewest.client_sum(public, private, cohort, Clock(0))
    assert torch.linalg.vector_norm(once.totals["item"] - exact.totals["item"]) > 0.05 * plain


def test_the_server_trains_on_loans_as_one_more_device() -> None:
    method = Softmax(model=MODEL)
    fed = federation(method)
    clock = fed.clock.at(1)
    lent = method.server_loans(fed.now.state, fed.world, clock)
    assert lent is not None
    alone = replace(method, local_includes_shared=True)
    assert lent.clients >= 1
    assert set(lent.totals) == set(fed.now.state.public)
    with_loans = method.server_step(fed.now.state, {}, fed.world, clock)
    without = alone.server_step(fed.now.state, {}, fed.world, clock)
    assert not torch.equal(with_loans.public["item"], fed.now.state.public["item"])
    assert torch.equal(without.public["item"], fed.now.state.public["item"])


@pytest.mark.parametrize("model", [MF(dim=4), LightGCN(dim=4)])
def test_what_only_devices_have_is_not_asked_of_the_server(model: MF | LightGCN) -> None:
    with pytest.raises(ConfigError, match=r"keeps user on each device.*local_includes_shared"):
        Softmax(model=model)
    method = Softmax(model=model, local_includes_shared=True)
    fed = federation(method)
    assert len(fed.world.shared)  # loans alone do not bring the server to train on them
    ids = fed.now.vault.holdings.available.nonzero().squeeze(1)
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    private = fed.now.vault.read(ids).with_(user=fed.now.vault.private["user"][ids].double())
    update, after = method.client_train(public, private, cohort, fed.clock.at(1))
    fast, also = method.client_sum(public, private, cohort, fed.clock.at(1))
    for name, total in update.fold(cohort.weight).totals.items():
        torch.testing.assert_close(fast.totals[name], total, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(also["user"], after["user"], rtol=1e-10, atol=1e-12)
    before, trained = fed.now.state.public["item"], fed.run(2).now.state.public["item"]
    assert bool((trained != before).any())
    assert bool(torch.isfinite(trained).all())


def test_rates_fall_along_a_cosine() -> None:
    method = Softmax(server_decay=100)
    paces = [method.server_pace(r) for r in (0, 50, 100, 200)]
    assert paces == pytest.approx([1.0, 0.51, 0.02, 0.02])
    assert Softmax(server_decay=None).server_pace(10**6) == 1.0
