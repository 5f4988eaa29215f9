"""Tables in the documentation are what the committed results say."""

from __future__ import annotations

import re
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
    papers = {"fedshare", "f3crec", "fedgcv"}
    for_people = {*papers, "unlearning", "additive"}
    assert found >= {f"results/{name}.md" for name in papers}
    assert found >= {f"{name}.md" for name in for_people}
    assert found >= {f"results/{name}-details.md" for name in for_people}


@pytest.mark.parametrize("name", ["fedshare", "f3crec", "fedgcv", "unlearning", "additive"])
def test_a_page_for_people_has_one_small_table_of_results(name):
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(BLOCK.findall(text)) == 1
    assert max(line.count("|") - 1 for line in rows) <= 7


def test_chosen_columns_without_a_published_number_have_no_paper():
    text = "<!-- table additive/ml-1m cells */Gram of HR@20 -->\nold\n<!-- end -->"
    head = filled(text, SHELF).splitlines()[2]
    assert head == "| cell | seeds | HR@20 |"


def test_popularity_is_a_bound_for_ranking_metrics_alone():
    """How far ranks moved, or what was lost, is not below popularity in any useful sense."""
    for page in sorted(ROOT.glob("docs/**/*.md")):
        head: list[str] = []
        for line in page.read_text("utf-8").splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            head = cells if line.startswith("|") and not head else head
            head = head if line.startswith("|") else []
            marked = [n for n, cell in enumerate(cells) if "(below popularity)" in cell]
            for n in marked if head else ():
                metric = cells[2] if head[2] == "measure" else head[n]
                assert re.search(r"@\d+", metric), f"{page.relative_to(ROOT)}: {metric}"


def test_links_and_pictures_of_pages_lead_somewhere():
    """`mkdocs build --strict` checks the same; it is not installed everywhere."""
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    named = re.findall(r"^ *- (?:[^#\n]*: )?(\S+\.md)$", nav, re.M)
    there = [p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")]
    assert sorted(named) == sorted(there)


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
    drawn = {path.name for path in folder.iterdir()}
    assert {name for name in drawn if not name.startswith("life-")} == wanted


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
