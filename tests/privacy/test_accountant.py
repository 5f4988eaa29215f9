"""Epsilon compared with dp-accounting, with sampled noise, and with an attack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lazily import Lazily
from rescind.core.federation import Federation
from rescind.core.guards import Clip, Gaussian, Laplace
from rescind.core.run_state import EarlyStop
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy import accountant
from rescind.privacy.accountant import ORDERS, renyi, renyi_epsilon
from rescind.privacy.gaussian import delta_of, epsilon_of, rounds_within
from worlds import tiny_holdings

stats = Lazily("scipy.stats")
dp_accounting = Lazily("dp_accounting")
gaussian_mechanism = Lazily("dp_accounting.gaussian_mechanism")

GRID = [(z, t, d) for z in (0.3, 0.8, 2.0, 30.0) for t in (1, 7, 150) for d in (1e-3, 1e-5, 1e-9)]


def test_one_gaussian_by_hand():
    # z = 1: mu = 1. At epsilon 0: 2 Phi(1/2) - 1 = 2 x 0.691462461 - 1.
    assert delta_of(1.0, 0.0) == pytest.approx(0.382924923, abs=1e-9)
    # At epsilon 1: Phi(-1/2) - e Phi(-3/2) = 0.308537539 - 2.718281828 x 0.066807201.
    assert delta_of(1.0, 1.0) == pytest.approx(0.126936737, abs=1e-8)
    # Four of multiplier 2 are one of multiplier 1.
    assert delta_of(2.0, 1.0, times=4) == pytest.approx(delta_of(1.0, 1.0), rel=1e-12)


@pytest.mark.parametrize(("noise", "times", "delta"), GRID)
def test_epsilon_is_that_of_the_oracles_analytic_gaussian(noise, times, delta):
    oracle = gaussian_mechanism.get_epsilon_gaussian(noise / math.sqrt(times), delta)
    assert epsilon_of(noise, delta, times) == pytest.approx(oracle, rel=1e-8, abs=1e-6)


@pytest.mark.parametrize(("noise", "times", "delta"), GRID)
def test_epsilon_is_the_smallest_at_its_delta(noise, times, delta):
    epsilon = epsilon_of(noise, delta, times)
    assert delta_of(noise, epsilon, times) <= delta
    if epsilon > 0:
        assert delta_of(noise, epsilon * (1 - 1e-6), times) > delta


@pytest.mark.parametrize(("noise", "times"), [(0.8, 1), (0.8, 150), (5.0, 40)])
def test_the_renyi_curve_is_the_oracles(noise, times):
    oracle = dp_accounting.rdp.RdpAccountant(list(ORDERS))
    oracle.compose(dp_accounting.GaussianDpEvent(noise), times)
    curve = renyi(noise, times=times)
    assert np.allclose(curve, oracle._rdp, rtol=1e-12, atol=0)
    assert renyi_epsilon(curve, 1e-5) == pytest.approx(oracle.get_epsilon(1e-5), abs=1e-9)
    # Renyi is looser than the exact value, never below it.
    assert epsilon_of(noise, 1e-5, times) < renyi_epsilon(curve, 1e-5)


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (4.0, 20)])
def test_epsilon_is_not_above_the_oracles_distribution_of_losses(noise, times):
    step = 1e-3
    oracle = dp_accounting.pld.PLDAccountant(value_discretization_interval=step)
    oracle.compose(dp_accounting.GaussianDpEvent(noise), times)
    # Theirs rounds each loss up by at most a step: an upper bound within times x step.
    above = oracle.get_epsilon(1e-5)
    assert above - times * step <= epsilon_of(noise, 1e-5, times) <= above + 1e-6


def test_a_budget_is_the_last_participation_below_epsilon():
    for noise, budget in [(1.0, 5.0), (4.0, 3.0), (20.0, 1.0)]:
        most = rounds_within(noise, 1e-5, budget)
        assert most > 0
        assert epsilon_of(noise, 1e-5, most) <= budget < epsilon_of(noise, 1e-5, most + 1)
    assert rounds_within(0.5, 1e-5, 1.0) == 0


def test_the_numbers_on_the_page_about_privacy_hold():
    # docs/privacy.md: 150 rounds at 0.8 are an epsilon of 182; for 8 it takes more than 7.3.
    assert round(epsilon_of(0.8, 1e-5, 150)) == 182
    assert epsilon_of(7.3, 1e-5, 150) > 8 > epsilon_of(7.4, 1e-5, 150)


def test_a_client_that_never_took_part_has_epsilon_zero():
    assert epsilon_of(0.5, 1e-5, times=0) == 0
    assert delta_of(0.5, 0.0, times=0) == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_a_delta_that_is_not_between_0_and_1_is_refused(delta):
    for compute in (
        epsilon_of,
        lambda z, d: rounds_within(z, d, 1.0),
        lambda z, d: renyi_epsilon((), d),
    ):
        with pytest.raises(ConfigError, match="delta must lie between 0 and 1"):
            compute(1.0, delta)


def trials(guard: Gaussian, present: bool, n: int) -> np.ndarray:
    """Return n releases of a canary's single entry by the guard."""
    sent = torch.full((n,), guard.clip if present else 0.0, dtype=torch.float64)
    return guard.total(Sum({"canary": sent}, 1.0, 1)).totals["canary"].numpy()


