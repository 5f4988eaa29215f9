"""Paths that few take: dropping a file, several people in it, an agent's wish, other keys."""

from __future__ import annotations

import json

import pytest

from rescind.ledger import agency

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser
DROP = """([name, text]) => {
  const carried = new DataTransfer()
  carried.items.add(new File([text], name))
  const box = document.querySelector('[data-drop]')
  const told = { dataTransfer: carried, bubbles: true, cancelable: true }
  const tell = kind => box.dispatchEvent(new DragEvent(kind, told))
  const taken = !tell('dragover')
  const marked = new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => {
    resolve(box.classList.contains('over'))
    tell('drop')
  })))
  return marked.then(over => ({ taken, over }))
}"""
"""Drag a file over the box and drop it there, as a browser tells a page."""
SEVERAL = "userId,movieId,timestamp\nann,film-3,881250949\nann,film-4,1\nbob,film-5,1\n"


def test_a_file_can_be_dropped(visit, place) -> None:
    me = visit()
    page = me.join()
    found = page.evaluate(DROP, ["seen.csv", 'title\n"The Film of 7 (1957)"\nNo such film\n'])
    assert found == {"taken": True, "over": True}  # else a browser would open the file instead
    says = page.get_by_text("1 record was new here.")
    expect(says).to_contain_text("1 line names nothing that this service knows: “No such film”.")
    expect(page.locator(".record .title")).to_have_text("The Film of 7 (1957)")
    expect(page.locator(".add.over")).to_have_count(0)
    page.evaluate(DROP, ["colours.csv", "colour,size\nred,3\n"])
    expect(page.get_by_text("has no column called id or title")).to_be_visible()
    assert place.changes(me.person) == [("join", 0)]  # nothing was sent


def test_a_file_of_several_people_asks_which_one(visit, place) -> None:
    me = visit()
    page = me.join()
    page.evaluate(DROP, ["ratings.csv", SEVERAL])
    who = page.get_by_label("This file has 2 people. Which one are you?")
    expect(who).to_be_visible()
    add = page.get_by_role("button", name="Add these records")
    who.fill("nobody")
    add.click(force=True)
    expect(page.locator(".record")).to_have_count(0)
    who.fill("ann")
    add.click()
    expect(page.get_by_text("2 records were new here.")).to_be_visible()
    expect(page.locator(".record .title")).to_have_text(
        ["The Film of 3 (1953)", "The Film of 4 (1954)"]
    )
    expect(who).to_have_count(0)


@pytest.fixture
def asked(place):
    """Return the id of a request of an agent that waits for somebody's word."""

    def make(kind: str) -> str:
        told = place.ledger.submit(agency.Ask("AGENT_ONE", kind)).result(30).body
        place.ledger.submit(agency.Advance()).result(30)
        return str(told["request_id"])

    return make


def test_an_agents_wish_waits_for_the_persons_word(visit, place, asked) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 1, 2)
    page.get_by_role("button", name="lend all").click()
    expect(page.get_by_text("2 are lent.")).to_be_visible()
    name = asked(agency.LEAVE)
    page.goto(f"{place.origin}/#confirm={name}")
    page.reload()
    box = page.locator(".summary", has_text="An agent asks us to delete everything about you")
    box.get_by_role("button", name="No").click()
    expect(box).to_have_count(0)
    assert page.url == f"{place.origin}/"
    assert me.person in place.people()
    page.goto(f"{place.origin}/#confirm={name}")
    page.reload()
    box.get_by_role("button", name="Yes, delete and leave").click()
    page.get_by_role("heading", name="You have left").wait_for()
    assert me.person not in place.people()
    row = place.ledger.reading.request(name)
    assert (row.status, row.n) == ("in_progress", 2)
    place.release()
    page.goto(page.locator("a.digest").inner_text())
    page.get_by_role("button", name="check it here").click()
    expect(page.locator("[data-checked=true]")).to_contain_text("the 2 records that you took back")


def test_other_keys_than_before_are_shown_in_red(visit, place) -> None:
    me = visit(accept_downloads=True)
    page = me.join()
    expect(page.locator("[data-log=new]")).to_be_visible()
    page.reload()
    expect(page.locator("[data-log=same], [data-log=grown]")).to_be_visible()  # the control
    now = me.context.request.get(f"{place.origin}/v1/keys").json()
    other = {**now, "receipts": "ed25519:" + "7" * 64}
    page.route("**/v1/keys", lambda route: route.fulfill(json=other))
    page.reload()
    alarm = page.locator("[data-log=keys]")
    expect(alarm).to_contain_text("The keys were changed")
    assert alarm.evaluate("e => getComputedStyle(e).borderTopColor") == "rgb(198, 40, 40)"
    with page.expect_download() as saved:
        alarm.get_by_role("button", name="save the evidence ↓").click()
    proof = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert (proof["pinned"]["receipts"], proof["now"]["receipts"]) == (
        now["receipts"],
        other["receipts"],
    )


def test_a_browser_that_cannot_check_signatures_says_so(visit, place) -> None:
    me = visit()
    me.context.add_init_script(
        """const own = SubtleCrypto.prototype.importKey
        SubtleCrypto.prototype.importKey = function (form, key, kind, ...rest) {
          if (kind === 'Ed25519') return Promise.reject(new DOMException('', 'NotSupportedError'))
          return own.call(this, form, key, kind, ...rest)
        }"""
    )
    page = me.join()
    expect(page.locator("[data-log=unknown]")).to_contain_text("cannot check signatures")
    expect(page.locator("[data-log=fork]")).to_have_count(0)  # it is no alarm
    me.bring(page, 1, 2)
    page.get_by_role("button", name="lend all").click()
    page.get_by_role("button", name="take all back").click()
    page.get_by_role("button", name="Yes, take them back").click()
    expect(page.locator("[data-request] .steps .done")).to_have_count(2)
    place.release()
    page.get_by_role("button", name="check it here").click()
    told = page.locator("[data-checked=null]")
    expect(told).to_contain_text("It was not checked.")
    expect(told).to_contain_text("Ed25519")
    expect(told).to_contain_text("rescind verify")
