"""The privacy dial: bounded people, counted items, noise on releases, and releases by schedule."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from rescind.cli import app
from rescind.core import params
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.records import Erase, Share, Unshare, Withdraw
from rescind.errors import ConfigError
from rescind.methods.additive import _additive as gram_events
from rescind.methods.additive import _release as gram_release
from rescind.methods.additive import gram as gram_method
from rescind.methods.additive._pairs import EQUAL, halved, mirrored, weight_of
from rescind.methods.additive._release import above_noise, factors, noise_ridge, noisy, sensitivity
from rescind.methods.additive._solve import inverse_of, weights_of
from rescind.methods.additive._solving import Ridge
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.privacy.gaussian import epsilon_of
from rescind.receipts.claims import EPSILON, NEXT, PUBLISHED, sum_digest
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.run_folder import read_facts, write_facts
from worlds import lendable, next_block, tiny_holdings

ITEMS = 14


def lending(method: Gram, executor: InProcess | None = None) -> Federation:
    """Nine people, of whom three lend most of what they have; before the first round."""
    fed = Federation.start(tiny_holdings(clients=9, items=ITEMS), method, 2, executor)
    own = lendable(fed.now.vault.holdings, 0, 2, 5)
    return fed.apply(Share(own[torch.arange(len(own)) % 3 > 0]))


# -- what one person can change -------------------------------------------------------------------


def test_the_weight_of_long_histories_is_bounded():
    for longest in (0, 1, 4, 9):
        for n in range(1, 60):
            expected = round(4096 / math.sqrt(n))
            if longest and n > longest:
                expected = math.floor(4096 * math.sqrt(longest) / n)
            assert int(weight_of(torch.tensor(n), longest)) == expected
    assert int(weight_of(torch.tensor(10**6), 1)) == 1, "everybody counts"


def test_equal_people_have_parts_of_the_norm_one():
    for n in (1, 2, 7, 50, 300):
        weight = int(weight_of(torch.tensor(n), EQUAL)) / 4096
        norm = weight * math.sqrt(n * (n + 1) / 2)
        assert 1 - n / 4096 < norm <= 1
    assert sensitivity(EQUAL, 4000, parts=1) == 1.0
    # Of the same norm, a bound of one item leaves long histories at 0.71.
    assert sensitivity(1, 4000, parts=1) == 1.0
    assert int(weight_of(torch.tensor(100), 1)) < 0.71 * int(weight_of(torch.tensor(100), EQUAL))


@pytest.mark.parametrize("longest", [1, 3, 6, EQUAL])
@pytest.mark.parametrize("cross", [False, True])
def test_nobody_moves_the_released_half_by_more_than_the_sensitivity(longest, cross):
    equal = longest == EQUAL
    method = Gram(longest_history=0 if equal else longest, equal_people=equal, cross=cross)
    fed = lending(method).run(1)
    bound = fed.method.server_reach(fed.world)
    norms = []
    for client in range(9):
        after = fed.method.unlearn(fed, Withdraw(client))
        apart = fed.now.state.own["gram/0000"] - after.now.state.own["gram/0000"]
        norms.append(float((apart.double() / 4096).norm()))
    assert bound / 4 < max(norms) <= bound


def test_the_sensitivity_is_reached_by_somebody_and_grows_with_parts_and_blocks():
    by_hand = max(
        int(weight_of(torch.tensor(n), 5)) / 4096 * math.sqrt(n * (n + 1) / 2) for n in range(1, 31)
    )
    assert sensitivity(5, 30, 1) == pytest.approx(by_hand)
    assert sensitivity(5, 30, 2) == pytest.approx(math.sqrt(2) * by_hand)
    assert sensitivity(5, 30, 2, 3) == pytest.approx(3 * math.sqrt(2) * by_hand)
    assert sensitivity(0, 30, 1) > by_hand, "without a bound it is larger"


def test_what_is_above_the_noise_keeps_its_directions():
    vector, _ = torch.linalg.qr(
        torch.randn(9, 9, generator=torch.Generator().manual_seed(1)).double()
    )
    value = torch.tensor([40.0, 9.0, 5.5, 5.0, 2.0, 0.5, 0.0, -1.0, -3.0]).double()
    released = halved((vector * value) @ vector.T * 4096)
    found = mirrored(above_noise(released, floor=5.0, ridge=2.0))
    kept = torch.tensor([35.0, 4.0, 0.5, 0, 0, 0, 0, 0, 0]).double()
    assert_close(
        found, torch.linalg.inv((vector * kept) @ vector.T + 2 * torch.eye(9)), atol=1e-9, rtol=0
    )
    flat = mirrored(above_noise(released, floor=40.0, ridge=2.0))  # nothing is above
    assert_close(flat, torch.eye(9).double() / 2, atol=1e-9, rtol=0)


def test_a_floor_is_used_in_the_release_and_needs_noise():
    fed = lending(Gram(equal_people=True, noise=1e-9, noise_floor=0.5, ridge=2.0)).run(1)
    exact = lending(Gram(equal_people=True, ridge=2.0)).run(1)
    both = (f.now.state.public["weights"] for f in (fed, exact))
    assert_close(*both, atol=1e-6, rtol=0)
    for wrong in ({}, {"noise": 1.0, "longest_history": 3, "ridge_per_item": 0.5}):
        with pytest.raises(ConfigError, match="needs noise above 0 and ridge"):
            Gram(noise_floor=0.5, **wrong)


# -- counting and bounding are forgotten exactly, too ---------------------------------------------

DIALS = [
    Gram(min_count=3),
    Gram(longest_history=2),
    Gram(equal_people=True),
    Gram(min_count=2, longest_history=3, cross=True),
    Gram(min_count=3, forgetting=0.5),
]


def sums_of(fed: Federation) -> str:
    return sum_digest(fed.now.state.own)


@pytest.mark.parametrize("few", [0, 32])
@pytest.mark.parametrize("method", DIALS)
def test_forgetting_is_never_having_had_it_with_every_dial(method, few, monkeypatch):
    monkeypatch.setattr(gram_events, "ALONE", few)  # devices answer in one sum, or each alone
    fed = lending(method).run(1)
    mine = fed.world.shared[fed.world.shared.client == 2]
    some = [lendable(fed.now.vault.holdings, client)[:2] for client in (7, 4)]
    for event in (Withdraw(6), Erase(mine[:2]), Unshare(mine), Share(some[0]), Erase(some[1])):
        after = method.follow(fed, event)
        without = fed.apply(event).restart().run(1)
        assert sums_of(after) == sums_of(without) == after.method.rebuilt(after)
        both = (f.now.state.public["weights"] for f in (after, without))
        assert_close(*both, atol=1e-6, rtol=0)
    later = fed.apply(next_block(clients=11, items=16)).run(1)
    later = method.unlearn(later, Withdraw(3))
    assert sums_of(later) == later.method.rebuilt(later)


def test_the_count_of_owners_is_part_of_what_a_receipt_states():
    fed = lending(Gram(min_count=3)).run(1)
    own = dict(fed.now.state.own)
    own["owners"] = own["owners"] + 1
    assert sum_digest(own) != sums_of(fed)


# -- noise ----------------------------------------------------------------------------------------


def test_noise_has_the_deviation_it_says_is_whole_and_never_the_same():
    total = torch.arange(200_000)
    one, two = (noisy(total, 0.5, 3.0) for _ in range(2))
    assert torch.equal(one, one.round())
    assert not torch.equal(one, two)
    spread = 0.5 * 3.0 * 4096
    for seen in (one, two):
        apart = seen - total
        assert float(apart.std()) == pytest.approx(spread, rel=0.02)
        assert abs(float(apart.mean())) < 5 * spread / math.sqrt(len(total))


def noised() -> Gram:
    return Gram(noise=1.0, longest_history=2)


def test_a_release_is_made_of_the_noised_sum_alone(monkeypatch):
    fed = lending(noised()).run(1)
    moved = fed.method.server_reach(fed.world)
    added = torch.randint(-9000, 9000, fed.now.state.own["gram/0000"].shape)
    monkeypatch.setattr(gram_method, "noisy", lambda total, noise, by: total + added)
    again = fed.restart().run(1)
    ridge = Ridge(fed.method.ridge + noise_ridge(1.0, moved, ITEMS))
    total = fed.now.state.own["gram/0000"].double() + added
    assert_close(
        again.now.state.public["weights"],
        weights_of(mirrored(inverse_of([(total, 1.0)], ITEMS, ridge))),
    )
    # The sum and its inverse know nothing of it.
    assert sums_of(again) == sums_of(fed) == again.method.rebuilt(again)


def test_every_release_has_noise_of_its_own_and_is_read_once():
    fed = lending(noised()).run(1)
    weights = fed.now.state.public["weights"]
    assert weights is fed.now.state.public["weights"]
    assert not torch.equal(weights, lending(noised()).run(1).now.state.public["weights"])
    after = fed.method.unlearn(fed, Withdraw(6))
    assert not torch.equal(weights, after.now.state.public["weights"])
    dense = lending(Gram(longest_history=2)).run(1).now.state.public["weights"]
    assert not torch.allclose(weights, dense, atol=1e-4)


def test_a_noised_sum_can_be_solved_even_where_noise_is_all_there_is():
    loud = lending(Gram(noise=50.0, longest_history=1, ridge=0.1)).run(1)
    assert bool(loud.now.state.public["weights"].isfinite().all())


def test_noise_beyond_what_is_expected_is_met_by_more_ridge(monkeypatch):
    # Far below zero on the diagonal: the first ridges do not bring it above.
    monkeypatch.setattr(gram_method, "noisy", lambda total, noise, by: total.double() - 10**6)
    weights = lending(noised()).run(1).now.state.public["weights"]
    assert bool(weights.isfinite().all())
    assert bool(weights.any())


def test_epsilon_counts_every_release():
    fed = lending(noised()).run(1)
    one = fed.method.promise(fed)["epsilon"]
    after = fed.method.unlearn(fed, Withdraw(6))
    two = after.method.promise(after)
    assert two["epsilon"] > one > 1
    # One Gaussian mechanism of multiplier 1 at delta 1e-5 (Balle and Wang 2018, by their formula).
    mu = 1.0
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    given = phi(torch.tensor(mu / 2 - one / mu, dtype=torch.float64)) - math.exp(one) * phi(
        torch.tensor(-mu / 2 - one / mu, dtype=torch.float64)
    )
    assert float(given) == pytest.approx(1e-5, rel=1e-3)
    assert "user level" in two["protects"]
    plain = lending(Gram()).run(1)
    assert plain.method.promise(plain) == {}


def test_the_page_states_the_epsilon_of_its_example():
    page = (Path(__file__).parents[2] / "docs" / "additive.md").read_text("utf-8")
    said = re.search(r"noise = (\S+) .*delta = (\S+) .* of (\S+) for one .*, (\S+) for two", page)
    noise, delta, one, two = (float(word) for word in said.groups())
    assert one == round(epsilon_of(noise, delta, 1), 1)
    assert two == round(epsilon_of(noise, delta, 2), 1)


# -- by schedule ----------------------------------------------------------------------------------


def test_devices_get_the_old_release_until_enough_people_changed():
    fed = lending(Gram(release_every=3)).run(1)
    exact = lending(Gram()).run(1)
    first = fed.now.state.public["weights"]
    assert fed.method.pending(fed) == 0
    seen = []
    for client in (6, 7, 4):
        fed = fed.method.unlearn(fed, Withdraw(client))
        exact = exact.method.unlearn(exact, Withdraw(client))
        seen.append((torch.equal(fed.now.state.public["weights"], first), fed.method.pending(fed)))
        assert sums_of(fed) == sums_of(exact), "the sum forgets at once"
    assert seen == [(True, 2), (True, 1), (False, 0)]
    assert torch.equal(fed.now.state.public["weights"], exact.now.state.public["weights"])
    assert fed.now.state.own["released"].tolist() == [2, 0]


def test_a_request_of_many_people_is_many():
    fed = lending(Gram(release_every=3)).run(1)
    after = fed.method.unlearn(fed, Unshare(fed.world.shared))
    assert len(fed.world.shared.client.unique()) == 3
    assert after.method.pending(after) == 0
    assert not torch.equal(after.now.state.public["weights"], fed.now.state.public["weights"])


def test_a_release_can_be_made_at_any_time():
    fed = lending(Gram(release_every=100)).run(1)
    after = fed.method.unlearn(fed, Withdraw(6))
    assert after.method.pending(after) == 99
    now = after.method.publish(after)
    assert now.method.pending(now) == 0
    without = fed.apply(Withdraw(6)).restart().run(1)
    assert_close(now.now.state.public["weights"], without.now.state.public["weights"])
    with pytest.raises(ConfigError, match="no device is counted"):
        Gram().publish(lending(Gram()))
    with pytest.raises(ConfigError, match="FedAvg"):
        FedAvg().publish(Federation.start(tiny_holdings(), FedAvg()))


def test_the_command_makes_the_release_that_waits(tmp_path):
    fed = lending(Gram(release_every=100, noise=1.0, longest_history=2)).run(1)
    after = fed.method.unlearn(fed, Withdraw(6))
    old = after.now.state.public["weights"]
    save_federation(after, tmp_path / "model")
    write_facts(tmp_path, {"seed": 0, "configuration": {}})
    done = CliRunner().invoke(app, ["release", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "release 2 of" in done.output
    back = load_federation(tmp_path / "model")
    assert back.method.pending(back) == 0
    assert not torch.equal(back.now.state.public["weights"], old)
    facts = read_facts(tmp_path)
    assert (
        facts["privacy"]["epsilon"]
        == back.method.promise(back)["epsilon"]
        > after.method.promise(after)["epsilon"]
    )
    assert facts["published"]["releases"] == 2
    missing = CliRunner().invoke(app, ["release", str(tmp_path / "nowhere")])
    assert f"there is no folder {tmp_path / 'nowhere'}" in str(missing.exception)


def test_a_schedule_survives_blocks_and_the_disk(tmp_path):
    fed = lending(Gram(release_every=50)).run(1)
    old = fed.now.state.public["weights"]
    fed = fed.apply(next_block(clients=11, items=16))
    grown = fed.now.state.public["weights"]
    assert torch.equal(grown[:ITEMS, :ITEMS], old)
    assert grown.shape == (16, 16)
    assert not grown[ITEMS:].any()
    fed = fed.method.unlearn(fed, Withdraw(6))
    back = load_federation(save_federation(fed, tmp_path / "model"))
    assert back.method.pending(back) == fed.method.pending(fed) > 0
    assert params.digest(back.now.state.public) == params.digest(fed.now.state.public)


def test_receipts_and_runs_say_how_the_dial_stands():
    fed = lending(Gram(release_every=5, noise=2.0, longest_history=2, release="neighbours")).run(1)
    after = fed.method.unlearn(fed, Withdraw(6))
    stated = after.method.claims(fed, after)
    assert "50 largest weights" in stated.plain[PUBLISHED]
    assert "noise of 2" in stated.plain[PUBLISHED]
    assert stated.plain[NEXT] == "due when 4 more people have changed something"
    assert "at delta 1e-05, 1 releases" in stated.plain[EPSILON]
    assert any("still holds the records" in said for said in stated.not_covered)
    facts = after.method.published(after)
    assert facts["epsilon"] == after.method.promise(after)["epsilon"]
    assert facts["next"] == "when 4 more changed"
    plain = lending(Gram()).run(1)
    quiet = plain.method.claims(plain, plain.method.unlearn(plain, Withdraw(6)))
    assert quiet.plain[PUBLISHED] == "all weights; no noise"
    assert quiet.plain[NEXT] == "made"
    assert EPSILON not in quiet.plain
    assert not any("still holds" in said for said in quiet.not_covered)


# -- factors --------------------------------------------------------------------------------------


def test_factors_are_nearly_the_nearest_matrix_of_their_rank(monkeypatch):
    people = torch.rand(400, 200, generator=torch.Generator().manual_seed(0)) < 0.1
    gram = (people.double().T @ people.double()) + 20 * torch.eye(200, dtype=torch.float64)
    weights = weights_of(torch.tensor(np.linalg.inv(gram.numpy())))
    monkeypatch.setattr(gram_release, "OVERSAMPLED", 8)
    found = factors(weights, 12).double()
    left, size, right = np.linalg.svd(weights.double().numpy())
    nearest = torch.tensor((left[:, :12] * size[:12]) @ right[:12])
    best = float((nearest - weights).norm())
    again = found + torch.diag(nearest.diagonal())
    assert float((again - weights).norm()) <= 1.02 * best
    assert not found.diagonal().any()
    assert torch.equal(factors(weights, 12).double(), found), "the weights alone decide"
