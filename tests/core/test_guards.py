"""Guards: bounds that hold, noise of the stated law, and noise that no seed gives away."""

from __future__ import annotations

import json
import math
import random  # noqa: TID251 - to show that reseeding it changes nothing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lazily import Lazily
from rescind.core import params
from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.guards import Clip, Gaussian, Laplace
from rescind.core.method import Method
from rescind.core.update import Rows, Update
from rescind.errors import ConfigError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import read
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import randoms, tiny_holdings

stats = Lazily("scipy.stats")

CLIENTS, ROWS, DIM = 5, 7, 3
MANY = 100_000
# Real noise is new in every run of the tests: bounds are set so that one in 10^7 runs would fail.
RARE = 1e-8


@dataclass(frozen=True, kw_only=True)
class Watched(RankingMethod):
    """Plain averaging in which the server sees single updates."""

    individual: ClassVar[bool] = True

    model: MF = MF(dim=3)


@pytest.fixture
def update() -> Update:
    """Clients 0, 2 and 3 send some rows; all clients send a dense tensor."""
    owner, index = torch.tensor([0, 0, 2, 2, 3]), torch.tensor([1, 4, 4, 0, 4])
    rows = Rows(owner, index, randoms(5, DIM).float(), ROWS)
    return Update(CLIENTS, {"item": rows, "dense": randoms(CLIENTS, 2, 2, seed=1).float()})


