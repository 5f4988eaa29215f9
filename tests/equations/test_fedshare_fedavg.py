"""FedShare-FedAvg: the server as one more client (baselines.md section 2.1)."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch.testing import assert_close

from rescind.methods._lent_graph.graph import graph_of
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.central import Central
from rescind.methods.sharing.fedshare_fedavg import FedShareFedAvg
from rescind.models.lightgcn import LightGCN
from worlds import begin

SMALL = FedShareFedAvg(
    model=LightGCN(dim=4), clients_per_round=4, graph_pairs=32, graph_steps=2, rate=0.5
)


def test_with_nothing_shared_it_is_plain_averaging_bit_for_bit():
    same = {f.name: getattr(SMALL, f.name) for f in fields(FedAvg)}
    one, two = begin(SMALL).run(4), begin(FedAvg(**same)).run(4)
    assert torch.equal(one.now.state.public["item"], two.now.state.public["item"])
    assert torch.equal(one.now.vault.private["user"], two.now.vault.private["user"])


@pytest.mark.parametrize("optimiser", ["plain", "adam"])
def test_with_everything_shared_it_is_centralised_lightgcn(optimiser):
    method = replace(SMALL, graph_optimiser=optimiser)
    central = Central(
        model=LightGCN(dim=4), graph_pairs=32, graph_steps=2, graph_rate=SMALL.graph_rate,
        graph_optimiser=optimiser,
    )  # fmt: skip
    everybody = tuple(range(9))
    one, two = begin(method, *everybody).run(5), begin(central, *everybody).run(5)
    assert float(one.now.state.own["server weight"]) == 1.0
    assert_close(one.now.state.public["item"], two.now.state.own["item"], atol=1e-6, rtol=1e-5)
    assert_close(one.now.state.own["user"], two.now.state.own["user"], atol=1e-6, rtol=1e-5)
    moved = one.now.state.public["item"] - begin(method).now.state.public["item"]
    assert float(moved.abs().max()) > 1e-3


def test_the_server_counts_by_what_it_was_lent():
    fed = begin(SMALL, 0, 1, 2)
    clock = fed.clock.at(1)
    ids = SMALL.server_sample(fed.now.state, fed.world, clock)
    public, vault = fed.now.state.public, fed.now.vault
    sums, _ = fed.executor.train(SMALL, public, None, vault, ids, None, clock)
    mine, own = SMALL.server_train(fed.now.state, fed.world, clock)
    lent, kept = len(graph_of(fed.world).user), sums["train"].weight
    kept_by_hand = sum(int(vault.holdings.lot("unshared")[1][i]) for i in ids)
    assert (mine.weight, kept) == (lent, kept_by_hand)
    delta = mine.totals["item"] / lent
    expected = (kept * sums["train"].mean()["item"] + lent * delta) / (kept + lent)
    after = SMALL.server_step(fed.now.state, sums, fed.world, clock)
    assert_close(after.public["item"] - public["item"], expected, atol=1e-6, rtol=1e-5)
    assert float(after.own["server weight"]) == pytest.approx(lent / (lent + kept))
    assert torch.equal(after.own["user"], own["user"])


def test_rows_of_people_who_lend_nothing_never_move():
    fed = begin(SMALL, 0, 1, 2)
    after = fed.run(3)
    first, last = fed.now.state.own["user"], after.now.state.own["user"]
    assert torch.equal(last[3:], first[3:])
    assert not torch.isclose(last[:3], first[:3]).all(1).any()
