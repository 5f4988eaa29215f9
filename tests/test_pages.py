"""Tables in the documentation are what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescind.errors import ConfigError
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


def test_a_page_picks_columns_by_their_titles():
    text = "<!-- table fedshare/table4 of NDCG@20, verdict -->\nold\n<!-- end -->"
    head = filled(text, ROOT / "recipes").splitlines()[2]
    assert head == "| cell | seeds | NDCG@20 ours | NDCG@20 paper | verdict |"
    with pytest.raises(ConfigError, match="did you mean 'verdict'"):
        filled(text.replace("verdict", "verdikt"), ROOT / "recipes")


def test_there_are_such_pages():
    assert {p.stem for p in PAGES} >= {"fedshare"}