def wide(clients: int, entries: int) -> Update:
    """Updates of zeros, wide enough to read the law of the noise off one draw."""
    none = torch.zeros(0, dtype=torch.int64)
    return Update(clients, {"item": Rows(none, none, torch.zeros(0, 10), entries // 10)})


# -- clipping -------------------------------------------------------------------------------------


def test_a_long_update_is_shortened_to_the_norm_and_a_short_one_stays(update):
    bound = 0.5 * float(update.norms().max())
    clipped = Clip(bound).each(update, leaves=False)
    for before, after in zip(update.norms().tolist(), clipped.norms().tolist(), strict=True):
        assert after == pytest.approx(min(before, bound), rel=1e-5)
        assert after <= bound
    short = (update.norms() <= bound).tolist()
    assert any(short)
    for client in [c for c, kept in enumerate(short) if kept]:
        assert torch.equal(clipped.entries["dense"][client], update.entries["dense"][client])


def test_clipping_counts_all_tables_of_a_client_together():
    # One row (3, 0) and a dense 4: the whole is 5 long, so at norm 1 everything shrinks by 5.
    rows = Rows(torch.tensor([0]), torch.tensor([2]), torch.tensor([[3.0, 0.0]]), 4)
    clipped = Clip(1.0).each(Update(1, {"item": rows, "bias": torch.tensor([4.0])}), leaves=False)
    assert clipped.entries["item"].value.tolist() == [pytest.approx([0.6, 0.0], rel=1e-5)]
    assert clipped.entries["bias"].tolist() == pytest.approx([0.8], rel=1e-5)


@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=6, max_size=6),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_no_rounding_lets_an_update_past_the_clip(values, bound, dtype):
    sent = Update(2, {"dense": torch.tensor(values).view(2, 3).to(dtype)})
    assert bool((Clip(bound).each(sent, leaves=False).norms() <= bound).all())


def test_the_sum_moves_by_at_most_the_clip_when_one_client_leaves(update):
    loud = update.scale(torch.tensor([100.0, 1.0, 1.0, 1.0, 1.0]))
    clipped = Clip(1.0).each(loud, leaves=False)
    weight_one = torch.ones(CLIENTS)
    without = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    apart = params.add(clipped.fold(weight_one).totals, clipped.fold(without).totals, -1.0)
    assert 0.99 < params.norm(apart) < 1 + 1e-6


# -- the law of the noise -------------------------------------------------------------------------


def both_ways(guard: Laplace | Gaussian, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """The noise of a sum: one draw per client and then the fold, and one draw after the fold."""
    update, weight = wide(clients, MANY), torch.ones(clients)
    single = guard.each(update, leaves=True).fold(weight)
    folded = guard.total(guard.each(update, leaves=False).fold(weight))
    assert single.touched["item"].tolist() == folded.touched["item"].tolist()
    return tuple(s.totals["item"].double().flatten().numpy() for s in (single, folded))


@pytest.mark.parametrize("clients", [1, 2, 30])
def test_laplace_after_the_fold_has_the_law_of_laplace_at_every_client(clients):
    scale = 0.3
    each, once = both_ways(Laplace(scale), clients)
    assert stats.ks_2samp(each, once).pvalue > RARE
    # Laplace(b): variance 2 b^2, excess kurtosis 3; of n in a sum 2 n b^2 and 3 / n.
    for found in (each, once):
        assert abs(found.mean()) < 6 * math.sqrt(2 * clients / MANY) * scale
        assert found.var() == pytest.approx(2 * clients * scale**2, rel=0.06)
        assert stats.kurtosis(found) == pytest.approx(3 / clients, abs=0.1 + 1.4 / clients)


def test_the_comparison_of_laws_can_fail():
    each, once = both_ways(Laplace(0.3), 30)
    assert stats.ks_2samp(each, once * 1.1).pvalue < RARE
    one, _ = both_ways(Laplace(0.3), 1)
    normal = stats.norm.ppf((np.arange(MANY) + 0.5) / MANY) * one.std()
    assert stats.ks_2samp(one, normal).pvalue < RARE


@pytest.mark.parametrize("clients", [1, 16])
def test_gaussian_noise_is_that_of_one_release_on_the_sum_and_on_each_update(clients):
    guard = Gaussian(noise=0.8, clip=2.0)
    each, once = both_ways(guard, clients)
    # On the sum 0.8 x 2 once; on each of n updates once, so sqrt(n) times as much in their sum.
    assert stats.kstest(once / 1.6, "norm").pvalue > RARE
    assert stats.kstest(each / (1.6 * math.sqrt(clients)), "norm").pvalue > RARE
    assert stats.ks_2samp(each / math.sqrt(clients), once).pvalue > RARE
    assert once.std() == pytest.approx(1.6, rel=0.05)


@pytest.mark.parametrize("guard", [Gaussian(0.5, 1.0), Laplace(0.5)])
def test_where_single_updates_leave_every_row_of_every_client_has_noise(update, guard):
    sent = guard.each(update, leaves=True)
    rows = sent.entries["item"]
    assert rows.owner.tolist() == [c for c in range(CLIENTS) for _ in range(ROWS)]
    assert rows.index.tolist() == list(range(ROWS)) * CLIENTS
    assert bool((rows.value != 0).all())
    assert sent.entries["dense"].shape == update.entries["dense"].shape
    # What was sent is in it: less the noise-free update, noise of the usual size is left.
    plain = torch.zeros(CLIENTS, ROWS, DIM)
    given = update.entries["item"]
    plain[given.owner, given.index] = given.value
    assert float((rows.value.view_as(plain) - plain).abs().max()) < 15
    assert bool((sent.entries["dense"] != update.entries["dense"]).all())


@pytest.mark.parametrize("guard", [Gaussian(0.5, 1.0), Laplace(0.5)])
def test_a_noisy_sum_does_not_tell_who_touched_which_row(update, guard):
    plain = update.fold(torch.ones(CLIENTS))
    total = guard.total(plain)
    assert total.touched["item"].tolist() == [CLIENTS] * ROWS
    assert all(bool((total.totals[n] != plain.totals[n]).all()) for n in plain.totals)
    assert (total.weight, total.clients) == (plain.weight, plain.clients)


def test_laplace_counts_the_whole_tables_that_devices_send(update):
    weight = torch.ones(CLIENTS)
    single = Laplace(0.1).each(update, leaves=True).fold(weight)
    assert Laplace(0.1).total(update.fold(weight)).up == single.up


# -- entropy --------------------------------------------------------------------------------------


def reseed() -> None:
    torch.manual_seed(0)  # noqa: TID251
    np.random.seed(0)  # noqa: TID251
    random.seed(0)


def federation(guards: tuple, method: Method | None = None, executor=InProcess) -> Federation:
    method = method or FedAvg(model=MF(dim=3), clients_per_round=4)
    return Federation.start(tiny_holdings(), method, 7, executor(guards=guards))


@pytest.mark.parametrize("method", [None, Watched(clients_per_round=4)])
@pytest.mark.parametrize("guards", [(Clip(1.0), Gaussian(0.5, 1.0)), (Laplace(0.5),)])
def test_knowing_the_seed_does_not_help_to_subtract_the_noise(guards, method):
    plain = federation((), method).run(1).now.state.public["item"]
    tables = []
    for _ in range(2):
        reseed()
        tables.append(federation(guards, method).run(1).now.state.public["item"])
    assert torch.equal(plain, federation((), method).run(1).now.state.public["item"])
    # The same seed, everything seeded again: no entry of the two runs is alike, so a third run
    # by somebody who knows it all does not cancel the noise either.
    assert bool((tables[0] != tables[1]).all())
    assert float((tables[0] - tables[1]).std()) > 0.05


# -- what fits together ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guards", "message"),
    [
        ((Gaussian(1.0, 1.0),), "needs Clip"),
        ((Clip(2.0), Gaussian(1.0, 1.0)), r"found Clip\(2\)"),
        ((Gaussian(1.0, 1.0), Clip(1.0)), "needs Clip"),
        ((Laplace(0.1), Clip(1.0)), "Put Clip first"),
    ],
)
def test_guards_that_contradict_each_other_are_refused(guards, message):
    with pytest.raises(ConfigError, match=message):
        InProcess(guards=guards)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_guard_wants_a_finite_number_above_zero(value):
    makers = (Clip, Laplace, lambda v: Gaussian(v, 1.0), lambda v: Gaussian(1.0, v))
    for make in makers:
        with pytest.raises(ConfigError, match="above 0"):
            make(value)


@pytest.mark.parametrize("guards", [(Clip(1.0), Gaussian(1.0, 1.0)), (Laplace(0.1),)])
def test_noise_is_refused_where_clients_do_not_count_alike(guards):
    method = FedAvg(model=MF(dim=3), aggregate="records")
    with pytest.raises(ConfigError, match="equal weights"):
        federation(guards, method).run(1)
    federation((Clip(1.0),), method).run(1)


def test_whole_numbers_are_not_clipped_or_noised():
    counts = Update(2, {"n": torch.tensor([[1, 2], [3, 4]])})
    with pytest.raises(ConfigError, match="floating-point"):
        Clip(1.0).each(counts, leaves=False)
    with pytest.raises(ConfigError, match="floating-point"):
        Laplace(1.0).total(counts.fold(torch.ones(2, dtype=torch.int64)))


def test_a_clip_alone_is_the_same_together_in_chunks_and_one_by_one():
    tables = [
        federation((Clip(0.01),), executor=kind).run(3).now.state.public["item"]
        for kind in (InProcess, lambda guards: InProcess(guards=guards, chunk=2), OneByOne)
    ]
    for other in tables[1:]:
        assert float((other - tables[0]).abs().max()) < 1e-6
    moved = tables[0] - federation(()).now.state.public["item"]
    assert 0 < float(moved.norm()) <= 3 * 0.01


# -- recipes --------------------------------------------------------------------------------------

RECIPE = """
[data]
name = "synthetic"
users = 30
items = 20
interactions = 300
[method]
name = "FedAvg"
clients_per_round = 10
model = { name = "MF", dim = 4 }
[run]
rounds = 4
evaluate_every = 2
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "noise.toml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_without_guards_keeps_its_digest(recipe):
    # Committed results carry digests from before there were guards: these three tables.
    (cell,) = read(recipe).cells
    assert cell.configuration.keys() == {"data", "method", "run"}
    assert cell.guards is None
    (noisy,) = read(recipe, ["guards.clip=1"]).cells
    assert noisy.digest != cell.digest
    recipe.write_text(RECIPE + "[guards]\n")
    assert read(recipe).cells[0].digest == cell.digest


def test_a_recipe_names_its_guards(recipe):
    recipe.write_text(RECIPE + "[guards]\nclip = 1\ngaussian = 0.8\nlaplace = 0.1\ndelta = 1e-6\n")
    (cell,) = read(recipe).cells
    assert cell.guards.guards == (Clip(1.0), Gaussian(0.8, 1.0), Laplace(0.1))
    assert cell.configuration["guards"]["delta"] == 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("guards.gausian=1", r"\[guards\] has no field 'gausian'; did you mean 'gaussian'"),
        ("guards.gaussian=1", "needs guards.clip"),
        ("guards.epsilon=1", "needs guards.gaussian"),
        ("guards.clip=one", "guards.clip must be a number"),
    ],
)
def test_a_wrong_table_of_guards_says_what_to_do(recipe, change, message):
    with pytest.raises(ConfigError, match=message):
        read(recipe, [change])


def test_a_run_writes_down_what_its_guards_promise(recipe, tmp_path):
    (cell,) = read(recipe, ["guards.clip=1", "guards.gaussian=2", "guards.delta=1e-6"]).cells
    run_cell(cell, tmp_path / "out")
    privacy = json.loads((tmp_path / "out" / "run.json").read_text())["privacy"]
    assert (privacy["clip"], privacy["noise_multiplier"], privacy["delta"]) == (1.0, 2.0, 1e-6)
    # 4 rounds with 10 of 30 clients: at least one was drawn twice, none more than 4 times.
    assert 2 <= privacy["participations"] <= 4
    assert 2 < privacy["epsilon"] < privacy["epsilon_renyi"] < 20
    assert "user level" in privacy["protects"]
    assert privacy["where"] == "server"
    assert (privacy["budget"], privacy["stopped"]) == (None, None)


def test_a_run_without_a_bound_promises_nothing(recipe, tmp_path):
    for change in ([], ["guards.laplace=0.1"], ["guards.clip=1"]):
        (cell,) = read(recipe, change).cells
        privacy = run_cell(cell, tmp_path / "out").facts["privacy"]
        assert privacy["epsilon"] is None
        assert privacy["protects"].startswith("No guarantee")


def test_a_run_stops_before_the_round_that_would_pass_its_budget(recipe, tmp_path):
    changes = ["guards.clip=1", "guards.gaussian=2", "method.clients_per_round=none"]
    (free,) = read(recipe, changes).cells
    spent = run_cell(free, tmp_path / "free").facts["privacy"]["epsilon"]
    # All clients take part in 4 rounds; slightly less than that epsilon is enough for 3.
    (cell,) = read(recipe, [*changes, f"guards.epsilon={spent - 1e-6}"]).cells
    cell = replace(cell, run=replace(cell.run, restore=False))
    result = run_cell(cell, tmp_path / "out")
    privacy = result.facts["privacy"]
    assert (result.facts["round"], privacy["participations"]) == (3, 3)
    assert privacy["epsilon"] <= privacy["budget"]
    assert "stopped after round 3" in privacy["stopped"]
    (cell,) = read(recipe, [*changes, f"guards.epsilon={spent + 1e-6}"]).cells
    privacy = run_cell(cell, tmp_path / "out").facts["privacy"]
    assert (privacy["participations"], privacy["stopped"]) == (4, None)


def test_rounds_that_may_have_been_made_twice_are_counted_twice(recipe, tmp_path):
    changes = ["guards.clip=1", "guards.gaussian=2", "run.checkpoint_every=2"]
    (cell,) = read(recipe, changes).cells

    def stop(moment) -> None:
        if moment.now.state.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, tmp_path / "out", watch=(stop,))
    whole = run_cell(cell, tmp_path / "whole").facts["privacy"]
    again = run_cell(cell, tmp_path / "out", again=True).facts["privacy"]
    assert again["participations"] == whole["participations"] + 2