def shown(guard: Gaussian, delta: float, n: int = 200_000) -> float:
    """Return a lower bound on epsilon from an attack, with confidence 1 - 1e-6."""
    low, high = (trials(guard, present, n) for present in (False, True))
    cut = guard.clip / 2 + guard.noise**2 * guard.clip  # log likelihood ratio 1
    hits, alarms = int((high > cut).sum()), int((low > cut).sum())
    least = stats.beta.ppf(1e-6, hits, n - hits + 1)
    most = stats.beta.ppf(1 - 1e-6, alarms + 1, n - alarms)
    return math.log((least - delta) / most)


def test_a_canary_shows_no_more_than_the_claim_and_more_than_a_false_claim():
    guard, delta = Gaussian(noise=1.0, clip=3.0), 0.05
    claimed = epsilon_of(1.0, delta)
    assert 0.5 * claimed < shown(guard, delta) <= claimed
    # Claiming 1.0 but adding a third of the noise is detected.
    assert shown(Gaussian(noise=1 / 3, clip=3.0), delta) > claimed


# -- the statement in run.json --------------------------------------------------------------------


def test_the_statement_names_the_mechanism_and_the_trusted_side():
    guards = (Clip(2.0), Gaussian(0.8, 2.0))
    central = accountant.statement(guards, leaves=False, times=9, delta=1e-5, clients=100)
    assert central["epsilon"] == epsilon_of(0.8, 1e-5, 9)
    assert central["epsilon_renyi"] >= central["epsilon"]
    assert (central["noise_multiplier"], central["clip"]) == (0.8, 2.0)
    assert (central["participations"], central["delta"]) == (9, 1e-5)
    assert "server adds the noise" in central["protects"]
    assert "from sampling" in central["protects"]
    local = accountant.statement(guards, leaves=True, times=9, delta=1e-5, clients=100)
    assert (local["where"], local["epsilon"]) == ("device", central["epsilon"])
    assert "each device adds the noise" in local["protects"]
    assert "Warning" not in local["not_covered"]
    crowd = accountant.statement(guards, leaves=True, times=9, delta=1e-5, clients=200_000)
    assert "Warning: delta 1e-05 is not below 1 / 200000" in crowd["not_covered"]


@pytest.mark.parametrize("guards", [(), (Clip(1.0),), (Laplace(0.1),), (Clip(1.0), Laplace(0.1))])
def test_without_gaussian_noise_there_is_no_epsilon(guards):
    facts = accountant.statement(guards, leaves=False, times=9, delta=1e-5, clients=100)
    assert facts["epsilon"] is None
    assert facts["protects"].startswith("No guarantee")


def test_participations_are_counted_by_client():
    counts: list[int] = []
    for ids in ([3, 1], [], [1], [0, 1, 4]):
        counts = accountant.count(counts, torch.tensor(ids, dtype=torch.int64))
    assert counts == [1, 3, 0, 1, 1]
    assert accountant.most_often(counts) == 3
    assert accountant.most_often(counts, torch.tensor([2, 3, 99])) == 1
    assert accountant.most_often([]) == accountant.most_often([], torch.tensor([1])) == 0


@pytest.mark.parametrize("restore", [True, False])
def test_with_a_large_budget_a_run_is_not_changed(restore):
    until = EarlyStop(every=1, patience=2, restore=restore)
    fed = Federation.start(tiny_holdings(), FedAvg(model=MF(dim=3), clients_per_round=3), 7)
    seen = []
    within, stopped = accountant.run_within(fed, 6, until, (seen.append,), lambda ids: True)
    whole = fed.run(6, until=until)
    assert stopped is None
    assert within.now.state.round == whole.now.state.round
    assert torch.equal(within.now.state.public["item"], whole.now.state.public["item"])
    assert torch.equal(within.now.vault.private["user"], whole.now.vault.private["user"])
    assert [result.now.state.round for result in seen] == list(range(1, len(seen) + 1))


def test_a_run_stops_before_a_client_takes_part_too_often():
    fed = Federation.start(tiny_holdings(), FedAvg(model=MF(dim=3), clients_per_round=3), 7)
    counts: list[int] = []

    def on_round(result) -> None:
        nonlocal counts
        counts = accountant.count(counts, result.sums["train"].who)

    after, stopped = accountant.run_within(
        fed, 50, None, (on_round,), lambda ids: accountant.most_often(counts, ids) < 4
    )
    assert max(counts) <= 4
    assert stopped == after.now.state.round < 50
    # The next round has a client that took part four times.
    following = fed.method.server_sample(after.now.state, fed.world, fed.clock.at(stopped + 1))
    assert accountant.most_often(counts, following) == 4
