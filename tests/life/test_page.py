"""The page of results says what the committed lines say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rescind.life.lines import outcome_digest
from rescind.life.page import PAGE, section, write_page
from rescind.life.summary import of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "recipes" / "life").glob("*.jsonl"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def test_there_are_results_on_the_page() -> None:
    assert FILES
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for path in FILES:
        assert section(path.stem, lines_of(path)) in text, "stale: life_all.py --collect writes it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_lines_say_what_they_measured(path: Path) -> None:
    for line in lines_of(path):
        assert outcome_digest(line["measured"]) == line["outcome"]
        assert json.loads(json.dumps(of(line["measured"]))) == line["summary"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_committed_lines_show_what_they_must(path: Path) -> None:
    for line in lines_of(path):
        summary, verdicts = line["summary"], line["summary"]["never_there"]
        if line["exact"]:
            assert summary["equal"] == summary["steps"], line["row"]
            assert set(verdicts) == {"EQUAL"}
        if line["row"] == "F3CRec, teacher kept":
            assert set(verdicts) == {"EQUAL"}
            assert set(summary["back"]["1"]) == {"BACK"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_in_the_committed_lines_the_controls_fail_in_every_block(path: Path) -> None:
    for line in lines_of(path):
        if line["row"] in ("no-op", "score shift"):
            assert set(line["summary"]["never_there"]) == {"FAIL"}, line["row"]


def test_a_changed_number_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "recipes" / "life").mkdir(parents=True)
    path = tmp_path / "recipes" / "life" / FILES[0].name
    path.write_bytes(FILES[0].read_bytes())
    write_page(tmp_path)
    before = (tmp_path / PAGE).read_text(encoding="utf-8")
    lines = lines_of(path)
    lines[0]["summary"]["new"] += 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_page(tmp_path)
    assert (tmp_path / PAGE).read_text(encoding="utf-8") != before
    assert list((tmp_path / "docs" / "results" / "images").glob("*.svg"))
