"""For everybody: no serious finding of axe, the keyboard alone, 400 % zoom, a phone, 5,000 rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from browsing import Town, Visitor, serious, town
from rescind.ledger.catalogue import Catalogue
from rescind.service import recovery

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser


@pytest.fixture
def settled(visit, place):
    """Return a page with everything on it: records, a list, a request, its check."""

    def make(**given):
        me = visit(**given)
        page = me.join()
        me.bring(page, *range(20, 30))
        page.get_by_role("button", name="lend all").click()
        expect(page.get_by_text("10 are lent.")).to_be_visible()
        page.locator(".switch").first.click()
        expect(page.locator(".steps .done")).to_have_count(2)
        place.release()
        page.get_by_role("button", name="check it here").click()
        expect(page.locator("[data-checked=true]")).to_be_visible()
        page.get_by_role("button", name="Why ").first.click()
        return me, page

    return make


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(settled, visit, colours: str) -> None:
    stranger = visit(color_scheme=colours).open()
    stranger.get_by_role("button", name="I have a passkey").wait_for()
    assert serious(stranger) == []
    _, page = settled(color_scheme=colours)
    assert serious(page) == []
    page.evaluate("() => document.querySelector('#find').removeAttribute('id')")
    assert serious(page) != []  # the control: a field without its label is found
    page.get_by_role("button", name="leave", exact=True).click()
    assert serious(page) == []


@pytest.mark.parametrize(("width", "height"), [(375, 812), (320, 256), (1280, 900)])
def test_nothing_is_cut_off(settled, width: int, height: int) -> None:
    """375: a phone. 320 x 256: a screen of 1280 x 1024 at 400 %."""
    _, page = settled(viewport={"width": width, "height": height})
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    for name in ("lend all", "take all back"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    sizes = [
        page.get_by_role("button", name=n).bounding_box() for n in ("lend all", "take all back")
    ]
    assert sizes[0]["width"] == pytest.approx(sizes[1]["width"], abs=1)
    assert sizes[0]["height"] == sizes[1]["height"]
    steps = [one.bounding_box() for one in page.locator(".steps li").all()]
    apart = [below["y"] - above["y"] - above["height"] for above, below in pairwise(steps)]
    assert len(steps) == 3
    assert all(0 <= gap <= 12 for gap in apart), apart  # under each other, and close
    words = [one.bounding_box()["width"] for one in page.locator(".steps li > .quiet").all()]
    assert min(words) >= 100  # not a letter a line


NAME_OF_FOCUS = """() => {
  const it = document.activeElement
  return (it.getAttribute('aria-label') || it.labels?.[0]?.innerText || it.innerText || '').trim()
}"""


def focus_on(page, name: str, most: int = 80) -> None:
    """Press Tab until something of this name has the focus; it must be visible there."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(NAME_OF_FOCUS) == name:
            seen = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert seen != "none", f"{name} does not show that it has the focus"
            return
    raise AssertionError(f"the keyboard does not reach {name}")


def test_the_keyboard_alone_is_enough(visit, place) -> None:
    me = visit()
    page = me.open()
    before = place.people()
    me.passkey(page)
    page.get_by_role("button", name="I have a passkey").wait_for()
    focus_on(page, "Start with a new passkey")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Keep these codes").wait_for()
    focus_on(page, "I have kept them")
    page.keyboard.press("Enter")
    page.get_by_label("Or pick titles").wait_for()
    (person,) = place.people() - before
    focus_on(page, "Or pick titles")
    page.keyboard.type("film of 9")
    focus_on(page, "+ The Film of 9 (1959)")
    page.keyboard.press("Enter")
    page.get_by_text("1 record is on this device.").wait_for()
    focus_on(page, "Lend The Film of 9 (1959)")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    assert place.lent(person) == {"film-9"}
    expect(page.get_by_role("button", name="Take back The Film of 9 (1959)")).to_be_focused()
    page.keyboard.press("Space")
    expect(page.get_by_text("0 are lent.")).to_be_visible()
    assert place.lent(person) == set()


ROWS = 5_000


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Iterator[Town]:
    patch = pytest.MonkeyPatch()
    patch.setattr(recovery, "MEMORY_KIB", 64)
    items = Catalogue([f"b{n}" for n in range(ROWS)], [f"Book number {n}" for n in range(ROWS)])
    with patch.context(), town(tmp_path_factory.mktemp("large") / "state", items, 0) as one:
        yield one


def test_5_000_rows_cost_what_fifty_cost(chrome, large: Town) -> None:
    me = Visitor(large, chrome.new_context(viewport={"width": 1280, "height": 900}))
    page = me.join()
    me.bring(page, *range(ROWS))
    expect(page.get_by_text("5,000 records are on this device.")).to_be_visible(timeout=60_000)
    assert page.locator(".record").count() < 60
    drawn = page.evaluate(
        """async () => {
          const box = document.querySelector('.rows'), counts = []
          for (let n = 0; n <= 40; n++) {
            box.scrollTop = n * box.scrollHeight / 40
            await new Promise(requestAnimationFrame)
            await new Promise(requestAnimationFrame)
            const place = one => one.getBoundingClientRect()
            const { top, bottom } = place(box)
            const rows = [...box.querySelectorAll('.record')].map(place)
            const seen = rows.filter(row => row.bottom > top && row.top < bottom)
            counts.push([rows.length, seen.length])
          }
          return counts
        }"""
    )
    assert max(rows for rows, _ in drawn) < 60  # what is drawn does not grow with what there is
    assert min(seen for _, seen in drawn) >= 8  # and no part of the window is empty
    expect(page.get_by_text("Book number 999", exact=True)).to_be_visible()  # the last by title
    page.get_by_role("button", name="lend all").click()
    expect(page.get_by_text("5,000 are lent.")).to_be_visible(timeout=60_000)
    assert len(large.lent(me.person)) == ROWS
    page.get_by_label("Find").fill("number 4321")
    expect(page.locator(".record")).to_have_count(1)
    me.context.close()
    assert me.wrong == []
