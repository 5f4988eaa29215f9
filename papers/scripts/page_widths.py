"""Open every built page in a browser, and print those that are wider than the window.

    make docs && python papers/scripts/page_widths.py [site] [--pictures FOLDER]

Needs Chromium and playwright (the extra `browser`). Exit code 1 if a page is too wide. A table may
scroll inside itself; the page may not. `--pictures` also writes a picture of each page and width.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTHS = (375, 1280)
PATIENCE = 300_000
"""Milliseconds until a page is given up: a busy machine is slow."""
# What sticks out of the window and has no ancestor that scrolls. The width of the document alone
# would not show what a parent cuts off.
MEASURE = """() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (e) => e && e !== document.body &&
    (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const out = [...document.querySelectorAll("main *")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && box.right > wide + 1 && !scrolls(e);
  });
  return {page: document.documentElement.scrollWidth, window: wide,
          out: [...new Set(out.map((e) => e.tagName.toLowerCase()))]};
}"""


@dataclass(frozen=True)
class Width:
    """One page in a window of one width."""

    page: str
    window: int
    wide: int
    """Pixels that the document needs."""
    out: tuple[str, ...]
    """Tags of elements that stick out."""

    @property
    def fits(self) -> bool:
        return self.wide <= self.window and not self.out

    def __str__(self) -> str:
        return f"{self.page} at {self.window} px: {self.wide} px wide {' '.join(self.out)}"


def measured(site: Path, widths: Sequence[int], pictures: Path | None = None) -> Iterator[Width]:
    """Yield the width of every page below a folder, opened as a file, without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for width in widths:
            tab = browser.new_context(viewport={"width": width, "height": 900}).new_page()
            tab.set_default_timeout(PATIENCE)
            for path in sorted(site.rglob("*.html")):
                tab.goto(path.resolve().as_uri())
                tab.wait_for_timeout(50)  # tables are wrapped by a script of the theme
                name = path.relative_to(site).with_suffix("").as_posix()
                if pictures:
                    tab.screenshot(path=pictures / f"{name.replace('/', '-')}-{width}.png")
                yield _width(name, width, tab.evaluate(MEASURE))
        browser.close()


def _width(name: str, window: int, said: dict[str, Any]) -> Width:
    return Width(name, window, said["page"], tuple(said["out"]))


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    words = argparse.ArgumentParser("page_widths.py", description=__doc__)
    words.add_argument("site", nargs="?", type=Path, default=Path("site"))
    words.add_argument("--pictures", type=Path, metavar="FOLDER")
    given = words.parse_args(arguments)
    if not (given.site / "index.html").is_file():
        print(f"error: there is no {given.site}/index.html. First: make docs", file=sys.stderr)
        return 2
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    every = list(measured(given.site, WIDTHS, given.pictures))
    wide = [one for one in every if not one.fits]
    for one in wide:
        print(one)
    print(f"{len(wide)} of {len(every)} are wider than their window")
    return bool(wide)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
