"""The glossary has the words that receipts mark and name."""

from __future__ import annotations

import re
from pathlib import Path

from rescind.core.claims import CASE
from rescind.privacy.sealing import BOUND, SEALED, band
from rescind.receipts.receipt import STATEMENTS

ROOT = Path(__file__).parents[2]


def meaning(word: str) -> str:
    """Return what the glossary says of a word; it has one row."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    (found,) = re.findall(rf"^\| {word}[,\w ]* \| (.*) \|$", text, re.M)
    return str(found)


def test_words_that_a_receipt_marks_and_names_are_in_the_glossary() -> None:
    assert f"`{band(42)}`" in meaning("band")
    assert f"(`{SEALED}`)" in meaning("sealed")
    assert f"(`{BOUND}`)" in meaning("bound")
    assert "exactness" in STATEMENTS
    assert "--case" in meaning(CASE)
    for word in ("exactness", "INCONCLUSIVE", "VOID", "POWERLESS", "record", "item"):
        assert meaning(word), "a word that stands alone on a page"
    assert {"SHA-256", "BLAKE2b"} <= {*re.findall(r"[\w-]+", meaning("digest"))}
