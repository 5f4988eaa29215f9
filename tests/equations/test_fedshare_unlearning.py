"""FedShare, unlearning phase: Algorithm 2 and Eq. (23)-(25) against slow, obvious versions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core import fast as forms
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.records import Erase, Share, Unshare, Withdraw
from rescind.errors import ConfigError
from rescind.forgetting.forget import forget
from rescind.forgetting.pipeline import CostMeter
from rescind.forgetting.purge import traces
from rescind.methods._lent_graph.graph import SharedGraph, draw, graph_of
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing._forgotten_views import (
    contrastive_forgetting,
    contrastive_terms,
    forgotten_views,
    views_of,
)
from rescind.methods.sharing.cdcgnnfed import CDCGNNFedR
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.sharing.fedshare_unlearn import FORGOTTEN, FedShareUnlearn
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.lightgcn import LightGCN
from worlds import hoarder, lendable, randoms, tiny_holdings

pytestmark = pytest.mark.filterwarnings("ignore:Eq. .25. as written")
READINGS = ("bpr_in_batch", "in_batch", "as_written", "positive_in_denominator")
LENDERS = (0, 1, 2, hoarder(9))


def small(**given) -> FedShareUnlearn:
    """An unlearner for small worlds."""
    return FedShareUnlearn(**{"rounds": 10, **given})


def learnt(rounds: int = 4, method: FedShare | None = None) -> Federation:
    """Some people lend all they train on; a few rounds of FedShare."""
    method = method or FedShare(model=LightGCN(dim=4), clients_per_round=5)
    fed = Federation.start(tiny_holdings(9, 14), method)
    return fed.apply(Share(lendable(fed.now.vault.holdings, *LENDERS))).run(rounds)


def cosine(one, two) -> float:
    return float(one @ two / (one.norm() * two.norm()))


def slow_terms(local, seen, forgotten, has, tau, reading) -> list[float]:
    """Eq. (25) with a loop over items and a plain sum of exponentials."""
    terms = []
    for i in range(len(local)):
        right = math.exp(cosine(local[i], seen[i]) / tau)
        below = [math.exp(cosine(local[i], view[i]) / tau) for view in forgotten if bool(has[i])]
        if reading == "positive_in_denominator":
            below.append(right)
        if reading in ("in_batch", "bpr_in_batch"):
            below += [math.exp(cosine(local[i], other) / tau) for other in seen]
        terms.append(-math.log(right / sum(below)) if below else -math.log(right))
    return terms


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("owned", [(), (1, 4), tuple(range(6))])
@pytest.mark.parametrize("many", [0, 1, 3])
def test_the_loss_is_eq_25_for_any_split_of_items(reading, owned, many):
    local, seen = randoms(6, 4, purpose="local"), randoms(6, 4, purpose="seen")
    forgotten = randoms(many, 6, 4, purpose="forgotten")
    has = torch.isin(torch.arange(6), torch.tensor(owned, dtype=torch.int64)) & (many > 0)
    local.requires_grad_()
    terms = contrastive_terms(local, seen, forgotten, has, 0.2, reading)
    expected = slow_terms(local.detach(), seen, forgotten, has, 0.2, reading)
    assert_close(terms.detach(), torch.tensor(expected, dtype=torch.float64))
    loss = contrastive_forgetting(local, seen, forgotten, has, 0.2, reading)
    assert float(loss.detach()) == pytest.approx(sum(expected) / 6)
    (down,) = torch.autograd.grad(loss, [local])
    assert bool(down.isfinite().all())


@pytest.mark.parametrize("seed", range(5))
def test_as_written_an_item_outside_the_forgotten_graph_gets_alignment_alone(seed):
    local, seen = randoms(8, 4, seed=seed), randoms(8, 4, seed=seed + 100)
    has = randoms(8, seed=seed + 200) > 0
    views = randoms(2, 8, 4, seed=seed + 300)
    local.requires_grad_()
    terms = contrastive_terms(local, seen, views, has, 0.2, "as_written")
    align = -torch.nn.functional.cosine_similarity(local, seen) / 0.2
    assert_close(terms[~has], align[~has])
    assert not torch.isclose(terms[has], align[has]).any()
    felt, plain = (torch.autograd.grad(t[~has].sum(), [local])[0] for t in (terms, align))
    assert_close(felt, plain)


def test_a_view_comes_from_the_forgotten_graph_and_an_earlier_table(monkeypatch):
    graph = SharedGraph(torch.tensor([0, 0, 1]), torch.tensor([1, 4, 4]), torch.tensor([2, 3]), 6)
    user, tables = randoms(5, 3), [randoms(6, 3, seed=s) for s in (1, 2)]
    for compiled in (forms.compiled(), False):
        monkeypatch.setattr(forms, "compiled", lambda on=compiled: on)
        views = forgotten_views(graph, user, tables, 1, own_layer=True)
        for m, table in enumerate(tables):
            # Degrees: user 2 has two items, user 3 one; item 1 has one user, item 4 two.
            one = (table[1] + user[2] / math.sqrt(2 * 1)) / 2
            four = (table[4] + user[2] / math.sqrt(2 * 2) + user[3] / math.sqrt(1 * 2)) / 2
            assert_close(views[m], torch.stack([one, four]))
            bare = forgotten_views(graph, user, tables, 1, own_layer=False)
            assert_close(bare[m], torch.stack([one - table[1] / 2, four - table[4] / 2]))


def test_views_are_found_by_item_and_only_where_there_are_some():
    items, views = torch.tensor([2, 5]), randoms(3, 2, 4)
    away, has = views_of(torch.tensor([5, 0, 2, 7]), items, views)
    assert has.tolist() == [True, False, True, False]
    assert_close(away[:, 0], views[:, 1])
    assert_close(away[:, 2], views[:, 0])
    none, nobody = views_of(torch.tensor([5, 0]), items[:0], views[:, :0])
    assert none.shape == (3, 2, 4)
    assert not nobody.any()


def test_its_rounds_are_those_of_fedshare_bit_for_bit_while_nothing_is_forgotten():
    plain = learnt()
    method = FedShare(model=LightGCN(dim=4), clients_per_round=5)
    same = learnt(method=small().forgetting(method, 3))
    for name in ("public", "own"):
        one, two = (getattr(fed.now.state, name) for fed in (plain, same))
        assert params.digest(one) == params.digest(two)
    assert FedShare.exact
    assert not FedShareUnlearn.exact


def test_one_round_is_one_step_down_the_loss_it_names():
    """The whole of a round without devices, by autograd on the written loss and Adam's first step.

    The first step of Adam is the sign of the gradient times the rate, where that is not tiny.
    """
    fed = learnt()
    method = small(reading="in_batch", rounds=1, remaining_training=False, unlearn_rate=0.01)
    event = Erase(lendable(fed.now.vault.holdings, 0, 1))
    after = method.unlearn(fed, event)
    gone = graph_of(replace(fed.world, shared=event.records))
    tables = [s.values["item"] for s in fed.now.state.memory.named("item")]
    assert len(tables) == fed.method.snapshots
    views = forgotten_views(gone, fed.now.state.own["user"], tables, 3, True)
    left = graph_of(after.world)
    table = fed.now.state.public["item"].clone().requires_grad_()
    rows = fed.now.state.own["user"].index_select(0, left.sharers)
    _, seen = left.propagate(rows, table, 3)
    items = torch.unique(torch.cat([left.lent_items, gone.lent_items]))
    away, has = views_of(items, gone.lent_items, views)
    loss = contrastive_forgetting(table[items], seen[items], away, has, 0.2)
    (down,) = torch.autograd.grad(loss, [table])
    moved = after.now.state.public["item"] - fed.now.state.public["item"]
    clear = down.abs() > 1e-4
    assert bool(clear.any())
    assert_close(moved[clear], -0.01 * down[clear].sign(), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"own_layer": False},
        {"forgotten_graph": False},
        {"remaining_training": False},
        {"snapshots": 0},
    ],
    ids=str,
)
def test_every_reading_and_ablation_stays_finite_and_moves_the_table(reading, more):
    kept = {name: value for name, value in more.items() if name == "snapshots"}
    fed = learnt(method=FedShare(model=LightGCN(dim=4), clients_per_round=5, **kept))
    method = small(reading=reading, rounds=5, **{k: v for k, v in more.items() if k not in kept})
    event = Erase(lendable(fed.now.vault.holdings, 0))
    after, _ = forget(fed, event, method, audits="none")
    for part in (after.now.state.public, after.now.state.own, after.now.vault.private):
        assert all(bool(v.isfinite().all()) for v in part.values())
    old = fed.now.state.public["item"]
    assert float((after.now.state.public["item"] - old).abs().max()) > 1e-4
    assert after.now.state.round == fed.now.state.round + 5
    assert not after.now.state.memory.named(FORGOTTEN)


def test_without_remaining_training_no_device_is_asked():
    for training, nobody in ((True, False), (False, True)):
        spent = CostMeter()
        fed = replace(learnt(), watch=(spent,))
        event = Erase(lendable(fed.now.vault.holdings, 0))
        small(remaining_training=training).unlearn(fed, event)
        assert spent.rounds == 10
        assert (spent.client_rounds == 0) == nobody


@pytest.mark.parametrize(("learnt_for", "given", "made"), [(11, None, 2), (5, None, 1), (11, 4, 4)])
def test_devices_are_asked_for_a_fifth_of_a_retraining_unless_said_otherwise(
    learnt_for, given, made
):
    costs = []
    for method in (small(rounds=given), Retrain()):
        spent = CostMeter()
        fed = replace(learnt(learnt_for), watch=(spent,))
        method.unlearn(fed, Erase(lendable(fed.now.vault.holdings, 0)))
        costs.append(spent)
    assert costs[0].rounds == made
    if given is None:
        assert 5 * costs[0].client_rounds <= costs[1].client_rounds


@pytest.mark.parametrize("settle", [True, False])
def test_what_devices_send_counts_less_from_round_to_round(settle):
    """With nobody left who lends, devices alone move the table: by the mean, times 1, 3/4, 1/4."""
    fed = learnt()
    moments = []
    fed = replace(fed, watch=(moments.append,))
    everything = Erase(lendable(fed.now.vault.holdings, *LENDERS))
    small(rounds=3, settle=settle).unlearn(fed, everything)
    old = fed.now.state.public["item"]
    for moment, share in zip(moments, (1.0, 0.75, 0.25), strict=True):
        total = moment.sums["train"]
        new = moment.now.state.public["item"]
        mean = total.totals["item"] / total.weight
        assert float(mean.abs().max()) > 0
        assert_close(new, old + mean * (share if settle else 1.0))
        old = new


def test_the_forgotten_graph_and_layer_zero_each_make_a_difference():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 0, 1))
    tables = [
        params.digest(small(**more).unlearn(fed, event).now.state.public)
        for more in ({}, {"own_layer": False}, {"forgotten_graph": False}, {"reading": "in_batch"})
    ]
    assert len(set(tables)) == 4


def requests(fed: Federation) -> dict[str, list]:
    held = fed.now.vault.holdings
    one = lendable(held, 0)
    return {
        "one record": [Erase(one[:1])],
        "all of a user": [Erase(one)],
        "several users": [Erase(lendable(held, 0, 2))],
        "all sharers": [Erase(lendable(held, *LENDERS))],
        "taken back": [Unshare(one)],
        "leaves": [Withdraw(1)],
        "kept records only": [Erase(lendable(held, 4))],
        "the same user twice": [Erase(one[:1]), Erase(one[1:])],
        "two in a row": [Erase(one), Withdraw(2)],
    }


@pytest.mark.parametrize("kind", list(requests(learnt(0))))
def test_any_request_is_answered_and_leaves_no_trace(kind):
    fed, method = learnt(), small(rounds=5)
    for event in requests(fed)[kind]:
        after, evidence = forget(fed, event, method, audits="none")
        assert traces(after, fed.request(event), fed) == {}
        done = evidence.receipt.done
        assert (done.unlearning, done.level) == ("FedShareUnlearn (rounds = 5)", "L1")
        assert bool(after.now.state.public["item"].isfinite().all())
        fed = after
    assert isinstance(fed.method, FedShare)
    assert fed.run(1).now.state.round == fed.now.state.round + 1


def test_rows_of_those_who_asked_begin_anew_and_others_go_on():
    fed = learnt()
    event = Erase(lendable(fed.now.vault.holdings, 0))
    after, _ = forget(fed, event, small(rounds=1), audits="none")
    first = fed.method.server_init(fed.world, fed.clock).own["user"]
    rows, old = after.now.state.own["user"], fed.now.state.own["user"]
    assert torch.equal(rows[0], first[0])
    assert not torch.equal(old[0], first[0])
    assert not torch.equal(rows[1], first[1])


def test_it_learns_as_the_federation_does_and_names_whom_it_serves():
    fed = learnt(method=FedShare(model=LightGCN(dim=4), clients_per_round=3, rate=0.07))
    method = small(rounds=2).forgetting(fed.method, 2)
    assert (method.clients_per_round, method.rate, method.rounds) == (3, 0.07, 2)
    for other in (FedAvg(), CDCGNNFedR()):
        with pytest.raises(ConfigError, match=f"not for {type(other).__name__}.*Retrain"):
            small().forgetting(other, 2)


def test_as_written_warns_and_bad_settings_are_named():
    fed = learnt(1)
    method = FedShareUnlearn.unlearn_as_published(rounds=1)
    with pytest.warns(UserWarning, match="no stopping point"):
        method.unlearn(fed, Erase(lendable(fed.now.vault.holdings, 0)))


def test_items_are_drawn_without_replacement_and_anew_in_each_round():
    items, clock = torch.arange(3, 40), learnt(0).clock
    one, two = draw(items, 10, clock.at(1)), draw(items, 10, clock.at(2))
    assert len(set(one.tolist())) == 10
    assert set(one.tolist()) <= set(items.tolist())
    assert set(one.tolist()) != set(two.tolist())
    assert sorted(draw(items, 99, clock).tolist()) == items.tolist()
