"""What an audit says after a restart: nothing of what was taken back is kept, and it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabricated import made
from ledgers import difference, done, joined, take_back
from rescind.audits.finding import Finding, counted
from rescind.errors import DataError
from rescind.ledger import fulfilment, releasing, tables
from rescind.ledger.book import Ledger
from rescind.ledger.generation_worker import audited
from rescind.ledger.lending import Lend, TakeBack
from rescind.ledger.release_audit import FEWEST, with_lost
from rescind.privacy.sealing import band
from rescind.receipts import receipt as receipts
from rescind.receipts.verify import verify
from served import ITEMS, likes, opened, rows

KEY = bytes(range(32))
TOO_FEW, RESTARTED = "Too few were taken back", "it was started again since"


def lenders(ledger: Ledger, number: int = 60) -> list[bytes]:
    """Make people who lend, and a release with all of them."""
    people = [joined(ledger, *likes(n)) for n in range(number)]
    ledger.releases.make()
    return people


def less(ledger: Ledger, people: list[bytes], each: Callable[[Any], Any]) -> int:
    """Let people erase a part of what they lend; return how many records that is."""
    count = 0
    for person in people:
        items = [int(item) for item in each(ledger.live.of(person))]
        count += len(items)
        if items:
            done(ledger, TakeBack(person, "erase", tuple(items), KEY))
    return count


def a_third(items: Any) -> Any:
    return items[::3]


def one(items: Any) -> Any:
    return items[:1]


def restarted(ledger: Ledger) -> Ledger:
    ledger.close()
    return opened(ledger.state)


def told(ledger: Ledger) -> tuple[Any, list[dict[str, Any]]]:
    """Return the last audit and its findings; every receipt of the release must say the same."""
    row = rows(ledger, tables.audit)[-1]
    found = json.loads(row.detail)
    issued = [r.receipt for r in rows(ledger, tables.request) if r.release == row.release]
    assert issued
    for each in map(bytes, issued):
        receipt = receipts.parse(each)
        exact, said = receipts.opened(receipt, KEY), [one["note"] for one in found]
        assert [one.note for one in exact.findings] == said
        in_the_open = [one["note"] if one["check"] != "taken back" else "" for one in found]
        assert [one.note for one in receipt.findings] == in_the_open
        assert receipt.verdict == row.verdict
        assert band(len(each)) == fulfilment.RECEIPT_BYTES
        assert verify(each, {receipt.public_key: "operator"}, key=KEY).valid
    return row, found


@pytest.mark.parametrize("restart", [True, False])
def test_a_release_says_that_a_restart_left_nothing_to_judge(tmp_path: Path, restart: bool) -> None:
    ledger = opened(tmp_path)
    people = lenders(ledger)
    count = less(ledger, people[:30], a_third)
    assert count >= FEWEST
    if restart:
        ledger = restarted(ledger)
    ledger.releases.make()
    row, (found, _) = told(ledger)
    if restart:
        assert (row.verdict, row.records) == ("UNAUDITED", 0)
        assert RESTARTED in found["note"]
        assert TOO_FEW not in found["note"]
    else:
        assert (row.verdict, row.records) == ("PASS", count), "control"
    again = less(ledger, people[30:], a_third)
    ledger.releases.make()
    row, found = told(ledger)
    assert (row.verdict, row.records) == ("PASS", again), "the next one is whole again"
    assert len(found) == 2
    ledger.close()


@pytest.mark.parametrize("restart", [True, False])
def test_too_few_is_said_where_they_were_counted(tmp_path: Path, restart: bool) -> None:
    """The ledger has how many they were, also of those before a start."""
    ledger = opened(tmp_path)
    people = lenders(ledger)
    count = less(ledger, people[:30], one)
    if restart:
        ledger = restarted(ledger)
    count += less(ledger, people[30:], one)
    assert 0 < count < FEWEST
    ledger.releases.make()
    row, (found, _) = told(ledger)
    assert (row.verdict, row.records) == ("UNAUDITED", 0)
    assert TOO_FEW in found["note"]
    assert "started again" not in found["note"]
    ledger.close()


def test_enough_after_a_restart_pass_for_nobody_because_no_receipt_says_which_it_is(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path)
    people = lenders(ledger, 90)
    less(ledger, people[:20], a_third)
    ledger = restarted(ledger)
    assert less(ledger, people[20:60], a_third) >= FEWEST
    ledger.releases.make()
    row, (found, _) = told(ledger)
    assert (row.verdict, found["verdict"], row.records) == ("UNAUDITED", "UNAUDITED", 0)
    assert "before the service was started again" in found["note"]
    assert "taken back later passed" in found["note"]
    ledger.close()


def test_a_trace_after_a_restart_is_told_to_all() -> None:
    trace = Finding("taken back", "FAIL", n=120)
    assert [one.verdict for one in with_lost(trace, 7)] == ["FAIL", "UNAUDITED"]
    assert with_lost(trace, 0) == [trace], "control: nothing is missing"
    assert counted(trace) == "120 records", "not people"


def test_what_a_browser_sent_less_of_is_not_counted_so_few_is_not_said(tmp_path: Path) -> None:
    """Its event has the size of the new part only."""
    ledger = opened(tmp_path)
    people = lenders(ledger, 6)
    keeper = joined(ledger)
    done(ledger, difference(keeper, [], range(ITEMS)))
    ledger.releases.make()
    done(ledger, difference(keeper, range(ITEMS), range(3)))
    ledger = restarted(ledger)
    less(ledger, people[:1], one)
    ledger.releases.make()
    assert RESTARTED in told(ledger)[1][0]["note"]
    ledger.close()


def test_a_release_that_failed_leaves_the_next_one_as_much_to_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    people = lenders(ledger)
    count = less(ledger, people[:30], a_third)

    def failed(*_: Any) -> Any:
        ledger.submit(Lend(people[0], (again,))).result()  # people go on meanwhile
        raise DataError("the release was not made")

    again = int(next(iter(set(likes(0)) - set(ledger.live.of(people[0]).tolist()))))
    with monkeypatch.context() as patch:
        patch.setattr(releasing, "make", failed)
        with pytest.raises(DataError):
            ledger.releases.make()
    count += less(ledger, people[30:31], one)
    ledger.releases.make()
    row, _ = told(ledger)
    assert (row.verdict, row.records) == ("PASS", count - 1), "one was lent again"
    ledger.close()


def lost_to(ledger: Ledger) -> int | None:
    """Return what the next generation does not know any more."""
    begun: list[Any] = []
    begin = ledger.generations._begun

    def noted(job: str, seq: int) -> None:
        begin(job, seq)
        begun.append(ledger.generations._copy[job])

    ledger.generations._begun = noted  # type: ignore[method-assign]
    made(ledger, list(ledger.live.loans))
    ledger.generations._begun = begin  # type: ignore[method-assign]
    return begun[0].lost


def test_a_generation_knows_how_many_records_a_restart_has_lost(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    people = lenders(ledger)
    less(ledger, people[40:41], one)
    assert lost_to(ledger) == 0, "none learnt before it"
    count = less(ledger, people[:30], a_third)
    ledger = restarted(ledger)
    assert lost_to(ledger) == count
    less(ledger, people[30:35], a_third)
    assert lost_to(ledger) == 0, "the last one learnt since the start"
    done(ledger, take_back(people[50], "leave"))
    ledger = restarted(ledger)
    assert lost_to(ledger) == len(likes(50))
    ledger.close()


@pytest.mark.parametrize(
    ("lost", "said"),
    [(0, TOO_FEW), (FEWEST - 1, TOO_FEW), (FEWEST, RESTARTED), (None, RESTARTED)],
)
def test_a_generation_says_why_it_is_not_judged(lost: int | None, said: str) -> None:
    nobody = [np.empty(0, np.int32)]

    def never(*_: Any) -> Any:
        raise AssertionError

    found = audited(never, nobody, nobody, ITEMS, 0, never, lost)  # type: ignore[arg-type]
    assert (found.verdict, found.n) == ("UNAUDITED", 0)
    assert said in found.note
