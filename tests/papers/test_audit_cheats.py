"""The page about cheats shows what the committed results say, and they say that none passes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines() -> list[str]:
    return (ROOT / "papers" / "audit_cheats.jsonl").read_text(encoding="utf-8").splitlines()


def test_the_page_shows_the_table_of_the_results() -> None:
    spec = importlib.util.spec_from_file_location("cheats_table", ROOT / "papers/audit_cheats.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "results" / "audit-power.md").read_text(encoding="utf-8")
    assert script.table(lines()) in page


def test_no_cheat_passed_and_no_retraining_failed() -> None:
    found = [json.loads(line) for line in lines()]
    retrained = [one["verdict"] for one in found if one["subject"] == "retrain"]
    assert len(retrained) >= 30
    assert set(retrained) <= {"PASS", "INCONCLUSIVE"}
    assert {one["verdict"] for one in found if one["subject"] != "retrain"} == {"FAIL"}
