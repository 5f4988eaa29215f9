"""Pages for people: one file, readable in light and dark, and nothing wider than a phone."""

from __future__ import annotations

import re

import pytest

from rescind.reporting.html import LOOK, TONES, Badge, Page, look


def tokens(block: str) -> dict[str, str]:
    """Return the colours that a block of the stylesheet sets."""
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", look(), re.DOTALL)[:2]
    return {"light": tokens(light), "dark": tokens(dark)}


def contrast(one: str, two: str) -> float:
    """Return the contrast of two colours (WCAG 2.2)."""
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_colour_can_be_read_on_every_ground(theme):
    given = themes()[theme]
    for text in ("text", "quiet", "accent", "good", "bad", "open"):
        for ground in ("ground", "surface", "sunken"):
            assert contrast(given[text], given[ground]) >= 4.5, (text, ground)
    for tone in set(TONES.values()):
        assert contrast(given[tone], given[f"{tone}-ground"]) >= 4.5, tone
    assert contrast(given["on-accent"], given["accent"]) >= 4.5
    assert contrast(given["edge"], given["surface"]) >= 3, "outlines of controls"


def test_dark_sets_every_colour_that_light_sets():
    assert themes()["light"].keys() == themes()["dark"].keys()


def test_the_stylesheet_asks_nobody_and_knows_paper_and_dark():
    css = LOOK.read_text(encoding="utf-8")
    assert not any(word in css for word in ("url(", "@import", "@font-face", "http"))
    for rule in (
        "prefers-color-scheme: dark",
        "@media print",
        "max-width: 36rem",
        ":focus-visible",
    ):
        assert rule in css, rule


def test_a_table_scrolls_in_a_box_that_the_keyboard_reaches():
    html = Page("t").table(["a", "b"], [[1, "x"]], "What is kept").html()
    assert (
        '<div class="scroll" tabindex="0" role="region" aria-label="What is kept"><table>' in html
    )
    assert '<th scope="col" class="number">a</th><th scope="col">b</th>' in html


def test_cells_of_a_stacked_table_name_their_columns():
    badge = Badge.of("PASS")
    rows = [["x", 3, badge, "y" * 50]]
    html = Page("t").table(["<a>", "b", "c", "d"], rows, stacked=True).html()
    assert '<table class="stacked">' in html
    assert '<td data-name="&lt;a&gt;">x</td><td class="number" data-name="b">3</td>' in html
    assert f'<td data-name="c">{badge.html}</td><td class="sentence" data-name="d">y' in html
    plain = Page("t").table(["<a>", "b", "c", "d"], rows).html()
    assert "data-name=" not in plain.replace(look(), ""), "control: not asked for"


def test_folded_parts_close():
    page = Page("t")
    with page.folded("More", "3 things"):
        page.text("inside")
    page.text("outside")
    html = page.html()
    assert html.index("<details>") < html.index("<p>inside") < html.index("</details>")
    assert html.index("</details>") < html.index("<p>outside")


def test_backticks_are_code_and_markup_is_text():
    html = Page("<t>").text("run `a <b>` now").listing(["`c`"]).facts({"<n>": "`d`"}).html()
    assert "run <code>a &lt;b&gt;</code> now" in html
    assert "<li><code>c</code></li>" in html
    assert "<dt>&lt;n&gt;</dt><dd>`d`</dd>" in html, "values are shown as they are"
    assert "<title>&lt;t&gt;</title>" in html


def test_a_badge_says_its_verdict_in_words():
    assert Badge.of("FAIL").html == '<span class="badge bad">FAIL</span>'
    assert Badge.of("SHOWN").html == '<span class="badge">not judged</span>'
    assert Page("t").table(["v"], [[Badge.of("PASS")]]).html().count("badge good") == 1
