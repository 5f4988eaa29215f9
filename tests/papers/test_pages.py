"""Tables in the documentation are what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescind.errors import ConfigError
from rescind_papers.exhibits import rows
from rescind_papers.figures import about, drawable, stored_note
from rescind_papers.index import Shelf, chosen
from rescind_papers.pages import BLOCK, IMAGES, filled, has_blocks, with_block, write_block

ROOT = Path(__file__).resolve().parents[2]
PAGES = [p for p in sorted(ROOT.glob("docs/**/*.md")) if has_blocks(p.read_text("utf-8"))]
SHELF = Shelf(ROOT / "recipes")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_page_is_what_its_results_say(path):
    text = path.read_text("utf-8")
    assert filled(text, SHELF) == text, "stale; run: python -m rescind_papers.pages --all"


def test_a_number_changed_by_hand_is_noticed():
    text = (ROOT / "docs" / "fedshare.md").read_text("utf-8")
    block = BLOCK.search(text)
    assert block
    changed = text.replace(block[0], block[0].replace("0.8", "0.9"), 1)
    assert changed != text
    assert filled(changed, SHELF) == text


def test_a_page_picks_columns_by_their_titles():
    text = "<!-- table fedshare/table4 of NDCG@20, verdict -->\nold\n<!-- end -->"
    head = filled(text, SHELF).splitlines()[2]
    assert head == "| cell | seeds | NDCG@20 ours | NDCG@20 paper | verdict |"
    with pytest.raises(ConfigError, match="did you mean 'verdict'"):
        filled(text.replace("verdict", "verdikt"), SHELF)


def test_there_are_such_pages():
    found = {p.relative_to(ROOT / "docs").as_posix() for p in PAGES}
    assert found >= {"fedshare.md", "results/fedshare.md", "results/f3crec.md", "results/fedgcv.md"}


def test_every_picture_shows_the_numbers_of_today():
    """A PNG carries a digest of what it shows; pixels may differ between versions, numbers not."""
    folder = ROOT / "docs" / "results" / IMAGES
    wanted = set()
    for one in chosen(SHELF.folder, None):
        found = rows(one, SHELF) if one.figure else []
        for part, name in drawable(one, found).items():
            wanted.add(f"{name}.png")
            said = stored_note(folder / f"{name}.png")
            assert said == about(one, part, found), (
                f"stale: {name}; python -m rescind_papers.pages --all"
            )
    assert {path.name for path in folder.iterdir()} == wanted


def test_what_a_benchmark_printed_replaces_its_block_alone(tmp_path):
    page = "a\n<!-- bench/x.py -->\nold\n<!-- end -->\nb\n<!-- bench/y.py -->\n<!-- end -->\n"
    made = with_block(page, "bench/x.py", "| new |")
    assert made == page.replace("old", "\n| new |\n")
    assert with_block(made, "bench/x.py", "| new |") == made
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    write_block(tmp_path / "page.md", "bench/x.py", "| new |")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == made
    for wrong in ("bench/z.py", "bench"):
        with pytest.raises(ConfigError, match="0 blocks"):
            with_block(page, wrong, "")
