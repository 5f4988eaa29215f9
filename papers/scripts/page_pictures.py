"""Take the three pictures of the people's page that README.md and docs/service.md show.

    python papers/scripts/page_pictures.py [--out docs/images]

Starts `rescind serve --demo ml-100k` in a folder that goes afterwards, signs in with the link that
it prints, and does what a person does: takes one record back, asks why an item is recommended,
and checks the receipt. Windows are as wide as a phone, in light mode. Needs Chromium, playwright
(the extra `browser`) and Pillow, which makes the files small.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

WINDOW = {"width": 375, "height": 812}
LINK = re.compile(r"sign in once, as one of the people: (\S+)")
START, PATIENCE = 600.0, 300_000
"""Seconds until the service is filled, and milliseconds until a page does something."""
COLOURS = 64
LARGEST = 60_000
"""Bytes of a picture: README.md loads three."""


@contextmanager
def served() -> Iterator[str]:
    """Yield the link of a guest of a new service, in which one change makes a release."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        words = ["serve", "--demo", "ml-100k", "--state", f"{folder}/state", "--port", "0"]
        words += ["--people", "1", "--cosign-wait", "0"]
        with said.open("w") as file:
            service = subprocess.Popen(
                [sys.executable, "-m", "rescind.cli", *words], stdout=file, stderr=file
            )
        try:
            yield _link(service, said)
        finally:
            service.terminate()
            service.wait()


def _link(service: subprocess.Popen[bytes], said: Path) -> str:
    until = time.monotonic() + START
    while not (found := LINK.search(said.read_text(encoding="utf-8"))):
        if service.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the service did not start: {said.read_text(encoding='utf-8')}")
        time.sleep(0.2)
    return found.group(1)


def taken(link: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        light: Any = {"viewport": WINDOW, "color_scheme": "light", "locale": "en-GB"}
        page = browser.new_context(**light).new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(link)
        page.locator("[data-made=release]").wait_for()
        page.get_by_role("button", name="Take back").nth(1).click()
        page.locator("[data-status=fulfilled]").wait_for()
        page.reload()  # a page that opens shows no message about what was just done
        page.locator("[data-made=release]").wait_for()
        yield "person-records.png", _from(page, ".tools")
        page.get_by_role("button", name="Why ").nth(1).click()
        yield "person-for-you.png", _from(page, "#for-you")
        page.get_by_role("button", name="check it here").first.click()
        page.locator("[data-checked=true]").wait_for()
        yield "person-taken-back.png", _from(page, "#taken")
        browser.close()


def _from(page: Any, place: str) -> bytes:
    """Return a picture of the window when this is at its top."""
    page.locator(place).evaluate(
        "e => window.scrollTo({top: e.getBoundingClientRect().top + scrollY - 16,"
        " behavior: 'instant'})"
    )
    return page.screenshot()


def smaller(picture: bytes) -> bytes:
    """Return a picture of few colours, as letters on plain ground need no more."""
    from PIL import Image

    made = BytesIO()
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS).save(made, "PNG", optimize=True)
    return made.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Take the pictures, write them, and return the exit code."""
    words = argparse.ArgumentParser("page_pictures.py", description=__doc__)
    words.add_argument("--out", type=Path, default=Path("docs/images"), metavar="FOLDER")
    given = words.parse_args(arguments)
    with served() as link:
        made = {name: smaller(picture) for name, picture in taken(link)}
    large = [name for name, picture in made.items() if len(picture) > LARGEST]
    if large:
        print(f"error: larger than {LARGEST:,} bytes: {', '.join(large)}", file=sys.stderr)
        return 1
    for name, picture in made.items():
        (given.out / name).write_bytes(picture)
        print(f"written: {given.out / name}, {len(picture):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
