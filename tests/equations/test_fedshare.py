"""FedShare, learning phase: the equations against slow, obvious versions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional
from torch.testing import assert_close

from rescind.core import fast as forms
from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.plan import Work
from rescind.core.records import Erase, Share, Unshare
from rescind.core.state import Private
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods._lent_graph.steps import GraphSteps, moved_down
from rescind.methods.sharing._infonce import infonce
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN, TwoSidedLightGCN
from worlds import lendable, randoms, tiny_holdings


def dense_propagation(graph: SharedGraph, user, item, layers):
    """LightGCN by the whole normalised adjacency matrix."""
    size = graph.users + graph.items
    edges = torch.zeros(size, size, dtype=user.dtype)
    edges[graph.user, graph.users + graph.item] = 1
    edges = edges + edges.T
    degree = edges.sum(1).clamp(min=1)
    normal = edges / torch.sqrt(degree[:, None] * degree[None, :])
    layer = torch.cat([user, item])
    total = layer.clone()
    for _ in range(layers):
        layer = normal @ layer
        total = total + layer
    total = total / (layers + 1)
    return total[: graph.users], total[graph.users :]


@pytest.fixture
def graph() -> SharedGraph:
    user, item = [0, 0, 2, 2, 2, 3], [1, 4, 0, 1, 5, 4]
    return SharedGraph(torch.tensor(user), torch.tensor(item), torch.arange(5), 7)


@pytest.fixture(params=["compiled", "plain"])
def form(request, monkeypatch) -> str:
    """Both forms of what is compiled where numba is installed."""
    if request.param == "plain":
        monkeypatch.setattr(forms, "compiled", lambda: False)
    return request.param


def both_forms(monkeypatch, work):
    """What a piece of work gives compiled, and without numba."""
    fast = work()
    with monkeypatch.context() as without:
        without.setattr(forms, "compiled", lambda: False)
        return fast, work()


def close(ours, theirs, within=1e-10):
    for one, two in zip(ours, theirs, strict=True):
        assert_close(one, two, rtol=within, atol=within)


@pytest.mark.parametrize("dim", [4, 35])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_propagation_is_lightgcn_on_the_whole_adjacency_and_so_is_its_gradient(
    graph, layers, dim, form
):
    user = randoms(5, dim, seed=1).double().requires_grad_()
    item = randoms(7, dim, seed=2).double().requires_grad_()
    ours = graph.propagate(user, item, layers)
    theirs = dense_propagation(graph, user, item, layers)
    weight = [randoms(*t.shape, seed=3).double() for t in ours]
    close(ours, theirs)
    grads = [
        torch.autograd.grad(
            sum((t * w).sum() for t, w in zip(out, weight, strict=True)), [user, item]
        )
        for out in (ours, theirs)
    ]
    close(*grads)
    if layers:
        assert gradcheck(lambda u, i: graph.propagate(u, i, layers), (user, item))


def test_what_was_propagated_stays_when_the_graph_is_used_again(graph, form):
    def tables(seed, dim, kind):
        return [randoms(n, dim, seed=seed).to(kind) for n in (5, 7)]

    first = graph.propagate(*tables(1, 4, torch.float64), 3)
    copies = [t.clone() for t in first]
    for dim, kind in ((4, torch.float64), (6, torch.float64), (4, torch.float32)):
        other = tables(2, dim, kind)
        close(graph.propagate(*other, 2), dense_propagation(graph, *other, 2), within=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))


def test_propagation_in_single_precision_is_as_near_as_it_can_be(graph, form):
    user, item = randoms(5, 32, seed=1).float(), randoms(7, 32, seed=2).float()
    close(
        graph.propagate(user, item, 3),
        [t.float() for t in dense_propagation(graph, user.double(), item.double(), 3)],
        within=1e-6,
    )


def test_infonce_eq_17_by_hand():
    # Two items with orthogonal unit views, local = global: logits [[5, 0], [0, 5]] at tau = .2,
    # so each loss is -log(e^5 / (e^5 + 1)) = log(1 + e^-5).
    view = torch.eye(2) * torch.tensor([[3.0], [0.5]])  # lengths do not matter
    assert float(infonce(view, view, 0.2)) == pytest.approx(math.log(1 + math.exp(-5)), rel=1e-5)


def plain_infonce(local, seen, temperature):
    """Eq. (17) by autograd."""
    one, two = functional.normalize(local, dim=-1), functional.normalize(seen, dim=-1)
    return functional.cross_entropy(one @ two.T / temperature, torch.arange(len(one)))


@pytest.mark.parametrize("temperature", [1.0, 0.2, 0.02, 0.005])
def test_infonce_and_its_gradient_are_those_of_the_cross_entropy(temperature):
    local = randoms(9, 5, seed=1).double().requires_grad_()
    seen = (local.detach() + randoms(9, 5, seed=2).double() / 3).requires_grad_()
    ours, theirs = (f(local, seen, temperature) for f in (infonce, plain_infonce))
    close([ours], [theirs])
    # A weight in front, as lambda_1 is.
    close(*(torch.autograd.grad(0.7 * loss, [local, seen]) for loss in (ours, theirs)))
    if temperature > 0.1:  # steeper than a difference quotient can follow below
        assert gradcheck(lambda a, b: infonce(a, b, temperature), (local, seen))


def test_infonce_of_a_view_with_itself_counts_both_sides():
    view = randoms(6, 4, seed=1).double().requires_grad_()
    close(*(torch.autograd.grad(f(view, view, 0.2), [view]) for f in (infonce, plain_infonce)))


@pytest.mark.parametrize("temperature", [0.03, 0.02, 0.0199, 0.001])
def test_infonce_stays_finite_in_single_precision_however_cold(temperature):
    local = randoms(50, 8, seed=1).float().requires_grad_()
    seen = (-local.detach()).requires_grad_()  # the worst there is: the right pair scores lowest
    loss = infonce(local, seen, temperature)
    exact = plain_infonce(local.double(), seen.double(), temperature)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-4)
    for grad in torch.autograd.grad(loss, [local, seen]):
        assert bool(torch.isfinite(grad).all())


def test_server_bpr_is_taken_against_items_that_are_not_shared(graph, form):
    owner, positive, negative = graph.sample(2000, Clock(0, 3))
    shared = {(int(u), int(i)) for u, i in zip(graph.user, graph.item, strict=True)}
    assert {(int(u), int(i)) for u, i in zip(owner, positive, strict=True)} == shared
    assert not {(int(u), int(i)) for u, i in zip(owner, negative, strict=True)} & shared
    assert {int(i) for i in negative} == set(range(7))


def test_compiled_draws_are_the_draws_of_the_clock(graph, monkeypatch):
    # The fifth user lends all seven items: whatever is drawn against them, it is the positive.
    user = torch.cat([graph.user, torch.full((7,), 4)])
    full = SharedGraph(user, torch.cat([graph.item, torch.arange(7)]), graph.sharers * 3 + 1, 7)
    for sampled in (graph, full):
        clock = Clock(4, 2, 9)
        fast, slow = both_forms(monkeypatch, lambda g=sampled, c=clock: g.sample(500, c))
        assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    owner, positive, negative = slow
    assert torch.equal(positive[owner == 4], negative[owner == 4])


@pytest.mark.parametrize("dim", [3, 36])
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_the_loss_of_pairs_and_its_gradient_are_those_of_autograd(graph, score, dim):
    steps = GraphSteps(pairs=40, score=score)
    user = randoms(5, dim, seed=1).double()
    item = randoms(7, dim, seed=2).double() * 4  # gaps of both signs, some steep
    leaves = [user.requires_grad_(), item.requires_grad_()]
    drawn = steps.draw(graph, 0, Clock(0))
    ours, theirs = steps.loss(*leaves, drawn), steps.plain_loss(*leaves, drawn)
    close([ours], [theirs])
    close(*(torch.autograd.grad(0.3 * loss, leaves) for loss in (ours, theirs)))
    assert gradcheck(lambda u, i: steps.loss(u, i, drawn), tuple(leaves))


def test_a_row_of_zeros_scores_nothing_and_breaks_nothing(graph):
    steps = GraphSteps(pairs=40)
    user, item = randoms(5, 4, seed=1).double(), randoms(7, 4, seed=2).double()
    user[0] = item[1] = 0
    leaves = [user.requires_grad_(), item.requires_grad_()]
    drawn = steps.draw(graph, 0, Clock(0))
    ours, theirs = steps.loss(*leaves, drawn), steps.plain_loss(*leaves, drawn)
    close([ours], [theirs])
    close(*(torch.autograd.grad(loss, leaves) for loss in (ours, theirs)))


def test_compiled_adam_moves_as_the_servers_adam_does(monkeypatch):
    def work():
        tables, moments = {"item": randoms(6, 5, seed=1).double()}, {}
        for step in range(4):
            down = {"item": randoms(6, 5, seed=2 + step).double() * 10.0 ** (step - 6)}
            tables, moments = moved_down(tables, moments, down, "adam", 0.1)
        return [tables["item"], *(moments[n] for n in sorted(moments))]

    fast, slow = both_forms(monkeypatch, work)
    assert len(fast) == 4
    close(fast, slow)
    assert float((fast[0] - randoms(6, 5, seed=1)).abs().max()) > 0.1


def test_contrasted_items_are_those_with_the_smallest_hashes(graph):
    clock = Clock(0, 3)
    hashes = clock.bits("contrasted items", graph.lent_items).tolist()
    ordered = [i for _, i in sorted(zip(hashes, graph.lent_items.tolist(), strict=True))]
    assert graph.some_items(3, clock).tolist() == ordered[:3]
    assert graph.some_items(99, clock).tolist() == ordered


def begin(method: FedShare, share: bool = True) -> Federation:
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    return fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, 2))) if share else fed


SMALL = FedShare(model=LightGCN(dim=4), clients_per_round=4, refine_pairs=32, contrast_items=8)


def test_a_refinement_is_the_same_without_a_compiler(monkeypatch):
    fed = begin(SMALL).run(2)

    def work():
        after = SMALL.server_refine(fed.now.state, fed.world, fed.clock.at(3))
        return [after.public["item"], *(after.own[n] for n in sorted(after.own))]

    close(*both_forms(monkeypatch, work), within=1e-5)


def test_who_lends_nothing_has_a_row_that_never_moves():
    fed = begin(SMALL)
    after = fed.run(3).now.state.own
    first = fed.now.state.own["user"]
    assert torch.equal(after["user"][3:], first[3:])
    assert bool((after["user"][:3] != first[:3]).any(1).all())
    assert not bool(after["refine/server/second/user"][3:].any())


def table(fed: Federation) -> str:
    return params.digest({"item": fed.now.state.public["item"]})


def test_with_nothing_shared_the_server_only_averages():
    alone = replace(SMALL, refine_bpr=0.0, contrast=0.0)
    assert table(begin(SMALL, share=False).run(3)) == table(begin(alone, share=False).run(3))
    assert table(begin(SMALL).run(3)) != table(begin(alone).run(3))


def test_each_part_of_the_refinement_is_felt_and_the_control_leaves_the_graph_out():
    runs = {
        name: table(begin(method).run(3))
        for name, method in {
            "whole": SMALL,
            "w/o CL": replace(SMALL, contrast=0.0),
            "w/o server BPR": replace(SMALL, refine_bpr=0.0),
            "control": replace(SMALL, view="self"),
        }.items()
    }
    assert len(set(runs.values())) == 4


def test_the_graph_is_exactly_what_is_shared_and_follows_events():
    fed = begin(SMALL)
    for after in (fed, fed.apply(Unshare(fed.lent(1))), fed.apply(Erase(fed.lent(0)))):
        graph = graph_of(after.world)
        who = graph.sharers[graph.user]
        pairs = set(zip(who.tolist(), graph.item.tolist(), strict=True))
        shared = after.world.shared
        assert pairs == set(zip(shared.client.tolist(), shared.item.tolist(), strict=True))


def test_the_last_tables_are_remembered_with_their_rounds():
    fed = begin(replace(SMALL, snapshots=2)).run(5)
    kept = fed.now.state.memory.named("item")
    assert [s.round for s in kept] == [4, 5]
    assert torch.equal(kept[-1].values["item"], fed.now.state.public["item"])


def test_as_published_the_items_of_a_person_take_up_their_vector():
    """Eq. (13-15) by plain loops: both sides of the ego graph, no temperature, a summed loss."""
    method = replace(FedShare.as_published(), model=TwoSidedLightGCN(dim=4), clients_per_round=4)
    fed = begin(method)
    ids = fed.now.vault.holdings.keeps.nonzero().squeeze(1)[:1]
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    private = Private({n: v.double() for n, v in fed.now.vault.read(ids).values.items()})
    plan = method.client_plan(public, private, cohort, fed.clock.at(1).step(0))
    work = Work.begin([plan], [*public, *private.values], ("item",), public, private.values, cohort)
    (batch,) = work.batches(plan)
    loss = method.client_loss(work, batch, public, private, cohort, fed.clock.at(1))[0]

    mine, table, u0 = cohort.train.item.tolist(), public["item"], private["user"][0]
    root = len(mine) ** 0.5
    u = u0 / 2 + sum(table[i] for i in mine) / root / 2
    expected = 0.0
    for i, j in zip(plan.items["positive"].tolist(), plan.items["negative"].tolist(), strict=True):
        held = table[i] / 2 + u0 / root / 2
        near = torch.cosine_similarity(u, held, dim=0)
        far = torch.cosine_similarity(u, table[j] / 2, dim=0)
        expected += torch.log1p(torch.exp(far - near))
    close([loss.detach()], [expected])
    weight = method.client_weight(cohort)
    assert weight.tolist() == [len(mine)], "Eq. (16): by the number of records"
    one_sided = replace(method, model=LightGCN(dim=4, user_spread=0.04))
    other = one_sided.client_loss(work, batch, public, private, cohort, fed.clock.at(1))[0]
    assert abs(float((other - loss).detach())) > 1e-6


def test_with_softmax_the_server_is_fedshares_and_its_rates_fall_too():
    method = replace(FedShare.with_softmax(), clients_per_round=4, contrast_items=8)
    fed = begin(replace(method, model=Bag(dim=4)))
    full, late = (
        method.server_refine(fed.now.state, fed.world, fed.clock.at(r)) for r in (1, 1000)
    )
    gaps = [
        float((s.public["item"] - fed.now.state.public["item"]).abs().max()) for s in (full, late)
    ]
    assert gaps[1] == pytest.approx(0.02 * gaps[0], rel=1e-3)
    assert torch.equal(full.public["bias"], fed.now.state.public["bias"]), "devices alone move it"
