"""Whoever took something back checks with `rescind verify` that a receipt is about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from doors import Browser, House
from rescind.cli import app
from rescind.errors import RescindError
from rescind.proof.changes import entry_under, statement

ERASE = {"kind": "erase", "items": ["item-2"]}
LENT = (1, 2, 3, 4, 10, 11, 12, 30)
Answered = dict[str, Any]


class Papers:
    """What a person keeps in a folder: the answer of the service, and later the receipt."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house, self.folder = house, folder
        self.keys = house.caller().get("/v1/keys").json()

    def ask(self, wish: dict[str, Any], person: Browser | None = None) -> Answered:
        answer = (person or self.house.person(LENT)).post("/v1/me/requests", wish)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def receipt(self, told: Answered, name: str = "receipt.json") -> Path:
        """Save the receipt and its proof when the next release is made."""
        found: list[httpx.Response] = []
        if self.house.caller().get(f"{told['link']}/receipt").status_code == 404:
            self.house.ledger.releases.make()
        for paper in ("receipt", "proof"):
            found.append(self.house.caller().get(f"{told['link']}/{paper}"))
            assert found[-1].status_code == 200, found[-1].text
        path = self.folder / name
        path.write_bytes(found[0].content)
        path.with_suffix(".tlog-proof").write_bytes(found[1].content)
        return path

    def save(self, found: Any, name: str = "answer.json") -> Path:
        path = self.folder / name
        path.write_text(found if isinstance(found, str) else json.dumps(found, indent=1))
        return path

    def verify(self, receipt: Path, found: Any, *more: str) -> tuple[int, str]:
        """Verify a receipt with an acknowledgement; return the exit code and what was said."""
        words = [str(receipt), "--key", self.keys["receipts"]]
        words += ["--acknowledgement", str(self.save(found)), *more]
        done = CliRunner().invoke(app, ["verify", *words])
        if isinstance(done.exception, RescindError):
            return 2, str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output


@pytest.fixture
def papers(house: House, tmp_path: Path) -> Papers:
    folder = tmp_path / "papers"
    folder.mkdir()
    return Papers(house, folder)


def saved(told: Answered, items: list[str] | None = None) -> dict[str, Any]:
    """Return what the page's button saves; items: as a page of before did, in its own order."""
    inside = told["acknowledgement"]
    return {**inside, "items": items} if items else {"items": ["of the page"], **inside}


def without_items(told: Answered) -> Answered:
    inside = {name: one for name, one in told["acknowledgement"].items() if name != "items"}
    return {**told, "acknowledgement": inside}


def forged(told: Answered, items: list[str]) -> Answered:
    """Return an answer whose records, opening and entry were all made anew, to fit each other."""
    inside = told["acknowledgement"]
    opening = bytes(32)
    said = statement(inside["kind"], items, inside["time"], inside["seq"])
    new = {"items": items, "opening": opening.hex(), "entry": entry_under(opening, said).hex()}
    return {**told, "acknowledgement": {**inside, **new}}


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        (ERASE, "'item-2'"),
        (
            {"kind": "unshare", "items": ["item-12", "item-2", "item-10", "item-2"]},
            "'item-2', 'item-10', 'item-12'",
        ),
        ({"kind": "leave"}, "'item-1', 'item-2', 'item-3', 'item-4', 'item-10'"),
        ({"kind": "erase", "items": "everything"}, "'item-1', 'item-2'"),
    ],
)
def test_an_answer_of_the_service_shows_that_a_receipt_is_about_these_records(
    papers: Papers, wish: dict[str, Any], named: str
) -> None:
    told = papers.ask(wish)
    code, said = papers.verify(papers.receipt(told), told)
    assert code == 0, said
    assert f"yes  the acknowledgement is about exactly {named}" in said
    assert "yes  the signed receipt is about exactly what the acknowledgement is about" in said
    assert f"has in entry {told['acknowledgement']['leaf'] + 1} of the log" in said
    assert "Numbers are bands" not in said, "the key of the answer opened the exact ones"
    code, said = papers.verify(papers.folder / "receipt.json", forged(told, ["item-1", "item-30"]))
    assert code == 1, "control"
    assert "NO   the signed receipt is not about" in said


def test_somebody_who_lent_nothing_leaves_and_can_check_it(papers: Papers) -> None:
    told = papers.ask({"kind": "leave"}, papers.house.person())
    receipt = papers.receipt(told)
    for found in (told, without_items(told)):
        code, said = papers.verify(receipt, found)
        assert (code, "no record: nothing was lent" in said) == (0, True), said
    code, said = papers.verify(receipt, without_items(told), "--item", "item-1")
    assert (code, "not about exactly these records" in said) == (1, True), "control"


