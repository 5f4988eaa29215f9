"""The benchmark runs on small worlds, its twin computes what the product does, bounds are said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from rescind.cli.bench import lines
from rescind.core.executor import InProcess, Vault
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Share
from rescind.data.blocks import arrange
from rescind.data.sources.synthetic import synthetic
from rescind.errors import DataError
from rescind.experiments.streams import Blocks, Stream
from rescind.methods._lent_graph.graph import graph_of
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from rescind.models.ncf import NCF
from rescind.models.pfedrec import PFedRec
from rescind_papers.bench import continual, scale
from rescind_papers.bench import speed as bench
from rescind_papers.bench.yardsticks import (
    Batches,
    Opening,
    naive,
    plain_step,
    twin_batches,
    twin_round,
)
from worlds import lendable, next_block, silent, tiny_holdings

METHODS = {
    "FedMF": replace(
        bench.fedmf(), model=MF(dim=8, spread=0.3), batch_size=7, rate=0.02, private_rate=0.2
    ),
    "ego-LightGCN": replace(bench.ego_lightgcn(), model=LightGCN(dim=8)),
}


@pytest.fixture(autouse=True)
def threads():
    """The benchmark works on one thread; the tests after it on as many as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small() -> Holdings:
    return synthetic(users=60, items=80, interactions=1200).on_devices(0)


def planned(opening: Opening, vault: Vault) -> Callable[[int], Batches]:
    """The batches that the product itself draws for a client."""
    method = opening.method

    def of_client(place: int) -> Batches:
        ids = opening.cohort.ids[place : place + 1]
        alone = InProcess().cohort(method, vault, ids)
        plan = method.client_plan(opening.public, vault.read(ids), alone, opening.clock)
        columns = {**plan.items, **plan.values}
        cuts = torch.tensor(plan.sizes).cumsum(0).tolist()
        starts = [0, *cuts[:-1]]
        return [{n: c[a:b] for n, c in columns.items()} for a, b in zip(starts, cuts, strict=True)]

    return of_client


@pytest.mark.parametrize("name", METHODS)
def test_the_naive_twin_computes_what_the_product_computes_from_the_same_samples(name):
    method = METHODS[name]
    fed = Federation.start(tiny_holdings(clients=7, items=13), method, seed=0)
    vault = fed.now.vault
    opening = Opening.of(vault.holdings, method)
    assert silent(7) not in opening.cohort.ids.tolist()
    total = twin_round(opening, torch.arange(len(opening.cohort)), planned(opening, vault))
    summed, _ = method.client_sum(opening.public, opening.private, opening.cohort, opening.clock)
    assert_close(total, summed.totals["item"], atol=1e-5, rtol=1e-4)
    assert float(total.abs().max()) > 1e-3


LEARNERS = {
    "FedNCF": FineTune(model=NCF(dim=8, faster=2.0), rate=0.02, batch_size=7),
    "PFedRec": FineTune(model=PFedRec(dim=8, faster=2.0), rate=0.02, batch_size=7),
    "F3CRec": F3CRec(
        model=MF(dim=8, spread=0.3), rate=0.02, batch_size=7, top_n=5, distil=0.7, adaptive=False
    ),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_naive_twin_of_a_second_block_computes_what_the_product_computes(name):
    fed = Federation.start(tiny_holdings(clients=7, items=13), LEARNERS[name], seed=0)
    fed = fed.run(2).apply(next_block(clients=8, items=15, seed=5))
    opening = Opening.next_of(fed)
    everybody = torch.arange(len(opening.cohort))
    total = continual.twin_round(opening, everybody, planned(opening, fed.now.vault))
    summed, _ = opening.method.client_sum(
        opening.public, opening.private, opening.cohort, opening.clock
    )
    assert_close(total, summed.totals["item"], atol=1e-5, rtol=1e-4)
    assert float(total.abs().max()) > 1e-3


def test_rounds_and_a_whole_run_of_continual_learners_are_timed():
    stream = Stream.of(arrange(synthetic(users=40, items=80, interactions=1200)))
    found = {n: (o.method, dict(most)) for n, o, most in continual.openings(stream)}
    assert [most["fused"] for _, most in found.values()] == [2.0, 2.0, 4.0]
    took, ran = continual.whole_run(stream, Blocks(rounds=2))
    assert took > 0
    assert ran == {"blocks": 4, "rounds": 8}


def test_numpy_draws_the_negatives_of_the_twin_outside_what_a_client_owns(small):
    method = METHODS["FedMF"]
    cohort = Opening.of(small, method).cohort
    for place in (0, 5):
        first, many = int(cohort.own.first[place]), int(cohort.own.count[place])
        own = set(cohort.own.item[first : first + many].tolist())
        draw = bench.np.random.default_rng(1)
        batches = twin_batches(method, cohort, place, draw)
        items, labels = (torch.cat([b[c] for b in batches]) for c in ("item", "label"))
        assert len(items) == 5 * many
        assert set(items[labels == 1].tolist()) == own
        assert not set(items[labels == 0].tolist()) & own
        assert max(len(b["item"]) for b in batches) <= 7


@pytest.mark.parametrize("name", METHODS)
def test_rounds_are_ratios_to_a_touch_with_their_bounds_and_yardsticks(name, small):
    opening = Opening.of(small, METHODS[name])
    figures = bench.rounds(name, opening, {"readable": 10.0, "fused": 1.2}, repeats=1, twins=3)
    assert [(f.name, f.unit, f.most) for f in figures] == [
        (f"{name}, readable", "x touch", 10.0),
        (f"{name}, fused", "x touch", 1.2),
    ]
    for figure in figures:
        beside = figure.beside
        assert beside["clients"] == len(opening.cohort)
        assert beside["rows"] == opening.rows > 0
        assert figure.value == beside["round_ms"] / beside["touch_ms"]
        assert beside["naive_twin_ms"] > 0


def test_a_sample_of_twins_is_scaled_to_the_whole_cohort(small):
    opening = Opening.of(small, METHODS["FedMF"])
    _, scale = naive(opening, 6)
    assert scale == len(opening.cohort) / 6
    work, scale = naive(opening, 10_000)
    assert scale == 1
    assert work().shape == opening.public["item"].shape


@pytest.mark.parametrize("form", ["readable", "fused"])
def test_cost_is_fitted_against_touched_pairs(form, small):
    figure = bench.linear(small, METHODS["ego-LightGCN"], (8, 60), form, repeats=1)
    assert (figure.least, figure.most, figure.unit) == (0.9, 1.1, "exponent")
    assert 0 < figure.beside["pairs_8"] < figure.beside["pairs_60"]
    assert figure.beside["ms_8"] > 0


def test_the_plain_server_step_computes_what_the_product_computes():
    method = FedShare(model=LightGCN(dim=8), refine_pairs=32, contrast_items=8)
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1, 2)))
    state, clock = fed.now.state, fed.clock.at(1)
    plain = plain_step(method, state, graph_of(fed.world), clock)
    refined = method.server_refine(state, fed.world, clock).public["item"]
    # A first step of Adam is the sign of the gradient; where that is almost 0, rounding decides.
    steps = [(after - state.public["item"]) / method.refine_rate for after in (plain, refined)]
    assert_close(*steps, atol=1e-2, rtol=1e-2)
    assert float(steps[0].abs().max()) > 0.9


