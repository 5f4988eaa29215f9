"""Tables in the documentation are what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescind.pages import BLOCK, filled

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p for p in sorted(ROOT.glob("docs/**/*.md")) if BLOCK.search(p.read_text("utf-8"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_a_page_is_what_its_results_say(path):
    text = path.read_text("utf-8")
    assert filled(text, ROOT / "recipes") == text, f"stale: python -m rescind.pages {path.name}"


def test_a_number_changed_by_hand_is_noticed():
    text = (ROOT / "docs" / "fedshare.md").read_text("utf-8")
    block = BLOCK.search(text)
    assert block
    changed = text.replace(block[0], block[0].replace("0.8", "0.9"), 1)
    assert changed != text
    assert filled(changed, ROOT / "recipes") == text


def test_there_are_such_pages():
    assert {p.stem for p in PAGES} >= {"fedshare"}
