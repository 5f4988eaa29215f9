"""Every departure from a paper is on the page that tells of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rescind_papers.departures import ELSEWHERE, PACKAGE, departures, main, page

TODAY = lru_cache(departures)

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_from_the_marks_of_today():
    made, there = page(TODAY()), (ROOT / "docs" / "departures.md").read_text("utf-8")
    assert there == made, "stale; run: python -m rescind_papers.departures docs/departures.md"


def test_no_mark_is_lost():
    """However the reading works, each line that begins with the mark must be found."""
    marked = 0
    for path in PACKAGE.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            marked += line.strip(' #"').startswith("DEPARTS ")
    assert len(TODAY()) == marked
    assert marked > 5


def test_every_mark_belongs_to_a_paper_and_gives_a_reason():
    for found in TODAY():
        assert found.paper != ELSEWHERE, f"{found.source}: name the paper near the mark"
        assert len(found.text.split()) > 8, f"{found.source}: say what is done instead, and why"


SOURCE = '''
"""A module about One."""
from typing import ClassVar

class One:
    """First.

    DEPARTS Eq. (1): something else, over
    two lines: see (2).

    Not a mark: DEPARTS inside a line.
    """
    paper: ClassVar[str] = "One et al."
    field: int = 3
    """A field.

    DEPARTS section V: another number.
    """

    def verb(self):
        """DEPARTS Eq. (2): at once."""

def helper():
    """Used by One.

    DEPARTS Eq. (3): in a function.
    """

class Two:
    """Nothing known.

    DEPARTS TwoPaper: no paper is named.
    """
'''


def test_marks_are_found_where_they_stand(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "one.py").write_text(SOURCE.replace("about One", "about things"))
    found = departures(tmp_path)
    assert [(d.paper, d.owner, d.place, d.text) for d in found] == [
        ("One et al.", "One", "Eq. (1)", "something else, over two lines: see (2)."),
        ("One et al.", "One.field", "section V", "another number."),
        ("One et al.", "One.verb", "Eq. (2)", "at once."),
        ("One et al.", "helper", "Eq. (3)", "in a function."),
        (ELSEWHERE, "Two", "TwoPaper", "no paper is named."),
    ]
    text = page(found)
    assert text.index("## One et al.") < text.index(f"## {ELSEWHERE}")
    assert "- **Eq. (3):** in a function." in text


def test_the_page_is_written_where_it_is_asked_for(tmp_path, capsys):
    main([str(tmp_path / "page.md")])
    assert "written" in capsys.readouterr().out
    main([])
    assert capsys.readouterr().out == (tmp_path / "page.md").read_text("utf-8")
