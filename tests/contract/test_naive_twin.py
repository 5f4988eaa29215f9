"""One round of averaging against a plain loop over clients with torch's own optimisers.

The twin copies the whole item table for each client and takes one autograd step per batch. It
shares nothing with the product but the samples, which it asks for client by client.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.state import Private
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import tiny_holdings

SETTINGS = {
    "FedMF, several batches and epochs": FedAvg(
        model=MF(dim=4, spread=0.5),
        clients_per_round=None,
        loss="bce",
        reduce="mean",
        temperature=1.0,
        negatives=4,
        batch_size=7,
        epochs=2,
        rate=0.05,
        private_rate=0.2,
        rate_per_item=True,
    ),
    "FedMF, client Adam, by records": FedAvg(
        model=MF(dim=4, spread=0.5),
        clients_per_round=None,
        loss="bce",
        temperature=0.7,
        negatives=2,
        batch_size=5,
        epochs=2,
        optimiser="adam",
        rate=0.01,
        private_rate=0.02,
        aggregate="records",
    ),
    "ego-LightGCN, one batch": FedAvg(model=LightGCN(dim=4), clients_per_round=None, negatives=2),
    "ego-LightGCN, batches, decay, by rows": FedAvg(
        model=LightGCN(dim=4),
        clients_per_round=None,
        batch_size=3,
        decay=0.01,
        reduce="mean",
        aggregate="rows",
    ),
}


def double(fed: Federation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    return public, {n: v.double() for n, v in fed.now.vault.private.items()}


def naive_loss(method: Method, item: Tensor, user: Tensor, mine: Tensor, batch: dict) -> Tensor:
    """The client's loss on one batch, sample by sample as the equations say."""
    if isinstance(method.model, LightGCN):
        user = user / 2 + item[mine].sum(0) / len(mine) ** 0.5 / 2

    def score(i: Tensor) -> Tensor:
        if isinstance(method.model, LightGCN):
            return functional.cosine_similarity(user, item[i], dim=0)
        return user @ item[i]

    losses = []
    for n in range(len(next(iter(batch.values())))):
        if method.loss == "bpr":
            i, j = batch["positive"][n], batch["negative"][n]
            one = -functional.logsigmoid((score(i) - score(j)) / method.temperature)
            rows = item[i].square().sum() + item[j].square().sum()
        else:
            i = batch["item"][n]
            p = torch.sigmoid(score(i) / method.temperature)
            one = -torch.log(p if batch["label"][n] else 1 - p)
            rows = item[i].square().sum()
        losses.append(one + method.decay * rows)
    total = torch.stack(losses).sum()
    return total / len(losses) if method.reduce == "mean" else total


def naive_client(method: Method, fed: Federation, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """(delta of the whole table, new user vector, which rows moved)."""
    public, private = double(fed)
    ids = torch.tensor([client])
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    item = public["item"].clone().requires_grad_()
    user = private["user"][client].clone().requires_grad_()
    rate = method.rate * (len(item) if method.rate_per_item else 1)
    kind = torch.optim.SGD if method.optimiser == "sgd" else torch.optim.Adam
    optimiser = kind(
        [{"params": [item], "lr": rate}, {"params": [user], "lr": method.private_rate}]
    )
    touched = torch.zeros(len(item), dtype=torch.bool)
    for epoch in range(method.epochs):
        plan = method.client_plan(
            public, Private({"user": user[None]}), cohort, fed.clock.at(1).step(epoch)
        )
        at = 0
        for size in plan.sizes:
            columns = {**plan.items, **plan.values}
            batch = {n: c[at : at + size] for n, c in columns.items()}
            at += size
            optimiser.zero_grad()
            naive_loss(method, item, user, cohort.train.item, batch).backward()
            optimiser.step()
        for column in plan.items.values():
            touched[column] = True
    touched[cohort.train.item] = True
    return (item - public["item"]).detach(), user.detach(), touched


@pytest.mark.parametrize("name", SETTINGS)
def test_a_round_of_averaging_equals_the_plain_loop(name):
    method = SETTINGS[name]
    fed = Federation.start(tiny_holdings(clients=7, items=13), method, seed=5)
    public, private = double(fed)
    ids = method.server_sample(fed.now.state, fed.world, fed.clock.at(1))
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    mine = Private({n: v[ids] for n, v in private.items()})
    update, after = method.client_train(public, mine, cohort, fed.clock.at(1))
    mean = method.server_mean({"train": update.fold(cohort.weight)})["item"]

    counts = {int(i): int(c) for i, c in zip(ids, cohort.train.count, strict=True)}
    total, weights = torch.zeros_like(mean), torch.zeros(len(mean), 1, dtype=torch.float64)
    for place, client in enumerate(ids.tolist()):
        delta, user, touched = naive_client(method, fed, client)
        weight = counts[client] if method.aggregate == "records" else 1
        total += weight * delta
        weights += weight * (touched.double()[:, None] if method.aggregate == "rows" else 1)
        assert_close(after["user"][place], user, atol=1e-10, rtol=1e-10)
    expected = torch.where(weights > 0, total / weights.clamp(min=1e-12), 0.0)
    assert_close(mean, expected, atol=1e-10, rtol=1e-10)
    assert float(mean.abs().max()) > 1e-4


@pytest.mark.parametrize(("kind", "rate"), [("plain", 0.5), ("momentum", 0.5), ("adam", 0.05)])
def test_server_optimisers_follow_their_rules_over_three_rounds(kind, rate):
    method = FedAvg(model=MF(dim=4), clients_per_round=4, server_optimiser=kind, server_rate=rate)
    fed = Federation.start(tiny_holdings(), method, seed=1)
    table = fed.now.state.public["item"].clone().requires_grad_()
    # torch's optimisers go down a gradient; the mean update is minus that gradient.
    if kind == "adam":
        oracle: torch.optim.Optimizer = torch.optim.Adam([table], lr=rate)
    else:
        oracle = torch.optim.SGD([table], lr=rate, momentum=0.9 if kind == "momentum" else 0.0)
    for _ in range(3):
        clock = fed.clock.at(fed.now.state.round + 1)
        ids = method.server_sample(fed.now.state, fed.world, clock)
        public, vault = fed.now.state.public, fed.now.vault
        sums, _ = fed.executor.train(method, public, None, vault, ids, None, clock)
        table.grad = -method.server_mean(sums)["item"]
        oracle.step()
        fed = fed.run(1)
        assert_close(fed.now.state.public["item"], table.detach(), atol=1e-6, rtol=1e-5)
