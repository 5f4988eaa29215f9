"""What a browser keeps is counted in the sum if its person says so: exactly, and never more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

import rescind as rs
from databases import POSTGRES, schema
from ledgers import CATALOGUE, difference, done, joined, kept, lent, opened, take_back
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Records, Share
from rescind.errors import ConsentError, DataError
from rescind.ledger import tables
from rescind.ledger.book import Ledger
from rescind.ledger.contributing import MOST, Contribute, Part
from rescind.ledger.errors import CannotStart, VersionConflict
from rescind.ledger.kept_part import name_of
from rescind.ledger.lending import Lend
from rescind.ledger.operators import Quarantine
from rescind.ledger.options import Options
from rescind.ledger.tables import named_slots
from rescind.methods.additive._live_release import Form
from rescind.methods.additive._live_sum import weight_of
from rescind.receipts.claims import sum_digest

ITEMS = len(CATALOGUE)
PLACES = st.sets(st.integers(0, ITEMS - 1), max_size=6)


def records_of(parts: Iterable[set[int]]) -> Records:
    pairs = [(person, item) for person, items in enumerate(parts) for item in sorted(items)]
    table = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return Records.of(table[:, 0], table[:, 1])


def gram_digest(lending: list[set[int]], keeping: list[set[int]]) -> str:
    """Return the digest of the sum of `Gram`, where devices keep some items and lend others."""
    form = Form()
    method = rs.methods.Gram(min_count=form.min_count)
    everything = records_of(a | b for a, b in zip(lending, keeping, strict=True))
    roles = torch.zeros(len(everything), dtype=torch.int8)
    fed = Federation.start(Holdings.of(everything, roles, len(lending), ITEMS), method)
    fed = fed.apply(Share(records_of(lending))).run(1)
    return str(sum_digest(fed.now.state.own))


def live(state: Path, **more: Any) -> Ledger:
    return Ledger.open(state, **{"catalogue": CATALOGUE, **more})


STEPS = st.lists(
    st.tuples(st.sampled_from(["lend", "keep", "back"]), st.integers(0, 2), PLACES), max_size=8
)


@settings(max_examples=5, deadline=None)
@given(steps=STEPS)
def test_the_sum_is_gram_on_lent_and_kept_records(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, set[int]]]
) -> None:
    play(tmp_path_factory.mktemp("gram"), None, steps)


@pytest.mark.service
def test_in_postgresql_it_is_the_same_sum(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not POSTGRES:
        pytest.skip("PostgreSQL is tried with RESCIND_TEST_POSTGRES=1")

    @settings(max_examples=10, deadline=None)
    @given(steps=STEPS)
    def in_both(steps: list[tuple[str, int, set[int]]]) -> None:
        with schema() as database:
            play(tmp_path_factory.mktemp("gram"), database, steps)

    in_both()


def play(state: Path, database: str | None, steps: list[tuple[str, int, set[int]]]) -> None:
    """Let three people lend, keep and take back; compare the sum with `Gram`."""
    ledger = live(state, database=database)
    people = [joined(ledger) for _ in range(3)]
    lending: list[set[int]] = [set(), set(), set()]
    keeping: list[set[int]] = [set(), set(), set()]
    for what, who, items in [*steps, ("keep", 0, {1, 2}), ("lend", 1, {3, 4})]:
        wanted = items - lending[who]
        if what == "lend" and items:
            done(ledger, Lend(people[who], tuple(items)))
            lending[who] |= items
            keeping[who] -= items
        elif what == "keep" and wanted:
            done(ledger, difference(people[who], keeping[who], wanted))
            keeping[who] = wanted
        elif what == "back" and (there := items & (lending[who] | keeping[who])):
            done(ledger, take_back(people[who], "unshare", *there))
            lending[who] -= there
            keeping[who] -= there
    assert ledger.live.digest() == gram_digest(lending, keeping)
    without = [set() for _ in keeping]
    if any(keeping):
        assert ledger.live.digest() != gram_digest(lending, without), "control: kept parts count"
    ledger.close()
    again = live(state, database=database)
    assert again.live.digest() == gram_digest(lending, keeping)
    again.close()


def test_leaving_subtracts_both_parts_and_destroys_their_keys(tmp_path: Path) -> None:
    ledger = live(tmp_path)
    joined(ledger, 1, 2, 3)
    before = ledger.live.digest()
    person = joined(ledger, 4, 5)
    done(ledger, difference(person, [], [6, 7, 8]))
    with ledger.store.reading() as tx:
        keys = set(named_slots(tx))
        row = tx.execute(select(tables.person).where(tables.person.c.id == person)).one()
    assert ledger.live.digest() != before
    assert done(ledger, take_back(person, "leave")).body["n"] == 5
    assert ledger.live.digest() == before
    assert {row.account_key, row.loans_key, row.kept_key} <= keys
    assert not {row.account_key, row.loans_key, row.kept_key} & ledger.keys.ids
    with ledger.store.reading() as tx:
        left = tx.execute(select(tables.person).where(tables.person.c.id == person)).one()
    assert (left.kept_key, left.kept_box, left.kept_count) == (None, None, None)
    ledger.close()


def test_a_held_account_has_no_part_and_sends_none(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    person = joined(ledger, 1)
    done(ledger, difference(person, [], [6, 7]))
    done(ledger, Quarantine(person, "cheats"))
    assert ledger.live.loans == {}
    assert kept(ledger, person) == []
    with pytest.raises(ConsentError, match="held"):
        done(ledger, difference(person, [], [6]))
    ledger.close()


def lies(person: bytes) -> dict[str, tuple[type[Exception], str, Contribute]]:
    """Differences that no honest browser sends: it has counted 4 and 5."""
    honest = difference(person, [4, 5], [5, 6])
    half = Part((5, 6), 2 * weight_of(2))
    return {
        "a larger weight": (DataError, "weight", replace(honest, plus=half)),
        "a weight below": (DataError, "weight", replace(honest, plus=Part((5, 6), 1))),
        "an item twice": (DataError, "twice", replace(honest, plus=Part((6, 6), weight_of(2)))),
        "no such item": (DataError, "places", replace(honest, plus=Part((6, 99), weight_of(2)))),
        "nothing": (DataError, "no items", replace(honest, plus=Part((), 0))),
        "too many": (
            DataError,
            "at most",
            replace(honest, plus=Part(tuple(range(MOST + 1)), weight_of(MOST + 1))),
        ),
        "what is lent": (
            ConsentError,
            "1 of these 2 items is lent",
            difference(person, [4, 5], [1, 6]),
        ),
        "less than it holds": (VersionConflict, "holds 2", difference(person, [4], [6])),
        "more than it holds": (VersionConflict, "holds 2", difference(person, [4, 5, 7], [6])),
        "another weight to subtract": (
            DataError,
            "minus has",
            replace(honest, minus=Part((4, 5), weight_of(1))),
        ),
        "another browser": (ConsentError, "another browser", replace(honest, device=bytes(16))),
    }


@pytest.mark.parametrize("lie", lies(b""))
def test_a_lying_browser_is_refused_and_changes_nothing(tmp_path: Path, lie: str) -> None:
    ledger = opened(tmp_path)
    person = joined(ledger, 1, 2)
    done(ledger, difference(person, [], [4, 5]))
    before, keys = ledger.live.digest(), ledger.keys.ids
    error, words, operation = lies(person)[lie]
    with pytest.raises(error, match=words):
        done(ledger, operation)
    assert (ledger.live.digest(), kept(ledger, person)) == (before, [4, 5])
    assert ledger.keys.ids == keys
    done(ledger, difference(person, [4, 5], [5, 6]))  # the control: an honest one is taken
    assert kept(ledger, person) == [5, 6]
    ledger.close()


def test_an_entry_is_never_more_than_one_person_can_produce(tmp_path: Path) -> None:
    """Whatever a browser sends, lent and kept parts of one person are apart: 4096 at the most."""
    ledger = live(tmp_path)
    person = joined(ledger, 1)
    done(ledger, difference(person, [], [2]))
    done(ledger, Lend(person, (2,)))
    total, owners = ledger.live.sums.total, ledger.live.sums.owners
    assert int(np.max(total)) <= 4096
    assert int(np.max(owners)) == 1
    assert kept(ledger, person) == []
    ledger.close()


def test_a_repeated_difference_counts_once(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    person = joined(ledger)
    first = done(ledger, difference(person, [], [4, 5]), "the-same-key-000")
    again = done(ledger, difference(person, [], [4, 5]), "the-same-key-000")
    assert (first.status, again.status, again.replayed) == (201, 201, True)
    same = done(ledger, difference(person, [4, 5], [4, 5]))
    assert (same.status, same.body["changed"]) == (200, 0)
    assert ledger.live.loans == {name_of(person): (4, 5)}
    events = [one.kind for one in ledger.reading.events(person)]
    assert events == ["join", "contribute"]
    ledger.close()


def test_with_noise_no_part_is_taken_and_none_is_released(tmp_path: Path) -> None:
    noise = Options(noise=4.0, people=1)
    ledger = live(tmp_path, options=noise)
    person = joined(ledger, 1, 2)
    with pytest.raises(ConsentError, match="one part"):
        done(ledger, difference(person, [], [4]))
    ledger.close()
    ledger = live(tmp_path / "before")
    person = joined(ledger, 1, 2)
    done(ledger, difference(person, [], [4, 5]))
    ledger.close()
    ledger = live(tmp_path / "before", options=noise)
    copy, *_ = ledger.releases._copy()
    assert [copy.kept[n].tolist() for n in copy.left_out] == [[4, 5]]
    ledger.close()


def test_a_lost_key_drops_the_part_alone_and_says_so(tmp_path: Path) -> None:
    ledger = live(tmp_path)
    person = joined(ledger, 1, 2)
    expected = ledger.live.digest()
    done(ledger, difference(person, [], [4, 5]))
    with ledger.store.reading() as tx:
        slot = tx.scalar(select(tables.person.c.kept_key).where(tables.person.c.id == person))
    ledger.keys.destroy(slot)
    ledger.keys.sync()
    ledger.close()
    with pytest.raises(CannotStart, match="1 key of this ledger cannot be found"):
        live(tmp_path)
    again = live(tmp_path, options=Options(accept_lost_keys=True))
    assert again.report.kept_parts_dropped == 1
    assert "1 kept parts cannot be opened" in str(again.report)
    assert (lent(again, person), kept(again, person)) == ([1, 2], [])
    assert again.live.digest() == expected
    again.close()
    third = live(tmp_path)
    assert third.report.kept_parts_dropped == 0
    third.close()


def test_a_generation_learns_from_loans_alone(tmp_path: Path) -> None:
    ledger = live(tmp_path)
    person = joined(ledger, 1, 2)
    done(ledger, difference(person, [], [4, 5]))
    generations = ledger.generations
    generations._begun("job", 1)
    assert list(generations._copy["job"].loans) == [person]
    ended: list[bool] = []
    generations._stop = lambda: ended.append(True)  # type: ignore[method-assign]
    done(ledger, difference(person, [4, 5], [6]))
    done(ledger, Lend(person, (6,)))
    assert ended == []
    done(ledger, take_back(person, "unshare", 6))
    assert ended == [True]  # the control: what it learnt from is watched
    ledger.close()
