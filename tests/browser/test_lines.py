"""A person finds the own line in the roster; a browser is not shown another one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from browsing import Town, Visitor
from rescind.proof.log_folder import LINE, REVOKED, ROSTER
from rescind.proof.roster import own_line
from rescind.proof.tlog import Tree, leaf_hash
from rescind.service.chores import make_roster
from rescind.service.static_files import static

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser
FLIP = {
    "an entry of the log": ("**/log/tile/entries/**", "The entries of the log are not those"),
    "the statement": ("**/log/roster/release.json", "is not the newest one in the log"),
}


def lender(me: Visitor, place: Town) -> Any:
    """Let somebody lend, and make the roster of the release after it."""
    page = me.join()
    me.bring(page, *range(10, 22))
    page.get_by_role("button", name="lend all", exact=True).click()
    expect(page.get_by_text("12 are lent.")).to_be_visible()
    place.release()
    make_roster(place.app.state.service)
    return page


def look(page: Any) -> Any:
    page.get_by_role("button", name="find my line", exact=True).click()
    return page.locator("[data-lines]")


def test_a_person_finds_the_own_line_and_keeps_it(visit, place: Town, tmp_path: Path) -> None:
    me = visit(accept_downloads=True)
    page = lender(me, place)
    found = look(page)
    expect(found).to_have_attribute("data-lines", "true")
    expect(found).to_contain_text("lines that count")
    expect(found).to_contain_text("Not checked here")
    with page.expect_download() as saved:
        page.get_by_role("button", name="my lines ↓", exact=True).click()
    (line,) = json.loads(saved.value.path().read_text(encoding="utf-8"))["lines"]
    assert own_line(line) == line["line"]
    expect(found).to_contain_text(line["line"][:16])
    page.get_by_role("button", name="take back", exact=False).first.click()
    expect(page.get_by_text("11 are lent.")).to_be_visible()
    expect(look(page)).to_have_attribute("data-lines", "null")
    expect(found).to_contain_text("You have no line now")


@pytest.mark.parametrize("what", FLIP)
def test_a_log_or_statement_that_was_changed_is_refused(visit, place: Town, what: str) -> None:
    page = lender(visit(), place)
    expect(look(page)).to_have_attribute("data-lines", "true")  # the control
    address, says = FLIP[what]

    def changed(route: Any) -> None:
        answer = route.fetch()
        data = bytearray(answer.body())
        data[len(data) // 2] ^= 1 if what.startswith("an") else 0
        if what.startswith("the"):
            data = data.replace(b'"weights"', b'"Weights"')
        route.fulfill(response=answer, body=bytes(data))

    page.route(address, changed)
    found = look(page)
    expect(found).to_have_attribute("data-lines", "false")
    expect(found).to_contain_text(says)


def test_roots_and_counted_lines_are_pythons(visit) -> None:
    page = visit().open()
    entries = [bytes([LINE]) + bytes([n]) * 32 for n in range(9)]
    stated = hashlib.sha256(b"stated").digest()
    entries += [bytes([REVOKED]) + bytes([3]) * 32, bytes([ROSTER]) + stated]
    tree, roots = Tree(), []
    for entry in entries:
        tree.append(entry)
        roots.append(tree.root().hex())
    module = f"{static().root}/lines.js"
    given = {"leaves": [leaf_hash(one).hex() for one in entries], "roots": roots}
    body = """async given => {
      const raw = t => Uint8Array.from(t.match(/../g), p => parseInt(p, 16))
      const hex = b => Array.from(b, x => x.toString(16).padStart(2, '0')).join('')
      const { rootOver } = await import('%s')
      const leaves = given.leaves.map(raw)
      return Promise.all(leaves.map(async (_, n) => hex(await rootOver(leaves.slice(0, n + 1)))))
    }"""
    assert page.evaluate(body % module, given) == roots
    body = """async given => {
      const raw = t => Uint8Array.from(t.match(/../g), p => parseInt(p, 16))
      const { counted } = await import('%s')
      try { return counted(given.entries.map(raw), given.stated, given.number, given.mine)[0] }
      catch (error) { return error.message }
    }"""
    given = {"entries": [one.hex() for one in entries], "stated": stated.hex(), "number": 8}
    for mine, number, says in (
        (bytes([2]) * 32, 8, "is entry 3 of the log, one of 8 lines that count"),
        (bytes([3]) * 32, 8, "is not among those that the log counts"),  # revoked
        (bytes([99]) * 32, 8, "is not among those that the log counts"),
        (bytes([2]) * 32, 9, "The log counts 8 lines, and the roster states 9"),
    ):
        asked = {**given, "mine": [mine.hex()], "number": number}
        assert says in page.evaluate(body % module, asked)
