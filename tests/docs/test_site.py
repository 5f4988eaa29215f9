"""The documentation site: a reference of every public name, pages that fit a phone, no network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import rescind as rs
from rescind import core, methods, models

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"^::: (\S+)", re.M)
USE, EXTEND = "docs/reference.md", "docs/reference-core.md"


def script(name: str) -> ModuleType:
    """Import a script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "papers" / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def missing(pages: list[str], homes: dict[str, str]) -> set[str]:
    """Return the names that no page shows, by themselves or with their whole module."""
    text = "".join((ROOT / page).read_text("utf-8") for page in pages)
    shown = set(SHOWN.findall(text))
    return {name for name, home in homes.items() if not {home, f"{home}.{name}"} & shown}


def test_the_reference_shows_every_public_name():
    assert not missing([USE], rs._HOME)
    assert not missing([USE, EXTEND], core._HOME)
    assert missing([USE], {"Nowhere": "rescind.core"}) == {"Nowhere"}


def test_the_reference_shows_every_method_and_model():
    hooks = script("site_hooks")
    page = hooks.on_page_markdown((ROOT / "docs/reference-methods.md").read_text("utf-8"))
    shown = set(SHOWN.findall(page))
    for found in (methods.all_unlearners(), models.all_models()):
        wanted = {f"{cls.__module__}.{name}" for name, cls in found.items()}
        assert wanted <= shown
    assert hooks.on_page_markdown("nothing to fill") == "nothing to fill"
    assert hooks.on_page_markdown("| 0.2 ± 0.1 |") == "| 0.2\u00a0±\u00a00.1 |", "on one line"


def test_the_reference_shows_every_command_and_option():
    hooks = script("site_hooks")
    page = (ROOT / "docs/reference-cli.md").read_text("utf-8")
    for command in ("rescind forget", "rescind data import", "rescind flower run"):
        assert f"## `{command}`" in page
    assert "| `--kind TEXT` |" in page
    for name in hooks.WRITTEN:
        text = (ROOT / "docs" / name).read_text("utf-8")
        made = hooks.written(name, text)
        assert made == text, f"docs/{name} is old: python papers/scripts/site_hooks.py"
        assert hooks.written(name, text.replace("`owner`", "`other`")) == made, "the control"
    fields = (ROOT / "docs/reference-fields.md").read_text("utf-8")
    assert re.search(r"## Lot\n[^#]*\| `count` \| [^\n]*\[C\]", fields), "a property is shown, too"
    assert re.search(r"## Work\n.*\| `rows` \| [^\n]*\[R, d\]", fields, re.S)


def test_pages_name_nothing_on_the_network():
    """Pages are read without a network; a script or style from elsewhere would not come."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in text
    looks = [p.read_text("utf-8") for p in (ROOT / "docs" / "look").iterdir()]
    assert not [found for one in (text, *looks) for found in re.findall(r"https?://\S+", one)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="builds the pages; in the extra docs")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder]
    # A proxy that nobody answers: whoever asks the network fails.
    alone = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
    quiet = {**os.environ, **alone, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_pages_are_built_without_a_warning_and_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)")
    assert not {u for page in pages for u in loaded.findall(page.read_text("utf-8"))}
    reference = (site / "reference.html").read_text("utf-8")
    assert ">int</span>" in reference, "signatures have types"


@pytest.mark.slow
def test_every_page_fits_a_phone_and_a_desk(site, tmp_path):
    pytest.importorskip("playwright", reason="opens pages; in the extra browser")
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("there is no Chromium")
    widths = script("page_widths")
    wide = [str(one) for one in widths.measured(site, widths.WIDTHS) if not one.fits]
    assert not wide
    (tmp_path / "bad.html").write_text("<main><p style='width: 900px'>x</p></main>")
    scrolls = "<main><div style='overflow-x: auto'><p style='width: 900px'>x</p></div></main>"
    (tmp_path / "good.html").write_text(scrolls)
    bad, good = widths.measured(tmp_path, [375])
    assert (bad.fits, good.fits) == (False, True)


def test_no_table_is_a_box_that_hides_its_last_rows():
    limited = re.compile(r"scrollwrap[^}]*(max-height|overflow: auto)")
    assert limited.search(".md-typeset__scrollwrap { overflow: auto; max-height: 85vh }"), "control"
    css = (ROOT / "docs" / "look" / "site.css").read_text("utf-8")
    assert "scrollwrap" in css
    assert not limited.search(css)


@pytest.mark.slow
def test_search_works_on_pages_opened_as_files(site):
    sync = pytest.importorskip("playwright.sync_api", reason="opens pages; in the extra browser")
    with sync.sync_playwright() as play:
        found = shutil.which("chromium") or pytest.skip("there is no Chromium")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto((site / "index.html").as_uri())
        tab.click("input[name=query]")
        tab.keyboard.type("witness")
        tab.wait_for_selector(".md-search-result__item a", timeout=60_000)
        titles = tab.locator(".md-search-result__item h1").all_inner_texts()
        browser.close()
    assert any("prove" in title.lower() for title in titles), titles


@pytest.mark.slow
@pytest.mark.data
def test_the_picture_of_the_first_page_is_what_the_run_says(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))
    picture = script("front_picture")
    told = picture.played()
    drawn = (ROOT / picture.PICTURE).read_text("utf-8")
    assert picture.drawn(told) == drawn, "stale; run: python papers/scripts/front_picture.py"
    assert "NOT VALID" in picture.drawn(replace(told, valid=False)), "it could say so"
