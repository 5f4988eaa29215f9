"""GCN and its two training methods, against dense matrices and torch optimisers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from graphs import Dense, tiny_subgraphs
from rescind import Federation, InProcess, OneByOne
from rescind.core.params import Params
from rescind.methods.graphs.fedavg import GraphFedAvg, GraphFedSGD
from rescind.models import gcn
from rescind.models.gcn import GCN

NAMES = ("one/weight", "one/bias", "two/weight", "two/bias")
SMALL = GCN(hidden=5)


def start(method: GraphFedAvg, executor: InProcess | None = None, clients: int = 4) -> Federation:
    fed = Federation.start(tiny_subgraphs(clients=clients), method, seed=5, executor=executor)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    return fed.with_(state=replace(fed.now.state, public=public))


def copies(public: Params) -> dict[str, Tensor]:
    return {name: public[name].clone().requires_grad_() for name in NAMES}


def test_logits_are_those_of_dense_matrices_with_shared_and_separate_weights():
    fed = start(GraphFedAvg(model=SMALL))
    held, public = fed.now.vault.holdings, fed.now.state.public
    shared = SMALL.logits({n: v.unsqueeze(0) for n, v in public.items()}, held.graph)
    factor = torch.tensor([1.0, 0.5, -2.0, 3.0], dtype=torch.float64)
    each = {n: v * factor.view(-1, *[1] * v.dim()) for n, v in public.items()}
    separate = SMALL.logits(each, held.graph)
    for client in range(4):
        mine = held.graph.owner == client
        dense = Dense.of(held, client)
        assert_close(shared[mine], dense.logits(public))
        own = {n: v * factor[client] for n, v in public.items()}
        assert_close(separate[mine], dense.logits(own))


def test_first_weights_are_glorots_and_biases_zero():
    public = Federation.start(tiny_subgraphs(), GraphFedAvg()).now.state.public
    assert {n: tuple(v.shape) for n, v in public.items()} == {
        "one/weight": (8, 64), "one/bias": (64,), "two/weight": (64, 3), "two/bias": (3,)
    }  # fmt: skip
    bound = (6 / 72) ** 0.5
    assert 0.95 * bound < float(public["one/weight"].abs().max()) <= bound
    assert not bool(public["two/bias"].any())


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_averaging_equals_one_torch_adam_per_client_over_the_rounds(executor):
    method = GraphFedAvg(model=SMALL, epochs=2)
    fed = start(method, executor)
    held = fed.now.vault.holdings
    weights = {c: copies(fed.now.state.public) for c in range(4)}
    adams = {
        c: torch.optim.Adam(w.values(), lr=0.01, weight_decay=5e-4) for c, w in weights.items()
    }
    public = {name: fed.now.state.public[name].clone() for name in NAMES}
    sizes = torch.bincount(held.graph.owner).tolist()
    for round_ in (1, 2, 3):
        for c, mine in weights.items():
            for name in NAMES:
                mine[name].data.copy_(public[name])
            for epoch in range(2):
                adams[c].zero_grad()
                clock = fed.clock.at(round_).step(epoch).batch(0)
                Dense.of(held, c).entropy(mine, 0.5, clock).mean().backward()
                adams[c].step()
        for name in NAMES:
            total = sum(sizes[c] * weights[c][name].detach() for c in weights)
            public[name] = total / sum(sizes)
    assert_close(dict(fed.run(3).now.state.public), public, atol=1e-9, rtol=0.0)


@pytest.mark.parametrize("executor", [InProcess(), InProcess(fused=False), OneByOne()])
def test_averaged_gradients_equal_one_torch_adam_at_the_server(executor):
    fed = start(GraphFedSGD(model=SMALL), executor)
    held, weights = fed.now.vault.holdings, copies(fed.now.state.public)
    adam = torch.optim.Adam(weights.values(), lr=0.01, weight_decay=5e-4)
    sizes = torch.bincount(held.graph.owner).double()
    for round_ in (1, 2, 3):
        adam.zero_grad()
        clock = fed.clock.at(round_).step(0).batch(0)
        losses = [Dense.of(held, c).entropy(weights, 0.5, clock).mean() for c in range(4)]
        (sizes @ torch.stack(losses) / sizes.sum()).backward()
        adam.step()
    after = fed.run(3).now.state.public
    assert_close(dict(after), {n: w.detach() for n, w in weights.items()}, atol=1e-9, rtol=0.0)


def test_batches_of_nodes_are_cut_by_the_clock_and_cover_all_of_them():
    fed = start(GraphFedAvg(model=SMALL, batch_size=2, epochs=1))
    cohort = fed.now.vault.holdings.cohort(torch.arange(4))
    plan = fed.method.client_plan(fed.now.state.public, None, cohort, fed.clock.at(1))
    assert sorted(plan.values["node"].tolist()) == sorted(cohort.train.item.tolist())
    assert max(plan.sizes) <= 8
    other = fed.method.client_plan(fed.now.state.public, None, cohort, fed.clock.at(2))
    assert plan.values["node"].tolist() != other.values["node"].tolist()
    whole = start(GraphFedAvg(model=SMALL, epochs=1)).run(1).now.state.public
    assert not torch.equal(fed.run(1).now.state.public["one/bias"], whole["one/bias"])


def test_a_graph_that_can_be_learnt_is_learnt():
    held = tiny_subgraphs(clients=3, nodes=240)
    majority = torch.bincount(held.graph.label[held.graph.label >= 0]).max() / len(held.records)
    for method in (GraphFedAvg(), GraphFedSGD()):
        assert Federation.start(held, method).run(20).evaluate()["accuracy"] > majority + 0.25


@pytest.mark.parametrize("clients", [1, 4])
def test_the_matrices_of_a_gpu_are_those_of_a_cpu(clients, monkeypatch):
    held = tiny_subgraphs(clients=4, nodes=60)

    def logits_and_gradient():
        graph = held.graph.of(torch.arange(4))  # a new graph, so that its matrices are not cached
        one = start(GraphFedAvg(model=SMALL)).now.state.public
        own = {n: v.double().expand(clients, *v.shape).clone() for n, v in one.items()}
        leaf = own["one/weight"].requires_grad_()
        logits = SMALL.logits(own, graph)
        return logits.detach(), torch.autograd.grad(logits.square().sum(), leaf)[0]

    expected = logits_and_gradient()
    monkeypatch.setattr(gcn, "compressed", gcn.by_rows)
    assert_close(logits_and_gradient(), expected)


def test_each_row_is_multiplied_by_its_owners_matrix_with_gradients():
    owner = torch.tensor([0, 2, 2, 0, 3, 2])  # client 1 has no row
    numbers = torch.linspace(-1, 1, 6 * 3 + 4 * 3 * 2).double()
    rows, matrices = numbers[:18].view(6, 3), numbers[18:].view(4, 3, 2)
    weight = torch.arange(12.0).double().view(6, 2)  # of a sum in which all entries differ

    def run(form):
        leaves = [v.clone().requires_grad_() for v in (rows, matrices)]
        out = form(*leaves)
        return out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)

    one_by_one = run(lambda r, m: torch.stack([r[i] @ m[c] for i, c in enumerate(owner)]))
    assert_close(run(lambda r, m: gcn.by_owner(r, m, owner)), one_by_one)
    assert not bool(one_by_one[2][1].any())


def test_a_group_of_clients_is_cut_out_of_the_graph_once():
    held = tiny_subgraphs(clients=4, nodes=60)
    some, others = torch.tensor([0, 2]), torch.tensor([1, 3])
    first = held.cohort(some).graph
    assert held.cohort(others).graph is not first
    assert held.cohort(some).graph is first
    assert set(held.cohort(others).graph.index.tolist()).isdisjoint(first.index.tolist())
