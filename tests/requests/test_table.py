"""What each request means for people in each state: one table, cell by cell.

A person is unknown, present, emptied (all rows erased), away (left), or back, with new rows or
without. Each cell states the outcome, its code, and what counts of rows that come afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from requesting import CELL, LENDING, ROWS, Shop, elsewhere, items_of
from rescind.core.federation import Federation
from rescind.errors import RescindError
from rescind.home import Ledger, Refused, Request
from rescind.home.request import OUTCOMES
from rescind.receipts.receipt import parse
from rescind.requests import run_holder
from rescind.requests.adding import add_words
from rescind.requests.holders import CannotForget
from rescind.requests.words import in_options

WHO, STRANGER, HELD = "c3", "zz", items_of(3)
NEW = ("p4", "p5", "p6")
"""Rows of somebody who is new, or is let in again."""
LATER = "p7"
"""An item that comes after everything else, with one that they had before."""
NONE: tuple[str, ...] = ()
OLD = ("p9", LATER)
"""Nothing was erased, so both rows that come later count."""


@dataclass(frozen=True)
class Cell:
    """What a request comes to."""

    outcome: str
    code: str
    later: tuple[str, ...]
    """What a run learns of them, when an old and a new row of theirs come afterwards."""


ERASED, ROWS_ONLY, REPEATED, GONE = "ERASED", "ROWS_ONLY", "REPEATED", "ALREADY_GONE"


def refused(code: str, later: tuple[str, ...]) -> Cell:
    return Cell("REFUSED", code, later)


STAYS_IN = tuple(sorted({*HELD, LATER}))
REST = (*HELD[:3], LATER)
"""Of who erased their last two items: one of them comes again, and stays out."""
TABLE = {
    "leave": {
        "unknown": refused("unknown-person", OLD[::-1]),
        "present": Cell(ERASED, "", NONE),
        "emptied": Cell(GONE, "", NONE),
        "away": Cell(REPEATED, "", NONE),
        "away, learnt again": Cell(REPEATED, "", NONE),
        "back": Cell(GONE, "", NONE),
        "back with rows": Cell(ERASED, "", NONE),
        "not learnt": Cell(ROWS_ONLY, "", NONE),
    },
    "erase all": {
        "unknown": refused("unknown-person", OLD[::-1]),
        "present": Cell(ERASED, "", (LATER,)),
        "emptied": Cell(REPEATED, "", (LATER,)),
        "away": Cell(REPEATED, "", NONE),
        "away, learnt again": Cell(REPEATED, "", NONE),
        "back": Cell(GONE, "", (LATER,)),
        "back with rows": Cell(ERASED, "", (LATER,)),
        "not learnt": Cell(ROWS_ONLY, "", OLD[::-1]),
    },
    "erase some": {
        "present": Cell(ERASED, "", REST),
        "emptied": Cell(REPEATED, "", (LATER,)),
        "away": Cell(REPEATED, "", NONE),
        "back": Cell(REPEATED, "", (LATER,)),
        "back with rows": Cell(ERASED, "", (NEW[0], LATER)),
        "not learnt": Cell(ROWS_ONLY, "", (NEW[0], *OLD[::-1])),
    },
    "erase one not held": {
        "unknown": refused("unknown-person", OLD[::-1]),
        "present": refused("not-held", STAYS_IN),
        "emptied": refused("not-held", (LATER,)),
        "away": refused("not-held", NONE),
        "back": refused("not-held", (LATER,)),
        "back with rows": refused("not-held", (*NEW, LATER)),
    },
    "unshare": {
        "unknown": refused("unknown-person", OLD[::-1]),
        "present": Cell(ERASED, "", STAYS_IN),
        "unshared": refused("nothing-lent", STAYS_IN),
        "emptied": refused("nothing-lent", (LATER,)),
        "away": refused("has-left", NONE),
        "back": refused("nothing-lent", (LATER,)),
        "back with rows": Cell(ERASED, "", (*NEW, LATER)),
    },
    "readmit": {
        "unknown": refused("unknown-person", OLD[::-1]),
        "present": refused("has-not-left", STAYS_IN),
        "emptied": refused("has-not-left", (LATER,)),
        "away": Cell("", "", (LATER,)),
        "back": refused("has-not-left", (LATER,)),
        "back with rows": refused("has-not-left", (*NEW, LATER)),
    },
}
CASES = [(kind, state) for kind, row in TABLE.items() for state in row]


def entered(shop: Shop, state: str) -> str:
    """Bring somebody into a state; return whom the request is about."""
    if state == "emptied":
        shop.ask("erase", WHO)
    if state == "unshared":
        shop.ask("unshare", WHO)
    if state.startswith(("away", "back")):
        shop.ask("leave", WHO)
    if state.startswith("back"):
        shop.readmit(WHO)
    if state == "back with rows":
        shop.arrive(WHO, NEW)
    if state in ("back with rows", "away, learnt again"):
        shop.learn()
    if state == "not learnt":
        shop.arrive("n1", NEW)
    return {"unknown": STRANGER, "not learnt": "n1"}.get(state, WHO)


def asked(shop: Shop, kind: str, user: str) -> tuple[str, str, Request | None]:
    """Ask; return the outcome, the code and the request."""
    have = shop.stored(user) or HELD
    if kind == "readmit":
        try:
            shop.readmit(user)
        except RescindError as error:
            return "REFUSED", error.code, None
        return "", "", None
    items = {"erase some": have[-2:], "erase one not held": (have[0], "p8")}.get(kind, ())
    done = shop.ask(kind.split(maxsplit=1)[0], user, items=items)
    return done.outcome, done.code, done


def seen(shop: Shop, user: str) -> tuple[object, ...]:
    """Return everything that a request may change."""
    with Ledger.open() as ledger:
        departures, last = ledger.departures("shop"), ledger.last_receipt("shop")
    return shop.model(), shop.learnt(user), shop.stored(user), departures, last


@pytest.mark.parametrize(("kind", "state"), CASES, ids=[" / ".join(case) for case in CASES])
def test_what_a_request_means(kind: str, state: str, tmp_path: Path) -> None:
    cell, lending = TABLE[kind][state], kind == "unshare"
    shop = Shop.opened(tmp_path / "shop", cell=LENDING if lending else CELL)
    user = entered(shop, state)
    before = seen(shop, user)
    outcome, code, done = asked(shop, kind, user)
    assert (outcome, code) == (cell.outcome, cell.code)
    after = seen(shop, user)
    if outcome in ("REFUSED", REPEATED):
        assert after == before, "it changed something"
    if done is not None:
        assert done.open == (outcome == "REFUSED")
        assert bool(done.receipt) == (outcome in (ERASED, ROWS_ONLY, REPEATED))
        assert bool(done.records) == done.open, "an answer drops the names"
    if outcome in (ERASED, ROWS_ONLY):
        assert after[4] != before[4], "a new receipt"
    if kind in ("leave", "erase all") and outcome not in ("REFUSED",):
        assert (shop.stored(user), shop.learnt(user)) == ((), ())
    if outcome == ERASED:
        shop.learn("fresh")
        assert shop.model() == shop.model("fresh"), "the model is one that never had it"
        assert shop.model() != before[0], "control: it was in there"
    shop.arrive(user, OLD)
    shop.cell = CELL
    shop.learn("later")
    assert shop.learnt(user, "later") == cell.later


def test_every_outcome_has_a_cell() -> None:
    told = {cell.outcome for row in TABLE.values() for cell in row.values()}
    assert told - {""} == {*OUTCOMES} - {"WAITING"}, "no run or table is away; silos may be"


@pytest.mark.parametrize(("kind", "items"), [("leave", ()), ("erase", ()), ("erase", HELD[:2])])
def test_the_model_is_that_of_a_shop_that_never_had_it(
    kind: str, items: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.opened(tmp_path / "shop")
    with_them = shop.model()
    shop.ask(kind, WHO, items=items)
    kept = [(u, i) for u, i in ROWS if u != WHO or (items and i not in items)]
    with elsewhere(monkeypatch, tmp_path / "another home"):
        never = Shop.opened(tmp_path / "never", kept)
        assert shop.model() == never.model() != with_them


def test_all_runs_of_the_data_and_its_table_are_answered_with_one_receipt(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    shop.learn("second")
    done = shop.ask("leave", WHO)
    with Ledger.open() as ledger:
        assert len(ledger._rows("SELECT * FROM receipt")) == 1
    assert [shop.learnt(WHO, name) for name in ("run", "second")] == [(), ()]
    assert shop.model() == shop.model("second")
    assert (shop.stored(WHO), done.outcome) == ((), ERASED)


def test_a_run_that_learnt_again_without_them_does_not_hinder_the_others(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    shop.arrive("n1", NEW)
    shop.learn("second")
    first = shop.model()
    assert shop.ask("leave", "n1").outcome == ERASED
    assert shop.model() == first, "it never had them"
    assert shop.model("second") == first


def test_several_people_together_have_one_receipt_and_apart_two(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    both = shop.ask("erase", "c3", "c4")
    assert both.outcome == ERASED
    apart = [shop.ask("leave", user) for user in ("c5", "c6")]
    assert len({both.receipt, *(one.receipt for one in apart)}) == 3
    assert shop.ask("erase", "c4").receipt == both.receipt, "theirs, too"


def test_of_several_one_who_is_unknown_refuses_all(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    before = seen(shop, WHO)
    assert shop.ask("erase", WHO, STRANGER).code == "unknown-person"
    assert seen(shop, WHO) == before


def test_of_several_one_who_is_gone_hinders_nobody(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    shop.ask("leave", "c4")
    assert shop.ask("erase", "c3", "c4").outcome == ERASED
    assert shop.learnt("c3") == ()


def test_who_leaves_is_answered_alone(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    with pytest.raises(Refused) as wrong:
        shop.add("leave", "c3", "c4")
    assert wrong.value.code == "together"


@pytest.mark.parametrize("case", ["two\nlines", "x" * 251, " "])
def test_a_case_that_no_receipt_can_state_is_refused_before_anything_is_done(
    tmp_path: Path, case: str
) -> None:
    """Found while the receipt is drafted, it would count as a model that cannot forget."""
    shop = Shop.opened(tmp_path / "shop")
    words = replace(in_options("leave", [WHO]), case=case)
    with pytest.raises(RescindError), Ledger.open() as ledger:
        add_words(ledger, "shop", [words])
    assert shop.learnt(WHO) == HELD


def test_the_same_request_while_it_waits_is_the_same(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    first, again = shop.add("leave", WHO), shop.add("leave", WHO)
    assert first.id == again.id
    assert shop.add("erase", WHO).id != first.id, "control: another kind"
    assert shop.answer(first.id).outcome == ERASED
    assert shop.add("leave", WHO).id != first.id, "it is answered"


def test_a_run_that_is_no_more_is_struck_off(tmp_path: Path) -> None:
    import shutil

    shop = Shop.opened(tmp_path / "shop")
    shutil.rmtree(shop.run())
    assert shop.ask("leave", WHO).outcome == ROWS_ONLY
    with Ledger.open() as ledger:
        assert [copy.kind for copy in ledger.copies("shop")] == ["table"]


def test_a_model_that_cannot_forget_is_deleted_and_the_receipt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.opened(tmp_path / "shop")
    shop.learn("other")
    real = run_holder._check_can_forget

    def cannot(fed: Federation) -> None:
        if not (shop.run("other") / "model").is_dir() or seen:
            return real(fed)
        seen.append(fed)
        raise CannotForget("it has no history.")

    seen: list[Federation] = []
    monkeypatch.setattr(run_holder, "_check_can_forget", cannot)
    done = shop.ask("leave", "c7")
    left = [name for name in ("run", "other") if (shop.run(name) / "model").is_dir()]
    assert (done.outcome, len(left)) == ("ERASED", 1)
    assert shop.learnt("c7", left[0]) == ()
    with Ledger.open() as ledger:
        receipt = parse(ledger.receipt(done.receipt)[0])
    assert "deleted models" in {finding.check for finding in receipt.findings}