def test_a_server_step_is_a_multiple_of_a_product_with_its_bound(small):
    method = FedShare(model=LightGCN(dim=8), refine_pairs=32, contrast_items=8)
    figure = bench.server_step(small, method, 8.0, repeats=1)
    assert (figure.unit, figure.most) == ("x product", 8.0)
    assert figure.value == figure.beside["step_ms"] / figure.beside["product_ms"]
    assert figure.beside["plain_step_ms"] > 0
    assert 0 < figure.beside["shared_pairs"] < 1200


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_memory_is_read_from_the_process_itself():
    assert bench.peak_memory("synthetic", {"users": 30, "interactions": 900}, False) >= 0


def test_a_figure_is_said_to_be_within_above_or_below_its_bounds():
    slow = bench.Figure("round", 1.25, "x touch", 1.2, beside={"rows": 5, "touch_ms": 0.5})
    assert not slow.within
    first, second = lines(slow)
    assert "ABOVE  (at most 1.2)" in first
    assert second.strip() == "rows 5, touch ms 0.50"
    assert "within" in lines(replace(slow, value=1.2))[0]
    flat = bench.Figure("cost", 0.8, "exponent", 1.1, 0.9)
    assert "BELOW  (0.9 to 1.1)" in lines(flat)[0]


def test_missing_datasets_are_named_and_left_out(monkeypatch):
    def nowhere(name, **_):
        raise DataError(f"no {name}")

    monkeypatch.setattr("rescind.data.load", nowhere)
    said: list[str] = []
    assert list(bench.everything(quick=True, say=said.append)) == []
    assert [line.rsplit(": ")[1] for line in said[-2:]] == [
        "rescind data get ml-100k",
        "rescind data get ml-1m",
    ]


@pytest.mark.slow
def test_a_process_of_its_own_gives_its_number_or_its_error():
    assert 0 < bench.in_child("first_call", "mf") < 60
    with pytest.raises(RuntimeError, match="KeyError"):
        bench.in_child("first_call", "nothing")


def test_growth_is_an_exponent_and_noise_is_no_growth():
    assert scale.exponent([1.0, 10.0], [100, 1000]) == pytest.approx(1)
    assert scale.exponent([1.0, 1.0, 0.5], [100, 500, 1000]) == 0
    assert scale.bound("first save") > 1 > scale.bound("save after one event")


@pytest.mark.parametrize("kind", ["Share", "Unshare", "Erase", "Withdraw"])
def test_synthetic_people_can_ask_for_every_change(kind):
    data = scale.federation(40)
    assert data.clients == 40
    fed = Federation.start(data, FedShare()).apply(scale.loans(data, 20))
    asked = list(scale.events(fed, kind, 3))
    assert [type(event).__name__ for event in asked] == [kind] * 3
    for event in asked:
        took, after = scale.clocked(lambda event=event: fed.apply(event))
        assert took >= 0
        assert len(after.events) == 2
