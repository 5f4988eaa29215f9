"""Releases by schedule: noise correlated over them, one epsilon for all, and an end."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.records import Share, Withdraw
from rescind.errors import ConfigError
from rescind.forgetting.forget import forget
from rescind.methods.additive import gram as gram_method
from rescind.methods.additive._additive import NONE_LEFT
from rescind.methods.additive._exchange import BLOCK
from rescind.methods.additive._pairs import mirrored
from rescind.methods.additive._release import correlated, drawn, noise_ridge
from rescind.methods.additive._solve import inverse_of, weights_of
from rescind.methods.additive._solving import Ridge, half
from rescind.methods.additive.gram import Gram
from rescind.methods.unlearning.retrain import Retrain
from rescind.privacy.gaussian import epsilon_of
from rescind.privacy.schedules import noise_of, reach, root
from rescind.receipts.claims import EPSILON, NEXT, PUBLISHED, sum_digest
from rescind.storage.federations import load_federation, save_federation
from worlds import lendable, next_block, tiny_holdings

ITEMS, LEAVERS = 14, (6, 7, 4, 1)


def scheduled(releases: int = 3, **given: object) -> Gram:
    return Gram(noise=2.0, equal_people=True, releases=releases, **given)


def lending(method: Gram) -> Federation:
    """Nine people, of whom three lend most of what they have; before the first round."""
    fed = Federation.start(tiny_holdings(clients=9, items=ITEMS), method, 2)
    own = lendable(fed.now.vault.holdings, 0, 2, 5)
    return fed.apply(Share(own[torch.arange(len(own)) % 3 > 0]))


def leaves(fed: Federation, client: int) -> Federation:
    return fed.method.unlearn(fed, Withdraw(client))


def triangle(releases: int) -> np.ndarray:
    """Return R of `privacy.schedules`. [T, T]"""
    column = root(releases)
    return np.array(
        [[column[t - s] if t >= s else 0 for s in range(releases)] for t in range(releases)]
    )


@pytest.fixture
def known(monkeypatch):
    """Replace the noise by numbers that depend on the number of pairs and a count."""
    count = iter(range(1, 1000))

    def spread(total, noise, moved):
        place = torch.arange(len(total), dtype=torch.float64)
        return total + 4096 * torch.sin(place * next(count)) * noise * moved

    monkeypatch.setattr(gram_method, "spread", spread)


# -- the noise ------------------------------------------------------------------------------------


def test_the_noise_over_releases_has_the_covariance_of_the_root():
    fed = lending(scheduled(3)).run(1)
    seen = []
    for _ in range(60):  # three releases, 105 pairs each time
        now = fed.restart().run(1)
        now = now.method.publish(now.method.publish(now))
        draws = drawn(now.now.state.own)
        seen.append(torch.stack([correlated(draws[: r + 1]) for r in range(3)]))
    noise = torch.cat(seen, 1) / (2.0 * reach(3) * fed.method.server_reach(fed.world) * 4096)
    r = triangle(3)
    assert np.abs(np.cov(noise.numpy()) - r @ r.T).max() < 0.12
    assert noise.mean(1).abs().max() < 0.1


def test_each_release_is_made_of_the_sum_and_the_noise_of_all_before(known):
    fed = lending(scheduled(3, release="dense")).run(1)
    moved = fed.method.server_reach(fed.world)
    for number in range(3):
        draws = drawn(fed.now.state.own)
        assert len(draws) == number + 1
        noise = sum(triangle(3)[number, s] * z for s, z in enumerate(draws))
        total = (fed.now.state.own["gram/0000"].double() + noise).round()
        ridge = Ridge(fed.method.ridge + noise_ridge(noise_of(2.0, 3)[number], moved, ITEMS))
        expected = weights_of(mirrored(inverse_of([(total, 1.0)], ITEMS, ridge)))
        assert_close(fed.now.state.public["weights"], expected, atol=1e-6, rtol=0)
        fed = leaves(fed, LEAVERS[number])


def test_noise_is_drawn_with_the_release_and_stays_with_the_server():
    fed = lending(scheduled(2)).run(1)
    state = fed.now.state
    assert sorted(state.public) == [BLOCK, "weights"]
    (draw,) = drawn(state.own)
    assert not torch.equal(draw, draw.round()), "whole noise would tell sums apart"
    again = fed.method.server_public(state.own, fed.world)
    assert torch.equal(again["weights"], state.public["weights"])
    other = lending(scheduled(2)).run(1)
    assert not torch.equal(drawn(other.now.state.own)[0], draw)


def test_no_release_no_draw():
    fed = leaves(lending(scheduled(3, release_every=5)).run(1), 6)
    assert len(drawn(fed.now.state.own)) == 1


def test_a_saved_federation_continues_with_the_same_noise(tmp_path, known):
    fed = lending(scheduled(3)).run(1)
    back = load_federation(save_federation(fed, tmp_path / "model"))
    assert params.digest(back.now.state.own) == params.digest(fed.now.state.own)
    after = leaves(back, 6)
    first, second = drawn(after.now.state.own)
    assert torch.equal(first, drawn(fed.now.state.own)[0])
    assert not torch.equal(first, second)
    again = after.method.server_public(after.now.state.own, after.world)
    assert torch.equal(after.now.state.public["weights"], again["weights"])


def test_new_items_get_noise_in_every_draw():
    fed = lending(scheduled(4)).run(1)
    fed = leaves(fed, 6)
    old, before = drawn(fed.now.state.own), fed.now.state.public["weights"]
    fed = fed.apply(next_block(clients=11, items=16))
    kept = fed.now.state.public["weights"]
    assert torch.equal(kept[:ITEMS, :ITEMS], before), "a block alone makes no release"
    fed = fed.run(1)
    new = drawn(fed.now.state.own)
    assert len(new) == 3
    for z, longer in zip(old, new, strict=False):
        assert torch.equal(longer[: len(z)], z)
        assert len(longer) == half(16)
        assert bool(longer[len(z) :].all())
    assert bool(fed.now.state.public["weights"].isfinite().all())
    # Who has parts in two blocks reaches farther (over_blocks).
    assert fed.method.promise(fed)["epsilon"] == epsilon_of(2.0 / 1.5, 1e-5)


# -- what it promises -----------------------------------------------------------------------------


@pytest.mark.parametrize("gone", range(4))
def test_no_person_moves_what_the_root_protects_farther_than_stated(gone):
    """Person 3 is counted at the first release; gone: the release they left before. 0: stay"""
    method, person = scheduled(4), 3

    leavers = [person if number == gone else LEAVERS[number] for number in (1, 2, 3)]

    def sums(fed: Federation) -> torch.Tensor:
        feds = [fed.run(1)]
        for client in leavers:
            there = bool(fed.world.members[client])
            feds.append(leaves(feds[-1], client) if there else feds[-1])
        return torch.stack([f.now.state.own["gram/0000"].double() / 4096 for f in feds])

    apart = sums(lending(method)) - sums(lending(method).apply(Withdraw(person)))
    moved = np.linalg.norm(np.linalg.solve(triangle(4), apart.numpy()))
    bound = reach(4) * method.server_reach(lending(method).world)
    assert bound / 4 < moved <= bound


def test_epsilon_is_that_of_the_whole_schedule_from_the_first_release_on():
    fed = lending(scheduled(3))
    assert fed.method.promise(fed)["epsilon"] == 0.0
    fed = fed.run(1)
    for client in LEAVERS:
        told = fed.method.promise(fed)
        assert told["epsilon"] == epsilon_of(2.0, 1e-5)
        assert "all 3 releases of the schedule" in told["protects"]
        assert "forgotten once" in told["protects"]
        fed = leaves(fed, client)


def test_forgetting_is_exact_and_noise_is_no_part_of_the_sum():
    fed = lending(scheduled(3)).run(1)
    for client in LEAVERS:
        fed = leaves(fed, client)
        own = fed.now.state.own
        never = fed.restart().run(1).now.state.own
        assert sum_digest(own) == sum_digest(never) == fed.method.rebuilt(fed)
        plain = {name: value for name, value in own.items() if not name.startswith("noise/")}
        assert len(plain) < len(own)
        assert sum_digest(plain) == sum_digest(own)


def test_a_retraining_is_refused_because_it_would_release_again() -> None:
    fed = leaves(lending(replace(scheduled(), releases=0)).run(1), 6)
    with pytest.raises(ConfigError, match=r"made 2 releases with noise.*by subtraction"):
        Retrain().unlearn(fed, Withdraw(7))
    again = fed.retrained(Withdraw(7))  # the control: it would forget what it spent
    assert again.method.promise(again)["epsilon"] < fed.method.promise(fed)["epsilon"]
    assert Retrain().unlearn(lending(Gram()).run(1), Withdraw(7)).now.state.round == 1


# -- the end --------------------------------------------------------------------------------------


def test_when_the_schedule_is_spent_devices_keep_the_last_release_and_receipts_say_so():
    fed = leaves(lending(scheduled(2)).run(1), 6)
    assert fed.method.pending(fed) == 0
    assert fed.method.settled(fed)
    assert fed.method.published(fed)["next"] == NONE_LEFT
    last = fed.now.state.public["weights"]
    for gone, client in enumerate((7, 4), start=1):
        before, fed = fed, leaves(fed, client)
        assert torch.equal(fed.now.state.public["weights"], last)
        assert fed.now.state.own["released"].tolist() == [2, gone]
        assert len(drawn(fed.now.state.own)) == 2
        assert fed.method.pending(fed) > 0
        assert not fed.method.settled(fed)
    stated = fed.method.claims(before, fed)
    assert stated.plain[NEXT] == "no release left in the schedule"
    assert stated.plain[EPSILON].endswith("at delta 1e-05, all 2 releases, 2 made")
    assert "correlated over 2 releases" in stated.plain[PUBLISHED]
    assert any("no release is left in the schedule" in said for said in stated.not_covered)
    with pytest.raises(ConfigError, match="no release left in the schedule: all 2 of Gram"):
        fed.method.publish(fed)
    later = fed.apply(next_block(clients=11, items=16)).run(1)
    assert torch.equal(later.now.state.public["weights"][:ITEMS, :ITEMS], last)


def test_a_receipt_of_a_spent_schedule_stays_at_the_first_level():
    fed = lending(scheduled(1)).run(1)
    receipt = forget(fed, Withdraw(6), audits="none")[1].exact
    assert receipt.done.level == "L1"
    assert receipt.claims[NEXT] == NONE_LEFT
    before = forget(lending(scheduled(2)).run(1), Withdraw(6), audits="none")[1].exact
    assert before.done.level != "L1"
    assert before.claims[NEXT] == "made"


# -- settings -------------------------------------------------------------------------------------


def test_one_release_is_as_noisy_as_fresh_noise():
    fed = lending(scheduled(1)).run(1)
    draws = torch.cat([fed.method.server_draw(105, fed.world) for _ in range(40)])
    expected = 2.0 * fed.method.server_reach(fed.world) * 4096
    assert math.isclose(float(draws.std()), expected, rel_tol=0.06)
