"""Who changed something since a release: counted in memory, and never less than the ledger says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ledgers import CATALOGUE, done, joined
from rescind.ledger.book import Ledger
from rescind.ledger.lending import Lend, TakeBack
from rescind.ledger.options import Options
from rescind.ledger.tally import MOST, Since, Tally

AT = datetime(2026, 11, 16, 12, tzinfo=UTC)


def event(seq: int, person: bytes | None, kind: str = "lend") -> dict[str, Any]:
    return {"seq": seq, "person": person, "kind": kind, "at": AT + timedelta(seconds=seq)}


def nothing(_: int) -> Since:
    return Since(set(), 0, None)


def asked_too_often(_: int) -> Since:
    raise AssertionError("the database was asked")


def test_a_person_counts_once_and_the_first_change_is_dated() -> None:
    tally = Tally()
    assert tally.since(0, nothing).number == 0
    tally.note([event(1, b"a"), event(2, b"b"), event(3, b"a"), event(4, b"c", "join")])
    found = tally.since(0, asked_too_often)
    assert (found.number, found.first) == (2, AT + timedelta(seconds=1))


def test_leaving_another_release_and_too_much_news_ask_the_ledger() -> None:
    tally, asked = Tally(), []

    def read(after: int) -> Since:
        asked.append(after)
        return nothing(after)

    tally.since(0, read)
    tally.note([event(1, None, "leave")])
    assert not tally.knows(0)
    tally.since(0, read)
    assert tally.knows(0)
    tally.since(5, read)
    tally.note([event(n, b"a") for n in range(6, 8 + MOST)])
    tally.since(5, read)
    assert asked == [0, 0, 5, 5]


def test_what_is_noted_while_the_ledger_is_read_is_not_lost() -> None:
    tally = Tally()

    def read(_: int) -> Since:  # the answer is of before the event
        tally.note([event(1, b"a")])
        return Since(set(), 0, None)

    tally.since(0, read)
    assert tally.since(0, asked_too_often).number == 1
    tally = Tally()

    def left(_: int) -> Since:
        tally.note([event(2, None, "leave")])
        return Since(set(), 0, None)

    tally.since(0, left)
    assert not tally.knows(0)


def test_it_says_what_a_count_of_all_events_says(tmp_path: Path) -> None:
    options = Options(people=3, min_count=1)
    ledger = Ledger.open(tmp_path / "state", catalogue=CATALOGUE, options=options)
    try:
        people = [joined(ledger, n, n + 1) for n in range(4)]
        releases = ledger.releases
        for operation in (
            Lend(people[0], (9,)),
            TakeBack(people[1], "unshare", (1,)),
            TakeBack(people[2], "leave"),
            Lend(people[3], (10,)),
        ):
            done(ledger, operation)
            counted, anew = releases._changes(), releases._changed_between(0)
            assert (counted.people, counted.left, counted.first) == tuple(anew)
        releases.make()
        assert releases._changes().number == 0
        done(ledger, Lend(people[0], (12,)))
        assert releases.due(ledger.clock()).people_left == 2
    finally:
        ledger.close()
