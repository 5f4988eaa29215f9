"""The influence solve on the server's loss: against a dense Hessian, and its solver by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core.federation import Federation
from rescind.core.records import Erase, Share
from rescind.errors import ConfigError
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import CostMeter
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing._infonce import infonce
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.unlearning.server_influence import (
    ServerInfluence,
    affected_rows,
    propagated,
    server_loss,
    solve,
)
from rescind.models.lightgcn import LightGCN
from worlds import lendable, randoms, tiny_holdings

LENDERS = (0, 1, 2)
EXACT = {"solver_steps": 500, "solver_rest": 1e-12}


def learnt(rounds: int = 4) -> Federation:
    method = FedShare(model=LightGCN(dim=3), clients_per_round=4, rate=0.001)
    fed = Federation.start(tiny_holdings(6, 10), method)
    return fed.apply(Share(lendable(fed.now.vault.holdings, *LENDERS))).run(rounds)


def both(fed: Federation) -> torch.Tensor:
    state = fed.now.state
    return torch.cat([state.public["item"], state.own["user"]]).double()


def test_the_loss_is_the_servers_own_on_all_pairs():
    fed = learnt()
    method = fed.method
    graph, clock, theta = graph_of(fed.world), fed.clock.at(9), both(fed)
    users, items = theta[10:][graph.sharers], theta[:10]
    seen = graph.propagate(users, items, 3)
    for mine, theirs in zip(propagated(graph, users, items, 3), seen, strict=True):
        assert_close(mine, theirs)
    steps = replace(method.steps, pairs=None)
    chosen = graph.some_items(method.contrast_items, clock)
    slow = steps.loss(*seen, steps.draw(graph, 0, clock))
    slow = slow + 0.5 * infonce(items[chosen], seen[1][chosen], 0.2)
    assert_close(server_loss(method, graph, theta, 10, clock), slow)


def test_the_step_is_that_of_a_dense_hessian_on_the_rows_concerned():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 0))
    method = ServerInfluence(stiffness=300.0, **EXACT)
    after = fed.apply(event).world
    clock, theta = fed.clock.at(fed.now.state.round), both(fed)
    old, new = graph_of(fed.world), graph_of(after)

    def loss(graph, flat):
        return server_loss(fed.method, graph, flat.view(-1, 3), 10, clock)

    flat = theta.flatten().requires_grad_()
    gap = [torch.autograd.grad(loss(g, flat), [flat])[0] for g in (old, new)]
    wanted = gap[0] - gap[1]
    bends = torch.autograd.functional.hessian(lambda x: loss(new, x), theta.flatten())
    gone = set(event.records.item.tolist())
    people = {
        int(new.sharers[u]) for u, i in zip(new.user, new.item, strict=True) if int(i) in gone
    }
    rows = sorted(gone) + [10 + c for c in sorted(people)]
    places = torch.tensor([3 * r + k for r in rows for k in range(3)])
    g, dense = wanted[places], bends[places][:, places]
    lift = 300.0 * abs(float(g @ dense @ g)) / float(g @ g)
    damped = dense + lift * torch.eye(len(g), dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(damped).min()) > 0
    step = torch.zeros_like(wanted)
    step[places] = torch.linalg.solve(damped, g)
    found = method.server_moved(fed.method, fed.now.state, fed.world, after, clock)
    moved = torch.cat([found.public["item"], found.own["user"]]).double() - theta
    assert float(step.abs().max()) > 1e-6
    assert_close(moved.flatten(), step, atol=2e-7, rtol=1e-3)


def test_the_solver_is_exact_where_curvature_is_positive_and_stops_where_it_is_not():
    root = randoms(6, 6).double()
    bends, wanted = root @ root.T + torch.eye(6), randoms(6, seed=3).double()
    lift = 2.0 * float(wanted @ bends @ wanted) / float(wanted @ wanted)
    found = solve(lambda v: bends @ v, wanted, 2.0, 60, 1e-12)
    exact = torch.linalg.solve(bends + lift * torch.eye(6, dtype=torch.float64), wanted)
    assert_close(found, exact)
    down = solve(lambda v: -v, wanted, 0.0, 60, 1e-12)
    assert_close(down, wanted)
    assert float(solve(lambda v: v, torch.zeros(6), 1.0, 5, 1e-3).abs().sum()) == 0


def test_a_removed_point_of_a_ridge_regression_gives_the_refit():
    """Where the loss is quadratic, one undamped step is the optimum without the point."""
    points, answers = randoms(40, 4).double(), randoms(40, seed=2).double()

    def optimum(x, y):
        return torch.linalg.solve(x.T @ x + torch.eye(4, dtype=torch.float64), x.T @ y)

    before, refit = optimum(points, answers), optimum(points[1:], answers[1:])
    bends = points[1:].T @ points[1:] + torch.eye(4, dtype=torch.float64)
    felt = points[0] * (points[0] @ before - answers[0])  # what the point's loss adds to the slope
    step = solve(lambda v: bends @ v, felt, 0.0, 50, 1e-12)
    assert float((before + step - refit).norm() / (before - refit).norm()) < 1e-6


def test_rows_of_others_stay_and_no_device_is_asked():
    fed, spent = learnt(), CostMeter()
    event = Erase(lendable(fed.now.vault.holdings, 0)[:1])
    after, evidence = forget(replace(fed, watch=(spent,)), event, ServerInfluence(), audits="none")
    assert (spent.rounds, evidence.receipt.done.unlearning) == (0, "ServerInfluence")
    moved = (after.now.state.public["item"] != fed.now.state.public["item"]).any(1)
    assert moved.nonzero().squeeze(1).tolist() == event.records.item.tolist()
    where = affected_rows(graph_of(after.world), event.records.item, 6).squeeze(1)
    assert where[:10].nonzero().squeeze(1).tolist() == event.records.item.tolist()


def test_nothing_to_solve_leaves_the_table_and_bad_settings_are_named():
    fed = learnt()
    after = ServerInfluence().unlearn(fed, Erase(fed.world.shared))
    assert torch.equal(after.now.state.public["item"], fed.now.state.public["item"])
    kept = Erase(lendable(fed.now.vault.holdings, 3))
    after, exact = ServerInfluence().unlearn(fed, kept), fed.retrained(kept)
    assert torch.equal(after.now.state.public["item"], exact.now.state.public["item"])
    with pytest.raises(ConfigError, match="not for FedAvg"):
        ServerInfluence().unlearn(fed.fork(method=FedAvg()), kept)
