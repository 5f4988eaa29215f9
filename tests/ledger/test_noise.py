"""Releases with noise: what is drawn, what it covers, what it costs, and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ledgers import done, joined, take_back
from rescind.errors import ConfigError, DataError
from rescind.ledger import noising, restore, tables
from rescind.ledger.backup import back_up
from rescind.ledger.book import Ledger
from rescind.ledger.lending import Lend
from rescind.ledger.options import Options
from rescind.ledger.release_worker import HIDDEN, Copy, _make_there, make_here
from rescind.methods.additive._live_release import Form
from rescind.methods.additive._live_sum import added_up
from rescind.methods.additive._noised_release import (
    Noise,
    correlated,
    drawn,
    equal_sum,
    noised_release,
    reach,
)
from rescind.methods.additive._solving import UNIT, Solving
from rescind.privacy.gaussian import epsilon_of
from rescind.privacy.schedules import noise_of, root
from rescind.privacy.schedules import reach as reach_of
from served import ITEMS, likes, opened, rows

SECRET = "5" * 64
NOISE = Noise(2.0, 8, 0, SECRET)
LOANS = [np.array(likes(n), np.int32) for n in range(60)]
FORM = Form(Solving(ridge=8.0, shown_power=0.6), 10, 0)


def test_what_is_drawn_is_normal_and_the_same_again() -> None:
    one, two = drawn(b"s" * 32, 0, 100_001), drawn(b"s" * 32, 1, 100_001)
    assert np.array_equal(one, drawn(b"s" * 32, 0, 100_001))
    assert abs(one.mean()) < 0.015
    assert abs(one.std() - 1) < 0.01
    assert abs((one**4).mean() - 3) < 0.15
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.015
    assert abs(np.corrcoef(one[:-1:2], one[1::2])[0, 1]) < 0.02
    assert not np.array_equal(one[:10], drawn(b"t" * 32, 0, 10))


def test_the_noise_of_a_schedule_is_the_square_root_of_the_triangle_of_ones() -> None:
    """Release r has R z: so z comes back by solving with R, and what R x must hide is `reach`."""
    pairs, count = 4_000, NOISE.releases
    made = np.stack([correlated(replace(NOISE, place=r), pairs) for r in range(count)])
    column = np.array(root(count))
    triangle = np.array([[column[t - s] if s <= t else 0.0 for s in range(count)]
                         for t in range(count)])  # fmt: skip
    z = np.linalg.solve(triangle, made)
    assert np.allclose(z.std(1), NOISE.multiplier * reach_of(count), rtol=0.05)
    assert np.allclose(np.corrcoef(z), np.eye(count), atol=0.07)
    assert np.allclose(made.std(1), noise_of(NOISE.multiplier, count), rtol=0.05)
    # control: fresh noise of each release's deviation is not this schedule
    fresh = np.linalg.solve(triangle, np.random.default_rng(0).normal(size=made.shape))  # noqa: TID251
    assert not np.allclose(np.corrcoef(fresh), np.eye(count), atol=0.07)


def test_one_person_moves_the_sum_by_what_the_noise_is_measured_in() -> None:
    for size in (1, 2, 5, 40):
        mine = np.arange(size, dtype=np.int32)
        moved = (equal_sum([*LOANS, mine], ITEMS).total - equal_sum(LOANS, ITEMS).total) / UNIT
        assert np.linalg.norm(moved) <= reach(ITEMS) <= 1 + 1e-12
    free = added_up([np.arange(40, dtype=np.int32)], ITEMS).total / UNIT
    assert np.linalg.norm(free) > 2  # control: the sum without noise is not bounded so


def test_a_release_depends_on_the_noisy_sum_alone() -> None:
    """Exact counts of owners, which no noise covers, change nothing that is released."""
    made = noised_release(LOANS, ITEMS, NOISE, FORM)
    again = noised_release(LOANS, ITEMS, NOISE, replace(FORM, min_count=50))
    assert made.to_bytes(["x"] * ITEMS) == again.to_bytes(["x"] * ITEMS)
    other = noised_release(LOANS, ITEMS, replace(NOISE, secret="6" * 64), FORM)
    assert made.to_bytes(["x"] * ITEMS) != other.to_bytes(["x"] * ITEMS)
    quiet = noised_release(LOANS, ITEMS, replace(NOISE, multiplier=1e-6), FORM)
    owners = np.bincount(np.concatenate(LOANS), minlength=ITEMS)
    assert len(quiet.popular) == (owners > 0).sum()  # control: without noise it is exact
    with pytest.raises(DataError, match="one more"):
        noised_release(LOANS, ITEMS, replace(NOISE, place=8), FORM)


def test_the_other_process_makes_the_same_release() -> None:
    copy = Copy.of(added_up(LOANS, ITEMS), {bytes([n]): one for n, one in enumerate(LOANS)}, {})
    ids = [f"film-{n}" for n in range(ITEMS)]
    out = replace(copy, left_out=(3, 4))
    assert _make_there(out, ids, FORM, NOISE) == make_here(out, ids, FORM, NOISE)
    assert make_here(out, ids, FORM, NOISE) != make_here(copy, ids, FORM, NOISE)  # control


def noisy(state: Path, **more: object) -> Ledger:
    settled = {"noise": 4.0, "noise_releases": 2, "noise_changes": 2, "noise_delta": 1e-5}
    return opened(state, **(settled | more))


def test_releases_stop_when_the_budget_is_spent_also_after_a_restart(tmp_path: Path) -> None:
    ledger = noisy(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(8)]
    promised = ledger.releases.noising.promise()
    assert promised is not None
    assert promised["epsilon"] == pytest.approx(epsilon_of(4.0 / 2, 1e-5))
    ledger.releases.make()
    done(ledger, take_back(people[0], "unshare", likes(0)[0]))
    ledger.close()
    ledger = noisy(tmp_path / "state")  # a start costs nothing
    assert ledger.releases.noising.promise()["left"] == 1
    second = ledger.releases.make()
    row = rows(ledger, tables.release)[-1]
    assert (row.sum_digest, row.audit) == (HIDDEN, "UNAUDITED")
    assert "epsilon" in next(iter(rows(ledger, tables.request))).receipt.decode()
    done(ledger, take_back(people[1], "unshare"))
    ledger.close()
    ledger = noisy(tmp_path / "state", people=1)
    assert ledger.releases.noising.spent
    assert not ledger.releases.is_due(ledger.clock())
    with pytest.raises(ConfigError, match="budget is spent"):
        ledger.releases.make()
    assert ledger.releases.current.number == second.number  # the last one stays in service
    ledger.close()
    # Another schedule is possible; what it costs is added.
    ledger = opened(tmp_path / "state", noise=4.0, noise_releases=3, noise_changes=2)
    both = ledger.releases.noising.promise()
    assert both["epsilon"] == pytest.approx(epsilon_of(2.0 / math.sqrt(2), 1e-6))
    ledger.releases.make()
    ledger.close()
    with pytest.raises(ConfigError, match="would undo it"):
        opened(tmp_path / "state")


def test_a_killed_release_is_made_again_from_the_same_place(tmp_path: Path) -> None:
    ledger = noisy(tmp_path / "state")
    joined(ledger, *likes(0))
    first = ledger.releases.noising.next()
    ledger.close()
    ledger = noisy(tmp_path / "state")
    assert ledger.releases.noising.next() == first
    ledger.releases.make()
    assert ledger.releases.noising.next() == replace(first, place=1)
    ledger.close()


@pytest.mark.parametrize("guarded", [True, False])
def test_going_back_never_shows_the_same_noise_on_other_loans(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever subtracts two releases with one noise reads what changed between them, exactly."""
    if not guarded:  # control: the form of before
        monkeypatch.setattr(restore, "end_schedule", lambda _: None)
        monkeypatch.setattr(noising.secrets, "token_hex", lambda _: "")
    state, kept, shown = tmp_path / "state", tmp_path / "kept.db", list[Noise]()
    ledger = noisy(state)
    joined(ledger, *likes(0))
    ledger.releases.make()
    ledger.close()
    back_up(state, kept)
    for releases in (2, 3, 3):  # what follows the backup, three times; each time others lend
        ledger = noisy(state, noise_releases=releases)
        shown.append(ledger.releases.noising.next())
        joined(ledger, *likes(len(shown)))
        ledger.releases.make()
        ledger.close()
        restore.restore(state, kept)
    assert (shown[1] != shown[2]) == guarded
    ledger = noisy(state)
    if guarded:
        with pytest.raises(ConfigError, match="ended by going back"):
            ledger.releases.make()
    else:
        assert ledger.releases.noising.next() == shown[0]
    ledger.close()


def test_who_changes_more_often_than_is_covered_is_left_out(tmp_path: Path) -> None:
    ledger = opened(
        tmp_path / "state", noise=4.0, noise_releases=9, noise_changes=2, noise_delta=1e-5
    )
    restless, calm = joined(ledger, 1, 2, 3), joined(ledger, 1, 2, 4)
    seen = []
    for item in (5, 6, 7):
        ledger.releases.make()
        done(ledger, Lend(restless, (item,)))
        done(ledger, Lend(restless, (item + 10,)))  # in the same pause: one part, not two
        seen.append(ledger.releases.noising.left_out(2**40))
    assert seen == [frozenset(), frozenset({restless}), frozenset({restless})]
    copy, *_ = ledger.releases._copy()
    assert len(copy.left_out) == 1
    done(ledger, Lend(calm, (8,)))  # control: a second part is covered
    assert ledger.releases.noising.left_out(2**40) == {restless}
    ledger.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"noise": 0.0}, "above 0"),
        ({"noise": 1.0, "noise_releases": 0}, "1 to 1,000"),
        ({"noise": 1.0, "noise_delta": 1.0}, "between 0 and 1"),
        ({"noise": 1.0, "instant": True}, "instant form has no noise"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Options(**given)
