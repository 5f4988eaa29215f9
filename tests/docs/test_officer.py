"""The officer's page and the glossary agree with what receipts hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rescind.core.claims import ITEMS
from rescind.core.labels import WORN
from rescind.core.records import Erase, Records
from rescind.receipts.receipt import Asked, Done, Receipt, issue
from rescind.receipts.words import ROWS, badges, level_says

ROOT = Path(__file__).parents[2]
DONE = Done({"name": "imported data"}, ROWS, "L1", "", "", "", "", 0, 0, {}, 0.1)


@pytest.fixture
def of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Receipt:
    """The receipt of a deletion of one item that a person had twice."""
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path / "keys"))
    asked = Asked("Erase", 2, 1, Erase(Records.of([0], [1])).digest())
    return issue(asked, DONE, (), (), bound_claims={ITEMS: "1"}).exact


def section(page: str, start: str) -> str:
    """Return a page from a text on, up to the next heading."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return text[text.index(start) :].split("\n## ")[0]


def meaning(word: str) -> str:
    """Return what the glossary says of a word; it has one row."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    (found,) = re.findall(rf"^\| {word}[,\w ]* \| (.*) \|$", text, re.M)
    return str(found)


def test_the_letter_speaks_of_the_second_receipt_as_that_receipt_does(of_rows: Receipt) -> None:
    letter = section("officer", "> Dear")
    second = letter[letter.index("A second receipt") :]
    assert "(level L1), and about no model" in second
    assert "about no model" in level_says(of_rows)
    assert "no model" in badges(of_rows)[1].word, "its page does not alarm"
    assert "leave the line about the imported copy out of the list" in letter


def test_the_page_says_what_stopping_to_lend_leaves() -> None:
    answer = section("officer", "The last is for a person who stops lending")
    assert "the model still learns from them there" in answer
    assert "not lent again" in answer


def test_the_page_has_an_answer_for_somebody_who_is_not_there() -> None:
    answer = section("officer", "**Nobody of that id is there?**")
    for what in (WORN, "rescind data show", "after an earlier request", "Note the date"):
        assert what.replace("\n", " ") in answer.replace("\n", " "), what
    assert "delete the file" in answer
    told = section("officer", "| `receipt.json` says | write there |")
    assert "we hold nothing about you there under this id" in told.replace("\n", " ")


def test_the_page_leads_to_what_is_done_when_somebody_comes_back() -> None:
    told = section("officer", "**Somebody who left comes back?**").split("\n\n")[0]
    assert "rescind data admit" in told
    assert "operate.md#take-in-new-interactions" in told
    assert "**A customer returns.**" in section("operate", "## Take in new interactions")


def test_a_record_is_a_row_and_digests_are_named(of_rows: Receipt) -> None:
    assert "one line of a user's data" in meaning("record")
    assert "an item that a user had twice" in meaning("item")
    assert of_rows.asked.digest.startswith("blake2b:")
    assert {"SHA-256", "BLAKE2b"} <= {*re.findall(r"[\w-]+", meaning("digest"))}


def test_words_that_a_receipt_marks_and_names_are_in_the_glossary() -> None:
    from rescind.core.claims import CASE
    from rescind.privacy.sealing import BOUND, SEALED, band
    from rescind.receipts.receipt import STATEMENTS

    assert f"`{band(42)}`" in meaning("band")
    assert f"(`{SEALED}`)" in meaning("sealed")
    assert f"(`{BOUND}`)" in meaning("bound")
    assert "exactness" in STATEMENTS
    assert "the operator's statement" in meaning("exactness")
    assert "--case" in meaning(CASE)
    for verdict in ("INCONCLUSIVE", "VOID", "POWERLESS"):
        assert meaning(verdict), "a word that stands alone on a page"


def test_the_page_says_whom_to_tell_and_which_article_asks_for_it() -> None:
    assert "Article 17 GDPR" in section("officer", "# For the officer")
    request = section("officer", "## 1. The request")
    assert "rescind export" in request
    assert "Article 19 GDPR" in request
    assert "Article 12(3)" in section("officer", "## 2. The deadline")
    assert "We told those to whom we had given your data" in section("officer", "> Dear")
    assert "(Art. 19)" in section("edpb", "| **3. People are told too little**").split("\n")[0]
