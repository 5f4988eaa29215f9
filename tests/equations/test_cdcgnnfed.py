"""CDCGNNFed-R: mending, and views of users (baselines.md section 2.2, checks a to d)."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Records, Unshare
from rescind.data.simulated_lending import draw_share
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods.sharing.cdcgnnfed import CDCGNNFedR, MendedGraph, impair
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from worlds import begin_in_groups, randoms

SMALL = CDCGNNFedR(
    model=LightGCN(dim=4), clients_per_round=4, refine_pairs=32, contrast_items=8,
    mend_after=1, mend_every=2, mend=1.0, mend_steps=3, rate=0.02,
)  # fmt: skip
EDGES = ("mended/user", "mended/item")


def mended(fed: Federation) -> set[tuple[int, int]]:
    user, item = (fed.now.state.own[name].tolist() for name in EDGES)
    return set(zip(user, item, strict=True))


def shared(fed: Federation) -> set[tuple[int, int]]:
    return set(zip(fed.world.shared.client.tolist(), fed.world.shared.item.tolist(), strict=True))


def digests(fed: Federation) -> tuple[str, str]:
    return params.digest(fed.now.state.public), params.digest(fed.now.vault.private)


@pytest.mark.parametrize("executor", [InProcess(), OneByOne()])
def test_a_without_mending_and_views_it_is_fedshare_bit_for_bit(executor):
    off = replace(SMALL, mend=0.0, user_pull=0.0)
    plain = FedShare(**{f.name: getattr(SMALL, f.name) for f in fields(FedShare)})
    one, two = begin_in_groups(off, executor).run(5), begin_in_groups(plain, executor).run(5)
    assert digests(one) == digests(two)
    assert params.digest(one.now.state.own) == params.digest(two.now.state.own)


def test_each_addition_is_felt():
    off = replace(SMALL, mend=0.0, user_pull=0.0)
    runs = [SMALL, replace(SMALL, mend=0.0), replace(SMALL, user_pull=0.0), off,
            replace(SMALL, weighted_mend=True)]  # fmt: skip
    assert len({digests(begin_in_groups(method).run(4)) for method in runs}) == 5


def blocks() -> Federation:
    """40 people in four blocks of taste, 15 of whose 20 items they own; they lend 70 % of them."""
    pairs = [
        (u, i) for u in range(40) for i in range(80)
        if u % 4 == i % 4 and (u // 4 * 7 + i // 4 * 3) % 4 > 0
    ]  # fmt: skip
    records = Records.of([u for u, _ in pairs], [i for _, i in pairs])
    held = Holdings.of(records, torch.zeros(len(pairs)), 40, 80)
    method = CDCGNNFedR(model=LightGCN(dim=8), mend=0.4, mend_after=1)
    fed = Federation.start(held, method, seed=1)
    return fed.apply(draw_share(held, torch.ones(40), fed.clock, part=0.7))


def test_b_mended_edges_hit_hidden_edges_more_often_than_chance():
    fed = blocks().run(1)
    added = mended(fed)
    records = fed.now.vault.holdings.records
    hidden = set(zip(records.client.tolist(), records.item.tolist(), strict=True)) - shared(fed)
    precision = len(added & hidden) / len(added)
    chance = len(hidden) / (40 * 80 - len(shared(fed)))
    assert len(added) > 100
    assert precision / chance > 2


def test_c_only_partial_sharers_get_edges_and_only_new_ones():
    fed = begin_in_groups(SMALL).run(1)
    added = mended(fed)
    assert {user for user, _ in added} <= {3, 4, 5}
    assert added
    assert not added & shared(fed)
    lent = torch.bincount(fed.world.shared.client, minlength=9)
    for user in (3, 4, 5):
        many = sum(u == user for u, _ in added)
        assert many == min(round(1.0 * int(lent[user])), 14 - int(lent[user]), 20)


def test_d_nothing_made_of_an_older_graph_remains():
    fed = begin_in_groups(replace(SMALL, mend_every=100)).run(2)
    taken = fed.lent(3)
    after = fed.apply(Unshare(taken))
    assert after.method.server_graph(after.now.state, after.world) is graph_of(after.world)
    after = after.run(1)  # long before the next mending is due
    assert {user for user, _ in mended(after)} <= {4, 5}
    graph = graph_of(after.world)
    again = after.method.server_mend(after.now.state, after.world, after.clock)
    assert torch.equal(again.own["mended/of"], after.now.state.own["mended/of"])
    assert len(graph.sharers) == 5
    nothing = after.apply(Unshare(after.world.shared)).run(1)
    assert not any(name.startswith("mended") for name in nothing.now.state.own)


def test_mended_edges_carry_propagation_but_are_no_pairs():
    user, item = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2])
    more = (torch.tensor([1]), torch.tensor([0]), torch.ones(1))
    graph = MendedGraph(user, item, torch.tensor([4, 6]), 4, *more)
    both = SharedGraph(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 2]), graph.sharers, 4)
    tables = randoms(2, 3, seed=1).float(), randoms(4, 3, seed=2).float()
    for one, two in zip(graph.propagate(*tables, 3), both.propagate(*tables, 3), strict=True):
        assert_close(one, two)
    owner, positive, _ = graph.sample(200, Clock(0))
    assert set(zip(owner.tolist(), positive.tolist(), strict=True)) == {(0, 0), (0, 1), (1, 2)}
    assert graph.lent_items.tolist() == [0, 1, 2]


def test_impairing_removes_the_share_asked_for_and_leaves_everybody_an_edge():
    user = torch.arange(50).repeat_interleave(40)
    graph = SharedGraph(user, torch.arange(40).repeat(50), torch.arange(50), 40)
    rest, owner, item = impair(graph, 0.2, Clock(1))
    assert len(rest.user) + len(owner) == 2000
    assert 330 < len(owner) < 470  # 20 % of 1,950 is 390, standard deviation 18
    whole = sorted(zip([*rest.user.tolist(), *owner.tolist()],
                       [*rest.item.tolist(), *item.tolist()], strict=True))  # fmt: skip
    assert whole == [(u, i) for u in range(50) for i in range(40)]
    nearly, _, _ = impair(graph, 0.999999, Clock(1))
    assert nearly.user.tolist() == list(range(50))
    assert len(impair(graph, 0.2, Clock(2))[1]) != len(owner)


def test_views_go_to_sharers_only_and_pull_the_vector_of_the_device():
    fed = begin_in_groups(SMALL).run(2)
    state, clock = fed.now.state, fed.clock.at(3)
    mail = SMALL.server_mail(state, fed.world, torch.arange(9), clock)
    assert mail is not None
    assert mail.ids.tolist() == [0, 1, 2, 3, 4, 5]
    graph = SMALL.server_graph(state, fed.world)
    assert isinstance(graph, MendedGraph)
    seen, _ = graph.propagate(state.own["user"][graph.sharers], state.public["item"], 3)
    assert_close(mail.values["view"], seen)

    ids, item = torch.tensor([4, 7]), state.public["item"]
    near = {}
    for pull in (0.0, 50.0):
        method = replace(SMALL, user_pull=pull)
        cohort = InProcess().cohort(method, fed.now.vault, ids, mail=mail)
        _, after = method.client_train(state.public, fed.now.vault.read(ids), cohort, clock)
        kept = item[cohort.train.item[cohort.train.owner == 0]]
        user = (after["user"][0] + kept.sum(0) / math.sqrt(len(kept))) / 2
        near[pull] = float(functional.cosine_similarity(user, mail.values["view"][4], dim=0))
        near[pull, "stranger"] = after["user"][1]
    assert near[50.0] > near[0.0]
    assert torch.equal(near[50.0, "stranger"], near[0.0, "stranger"])
