"""Receipts in a browser: no wider than a phone, readable by everybody, whole on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browsing import cut, serious
from rescind.audits.finding import Finding
from rescind.receipts.page import page as receipt_page
from rescind.receipts.receipt import Asked, Done, Kept, issue
from rescind.reporting.html import Page

pytestmark = pytest.mark.browser

PASSED = Finding(
    "Q1 population", "PASS", 0.503, (0.489, 0.517), 0.501, 0.02, {"no-op": 0.64}, n=3300,
    note="One threshold for all records.",
)  # fmt: skip
FAILED = Finding("pairs", "FAIL", 0.6, (0.58, 0.62), 0.5, 0.02, {"no-op": 0.64, "retrain": 0.5})
NONE = Finding("audit", "UNAUDITED", note="No audit was requested.")


@pytest.fixture(params=[PASSED, FAILED, NONE], ids=lambda one: one.verdict)
def receipt(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A receipt as the requester gets it, as a file."""
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))
    done = Done(
        {"name": "FedShare", "a_setting_with_a_long_name": "x" * 90}, "Retrain", "L3", "", "", "",
        f"sha256:{'0' * 64}", 150, 38400, {"others": 798}, 6.2, f"sha256:{'1' * 64}",
    )  # fmt: skip
    kept = [Kept("model", 215_296, "The model itself, trained without the records.")]
    issued = issue(Asked("Erase", 3930, 85, "blake2b:00"), done, kept, [request.param])
    curve = {"before": {"fpr": [0, 0.5, 1], "tpr": [0, 0.7, 1]}}
    drawn = [replace(request.param, curves=curve)]
    path = tmp_path / "receipt.html"
    path.write_text(receipt_page(issued.receipt, drawn, issued.key))
    return path


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def width(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_receipt_fits_a_phone_and_keeps_nobody_out(chrome, receipt, scheme) -> None:
    context = chrome.new_context(viewport={"width": 375, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(receipt.as_uri())
    assert width(page) <= 375
    unfold(page)
    assert width(page) <= 375, "details, too"
    narrow = page.evaluate(
        "[...document.querySelectorAll('td')].filter(c => c.textContent.length > 12 && "
        "c.clientWidth < 60).map(c => c.textContent)"
    )
    assert narrow == [], "columns of a few letters"
    assert serious(page) == []
    context.close()


def test_tables_of_a_receipt_are_stacked_on_a_phone_and_nothing_is_cut(chrome, receipt) -> None:
    page = chrome.new_page(viewport={"width": 375, "height": 800})
    page.goto(receipt.as_uri())
    unfold(page)
    assert cut(page) == []
    before = "getComputedStyle(document.querySelector('.stacked td'), '::before').content"
    assert page.evaluate(before) not in ("none", "normal"), "each cell names its column"
    text = receipt.read_text()
    receipt.write_text(text.replace(' class="stacked"', ""))
    page.goto(receipt.as_uri())
    unfold(page)
    assert "What is kept" in cut(page), "control"
    receipt.write_text(text)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(receipt.as_uri())
    assert page.evaluate(before) in ("none", "normal"), "on a desk it is a table"
    page.close()


def test_a_wide_page_would_be_noticed(chrome, tmp_path) -> None:
    """The control: without the box that scrolls, the same table is wider than a phone."""
    html = Page("t").table([f"column {n}" for n in range(20)], [list(range(20))]).html()
    path = tmp_path / "page.html"
    page = chrome.new_page(viewport={"width": 375, "height": 800})
    for text, fits in ((html, True), (html.replace('class="scroll"', ""), False)):
        path.write_text(text)
        page.goto(path.as_uri())
        assert (width(page) <= 375) is fits
    page.close()


def test_paper_shows_what_is_folded(chrome, receipt) -> None:
    page = chrome.new_page()
    page.goto(receipt.as_uri())
    inside = page.locator("details").last.locator("dl").first
    assert not inside.is_visible()
    page.emulate_media(media="print")
    assert inside.is_visible()
    page.close()
