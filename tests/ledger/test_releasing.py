"""Releases: when they are due, what is sealed, what an audit sees, and what a crash leaves."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from ledgers import done, joined, take_back
from rescind.errors import ConfigError, DataError
from rescind.ledger import tables
from rescind.ledger.failpoints import VARIABLE
from rescind.ledger.keyslots import unseal
from rescind.ledger.lending import Lend
from rescind.ledger.release_audit import audited
from rescind.ledger.release_steps import bound, path_of
from rescind.ledger.release_worker import Copy, _make_there, make_here
from rescind.methods.additive._live_release import Form, read, release_of, unpacked
from rescind.methods.additive._live_sum import Items, added_up
from rescind.methods.additive._solving import Solving
from rescind.proof.roster import release_entry
from served import CATALOGUE, ITEMS, START, Hand, likes, opened, rows


def test_a_release_is_due_by_people_or_by_time_since_the_first_change(tmp_path: Path) -> None:
    clock = Hand()
    ledger = opened(tmp_path / "state", clock)
    assert not ledger.releases.is_due(clock.now + timedelta(days=99))  # nothing has changed
    person = joined(ledger, *likes(0))
    clock.now += timedelta(hours=2)
    done(ledger, Lend(person, (0, 1, 2, 3)))  # the same person counts once
    due = ledger.releases.due()
    assert (due.people_left, due.at) == (4, START + timedelta(hours=24))
    assert not ledger.releases.is_due(START + timedelta(hours=23))
    assert ledger.releases.is_due(START + timedelta(hours=24))
    for other in range(1, 5):
        joined(ledger, *likes(other))
    assert ledger.releases.is_due(clock.now)
    ledger.releases.make()
    assert ledger.releases.due().people_left == 5
    assert not ledger.releases.is_due(clock.now + timedelta(days=99))
    ledger.close()


def test_a_start_serves_the_release_that_is_there_and_makes_none(tmp_path: Path) -> None:
    clock = Hand()
    ledger = opened(tmp_path / "state", clock)
    people = [joined(ledger, *likes(n)) for n in range(6)]
    made = ledger.releases.make()
    done(ledger, take_back(people[0], "unshare", likes(0)[0]))
    own = ledger.live.of(people[1])
    shown = ledger.releases.recommend(own, 5)
    ledger.close()
    clock.now += timedelta(days=3)  # long due, but a start is no reason
    again = opened(tmp_path / "state", clock)
    assert again.releases.current is not None
    assert again.releases.current.digest == made.digest
    assert again.releases.recommend(own, 5) == shown
    assert len(rows(again, tables.release)) == 1
    assert again.releases.is_due(clock.now)  # control: it is due, and nobody made it yet
    again.close()


def test_what_is_served_is_the_solved_sum_and_lists_forget_with_the_next_release(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(8)]
    ledger.releases.make()
    before = ledger.releases.recommend(ledger.live.of(people[1]), 10)
    done(ledger, take_back(people[0], "erase"))
    assert ledger.releases.recommend(ledger.live.of(people[1]), 10) == before  # not yet
    release = ledger.releases.make()
    loans = [ledger.live.of(person) for person in people[1:]]
    form = replace(Form(), neighbours=10, min_count=2, rounding=2.0)
    expected = release_of(added_up(loans, ITEMS), form)
    np.testing.assert_array_equal(release.weights.weight, expected.weight)
    assert release.sum_digest == added_up(loans, ITEMS).digest(2) == ledger.live.digest()
    assert read(unpacked(ledger.releases.file()))[1] == list(CATALOGUE.ids)
    ledger.close()


def test_the_file_is_sealed_and_the_old_one_cannot_be_opened_any_more(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    for n in range(6):
        joined(ledger, *likes(n))
    ledger.releases.make()
    (row,) = rows(ledger, tables.release)
    box, key = path_of(state, 1).read_bytes(), ledger.keys.get(row.key).key
    assert unseal(key, box, bound(1)) == ledger.releases.file()
    assert ledger.releases.file()[:64] not in box
    joined(ledger, *likes(7))
    ledger.releases.make()
    assert not path_of(state, 1).exists()
    assert [one.key is None for one in rows(ledger, tables.release)] == [True, False]
    with pytest.raises(DataError, match="destroyed"):
        ledger.keys.get(row.key)
    assert key not in (state / "keys.bin").read_bytes()
    ledger.close()


def test_the_leaf_of_a_release_states_its_public_facts(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    for n in range(6):
        joined(ledger, *likes(n))
    release = ledger.releases.make()
    (row,) = rows(ledger, tables.release)
    facts = {
        "audit": "UNAUDITED",
        "number": 1,
        "people": 6,
        "sum": ledger.live.digest(),
        "weights": release.digest,
    }
    assert ledger.reading.entries(row.leaf, 1) == [release_entry(facts)]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    assert release_entry(facts) == b"\x03" + hashlib.sha256(text).digest()
    assert release_entry({**facts, "people": 7}) != release_entry(facts)
    ledger.close()


def many(people: int = 60) -> tuple[list[Items], list[Items]]:
    """Return what people kept and what they took back: every third record of some."""
    kept, gone = [], []
    for person in range(people):
        items = np.array(likes(person), np.int32)
        back = items[::3] if person < people // 2 else items[:0]
        kept.append(np.setdiff1d(items, back).astype(np.int32))
        gone.append(back)
    return kept, gone


FORM = Form(Solving(ridge=5.0), neighbours=20, min_count=2)


@pytest.mark.parametrize("rounding", [0.0, 2.0])
def test_an_audit_passes_a_release_without_the_records_and_its_controls_behave(
    rounding: float,
) -> None:
    kept, gone = many()
    form = replace(FORM, rounding=rounding)
    release = release_of(added_up(kept, ITEMS), form)
    (found,) = audited(release, kept, gone, form)
    assert (found.verdict, found.n) == ("PASS", sum(map(len, gone)))
    assert found.n >= 100
    assert found.controls["no-op"] > 0.8
    assert found.controls["retrain"] == pytest.approx(0.5, abs=0.05)


def test_an_audit_fails_a_release_that_still_has_the_records() -> None:
    kept, gone = many()
    before = [np.union1d(*both).astype(np.int32) for both in zip(kept, gone, strict=True)]
    (found,) = audited(release_of(added_up(before, ITEMS), FORM), kept, gone, FORM)
    assert found.verdict == "FAIL"


def test_fewer_than_100_records_are_not_judged() -> None:
    kept, gone = many()
    few = [back[:1] for back in gone[:40]] + [back[:0] for back in gone[40:]]
    (found,) = audited(release_of(added_up(kept, ITEMS), FORM), kept, few, FORM)
    assert (found.verdict, found.n) == ("UNAUDITED", 0)


def test_a_sum_that_is_not_that_of_the_loans_makes_no_release() -> None:
    kept, gone = many()
    sums = added_up(kept, ITEMS)
    sums.total[3] += 1
    with pytest.raises(DataError, match="sum in memory"):
        make_here(Copy(sums, tuple(kept), tuple(gone)), CATALOGUE.ids, FORM)


@pytest.mark.parametrize("lost", [0, None])
def test_the_process_that_makes_releases_makes_the_same(lost: int | None) -> None:
    kept, gone = many(20)
    copy = Copy(added_up(kept, ITEMS), tuple(kept), tuple(gone), lost=lost)
    here, there = (make(copy, CATALOGUE.ids, FORM) for make in (make_here, _make_there))
    assert here == there


def test_before_the_first_release_nothing_shows_what_people_lend(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    person = joined(ledger, *likes(0))
    first = [line.item for line in ledger.releases.recommend(ledger.live.of(person), 5)]
    assert first == [n for n in range(ITEMS) if n not in likes(0)][:5]
    joined(ledger, *likes(1))
    assert ledger.releases.popular(ledger.live.of(person), 5) == first
    with pytest.raises(DataError, match="no release yet"):
        ledger.releases.file()
    ledger.close()


def test_the_instant_form_serves_changes_at_once_and_makes_no_releases(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", instant=True)
    people = [joined(ledger, *likes(n)) for n in range(8)]
    own = ledger.live.of(people[1])
    assert ledger.live.ready().form.min_count == 2  # as the options say
    before = ledger.releases.recommend(own, 10)
    done(ledger, take_back(people[2], "unshare"))
    assert ledger.releases.recommend(own, 10) != before
    assert not ledger.releases.missing
    assert not ledger.releases.is_due(START + timedelta(days=9))
    with pytest.raises(ConfigError, match="instant"):
        ledger.releases.make()
    ledger.close()


CRASH = """
import sys
from pathlib import Path
from ledgers import done, joined, take_back
from served import likes, opened
ledger = opened(Path(sys.argv[1]))
people = [joined(ledger, *likes(n)) for n in range(6)]
ledger.releases.make()
done(ledger, take_back(people[0], "unshare"))
ledger.releases.make()
"""


@pytest.mark.parametrize(
    "where",
    [
        "release being made",
        pytest.param("release committed", marks=pytest.mark.slow),
        "receipts committed",
    ],
)
def test_killed_while_a_release_is_made(where: str, tmp_path: Path) -> None:
    state, helpers = tmp_path / "state", Path(__file__).parents[1] / "helpers"
    path = os.pathsep.join([str(helpers), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, VARIABLE: f"{where}:2", "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", CRASH, state], env=env, check=False)
    assert ended.returncode == -9
    ledger = opened(state)
    made = rows(ledger, tables.release)
    (request,) = rows(ledger, tables.request)
    assert ledger.parts.tally.number == (where == "release being made"), "who took back counts once"
    if where == "release being made":  # the old one serves, and the request waits
        assert (len(made), request.status) == (1, "in_progress")
        assert ledger.releases.make().number == 2
        (request,) = rows(ledger, tables.request)
    assert ledger.releases.current.number == 2
    assert (request.status, request.level, request.release) == ("fulfilled", "L3", 2)
    assert request.receipt is not None
    assert [row.key is None for row in rows(ledger, tables.release)] == [True, False]
    assert [path.name for path in state.glob("release-*")] == ["release-2.sealed"]
    assert not ledger.keys.without_box(
        {row.key for row in rows(ledger, tables.release)}
        | {row.loans_key for row in rows(ledger, tables.person)}
        | {row.account_key for row in rows(ledger, tables.person)}
    )
    ledger.close()