def test_the_file_that_the_page_saves_is_read_with_the_key_of_the_receipt(papers: Papers) -> None:
    own = "5" * 64
    wish = {"kind": "erase", "items": ["item-4", "item-30", "item-3"], "receipt_key": own}
    told = papers.ask(wish)
    receipt, key = papers.receipt(told), papers.folder / "receipt.key"
    key.write_text(own)
    key.chmod(0o600)
    before = saved(told, ["item-30", "item-4", "item-3"])  # the order in which they were chosen
    for found in (saved(told), before, f"\ufeff{json.dumps(before)}", {**told, "items": ["x"]}):
        code, said = papers.verify(receipt, found, "--event-key", str(key))
        assert code == 0, said
        assert "the signed receipt is about exactly" in said
        code, said = papers.verify(receipt, found)
        assert code == 0, said
        assert "note only the number of the entry ties" in said
        assert "the signed receipt is about exactly" not in said
    assert papers.verify(receipt, saved(told, ["item-30", "item-4"]))[0] == 1, "control"


def test_an_answer_that_names_no_records_is_compared_with_those_that_one_gives(
    papers: Papers,
) -> None:
    told = papers.ask({"kind": "leave"})
    receipt, bare = papers.receipt(told), without_items(told)
    names = [word for n in LENT for word in ("--item", f"item-{n}")]
    code, said = papers.verify(receipt, bare, *names)
    assert code == 0, said
    assert "the signed receipt is about exactly" in said
    code, said = papers.verify(receipt, bare)
    assert code == 0, said
    assert "note which records it is about was not checked" in said
    assert "the signed receipt is about exactly" not in said
    code, said = papers.verify(receipt, bare, *names[:-2])
    assert code == 1
    assert "NO   the acknowledgement is not about exactly these records" in said
    code, said = papers.verify(receipt, told, *names[2:], "--item", "item-9")
    assert code == 1, "its own records are not those that somebody expects"
    assert "'item-1', 'item-9' only in one" in said


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("leaf", lambda leaf: leaf + 1, "NO   it is about Erase, index"),
        ("opening", lambda text: text[::-1], "not about exactly these records"),
        ("kind", lambda _: "leave", "it is about Erase, index"),
        ("checkpoint", lambda text: text.replace("\n", "\n1", 1), "checkpoint in the acknowledg"),
    ],
)
def test_a_changed_acknowledgement_does_not_verify(
    papers: Papers, name: str, change: Callable[[Any], Any], why: str
) -> None:
    told = papers.ask(ERASE)
    receipt = papers.receipt(told)
    log = ("--log-key", papers.keys["log"])
    code, said = papers.verify(receipt, told, *log)
    assert code == 0, said
    assert "signed that it had" in said
    told["acknowledgement"][name] = change(told["acknowledgement"][name])
    code, said = papers.verify(receipt, told, *log)
    assert (code, why in said) == (1, True), said


def test_exchanged_receipts_do_not_verify(papers: Papers) -> None:
    told = [papers.ask({"kind": "erase", "items": [f"item-{n}"]}) for n in (2, 3)]
    mine, theirs = (papers.receipt(one, f"{n}.json") for n, one in enumerate(told))
    assert papers.verify(mine, told[0])[0] == papers.verify(theirs, told[1])[0] == 0, "control"
    proof = ("--proof", str(theirs.with_suffix(".tlog-proof")), "--log-key", papers.keys["log"])
    code, said = papers.verify(theirs, told[0], *proof)
    assert (code, "it is about Erase, index" in said) == (1, True), said
    there = {**told[0]["acknowledgement"], "leaf": told[1]["acknowledgement"]["leaf"]}
    code, said = papers.verify(theirs, {**told[0], "acknowledgement": there})
    assert (code, "NO   the signed receipt is not about" in said) == (1, True), said


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("not JSON", "no JSON text"),
        ([1], "no acknowledgement of a service"),
        ({"acknowledgement": {"kind": "lend", "entry": "", "leaf": 1, "opening": ""}}, "'lend'"),
        ({"kind": "erase", "seq": "1", "entry": "", "leaf": 1, "opening": ""}, "`seq`"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_says_what_is_expected(papers: Papers, found: Any, why: str) -> None:
    receipt = papers.receipt(papers.ask(ERASE))
    code, said = papers.verify(receipt, found)
    assert (code, why in said) == (2, True), said
    assert "the whole answer of the service" in said or "the answer to a take-back" in said
