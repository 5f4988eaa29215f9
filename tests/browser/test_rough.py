"""Rough treatment: the page shows what the ledger says, however it is clicked and cut off."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from browsing import MARKUP

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser


def switch(page, what: str, number: int):
    return page.get_by_role("button", name=f"{what} The Film of {number} ({1950 + number})")


def lent_on(page) -> set[str]:
    """Return titles that the page shows as lent, and acknowledged."""
    page.get_by_role("radio", name="lent").check(force=True)
    titles = (
        page.locator(".record", has=page.locator(".is-lent")).locator(".title").all_inner_texts()
    )
    page.get_by_role("radio", name="all").check(force=True)
    return set(titles)


def titles_lent(place, person) -> set[str]:
    names = dict(zip(place.ledger.catalogue.ids, place.ledger.catalogue.titles, strict=True))
    return {names[one] for one in place.lent(person)}


def test_a_double_click_is_one_wish(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 1, 2, 3)
    switch(page, "Lend", 2).dblclick()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    page.wait_for_timeout(500)  # a second change would have come by now
    assert place.changes(me.person) == [("join", 0), ("lend", 1)]
    switch(page, "Take back", 2).dblclick()
    expect(page.get_by_text("0 are lent.")).to_be_visible()
    page.wait_for_timeout(500)
    assert place.changes(me.person) == [("join", 0), ("lend", 1), ("unshare", 1)]


def test_two_clicks_after_each_other_are_two_wishes(visit, place) -> None:
    """The control of the double click: slow clicks both count."""
    me = visit()
    page = me.join()
    me.bring(page, 4)
    switch(page, "Lend", 4).click()
    switch(page, "Take back", 4).click()
    expect(page.get_by_text("0 are lent.")).to_be_visible()
    assert place.changes(me.person) == [("join", 0), ("lend", 1), ("unshare", 1)]


def test_two_tabs_show_the_same(visit, place) -> None:
    me = visit()
    first = me.join()
    me.bring(first, 1, 2, 3)
    second = me.open()
    second.get_by_text("3 records are on this device.").wait_for()
    switch(first, "Lend", 1).click()
    expect(second.get_by_text("1 is lent.")).to_be_visible()
    switch(second, "Lend", 2).click()
    expect(first.get_by_text("2 are lent.")).to_be_visible()
    switch(second, "Take back", 1).click()
    expect(first.get_by_text("1 is lent.")).to_be_visible()
    assert lent_on(first) == lent_on(second) == titles_lent(place, me.person)
    kinds = [kind for kind, _ in place.changes(me.person) if kind != "receipt"]
    assert kinds == ["join", "lend", "lend", "unshare"]  # on a slow machine a release was due


def test_offline_changes_are_kept_and_sent_once(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 1, 2, 3)
    switch(page, "Lend", 3).click()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    me.context.set_offline(True)
    expect(page.get_by_text("You are offline.")).to_be_visible()
    switch(page, "Lend", 1).click()
    switch(page, "Take back", 3).click()
    expect(page.get_by_text("2 changes not sent yet")).to_be_visible()
    assert titles_lent(place, me.person) == {"The Film of 3 (1953)"}
    me.context.set_offline(False)
    expect(page.get_by_text("not sent yet")).to_have_count(0)
    assert titles_lent(place, me.person) == {"The Film of 1 (1951)"} == lent_on(page)
    kinds = [kind for kind, _ in place.changes(me.person) if kind != "receipt"]
    assert kinds == ["join", "lend", "lend", "unshare"]  # on a slow machine a release was due


def test_an_answer_that_is_lost_does_not_double_a_change(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 6)
    keys = []

    def lose(route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:  # it arrives, and nobody hears the answer
            route.fetch()
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route("**/v1/me/loans", lose)
    switch(page, "Lend", 6).click()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    expect(page.get_by_text("not sent yet")).to_have_count(0)
    assert len(keys) >= 2
    assert len(set(keys)) == 1
    assert place.changes(me.person) == [("join", 0), ("lend", 1)]


def test_an_expired_session_asks_to_sign_in_and_sends_what_waits(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 8)
    place.clock.by += timedelta(days=40)
    try:
        switch(page, "Lend", 8).click()
        expect(page.get_by_text("Sign in again: some changes are not sent yet.")).to_be_visible()
        assert place.lent(me.person) == set()
        page.get_by_role("button", name="I have a passkey").click()
        expect(page.get_by_text("1 is lent.")).to_be_visible()
        assert titles_lent(place, me.person) == {"The Film of 8 (1958)"}
    finally:
        place.clock.by -= timedelta(days=40)
        place.app.state.service.callers.read_again()
    assert len(me.wrong) >= 1  # Chromium writes each 401 to the console
    assert all("401" in one for one in me.wrong)
    me.wrong.clear()


def test_markup_in_a_title_is_text(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 59)
    expect(page.locator(".record .title")).to_have_text(MARKUP)
    page.locator(".switch").click()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    assert page.locator("img").count() == 0
    assert page.title() == "My records"


def test_the_policy_stops_script_that_got_in(visit, place) -> None:
    """The control: the console does hear of what the policy refuses."""
    me = visit()
    page = me.join()
    tried = """() => {
      const stopped = []
      const attempts = [
        () => { document.body.innerHTML = '<b>x</b>' },
        () => { document.createElement('b').setAttribute('onclick', 'x()') },
        () => { document.createElement('script').text = 'x()' },
      ]
      for (const one of attempts) { try { one() } catch (error) { stopped.push(error.name) } }
      return stopped
    }"""
    assert page.evaluate(tried) == ["TypeError"] * 3
    assert any("Trusted" in one or "Security Policy" in one for one in me.wrong)
    me.wrong.clear()


def test_a_fork_of_the_log_is_shown_in_red_and_can_be_exported(visit, place) -> None:
    from rescind.proof.notes import Checkpoint, signed

    me = visit(accept_downloads=True)
    page = me.join()
    expect(page.locator("[data-log=new]")).to_be_visible()
    me.bring(page, 1)
    switch(page, "Lend", 1).click()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    page.reload()
    expect(page.locator("[data-log=grown]")).to_contain_text("its past has not changed")
    # A receipt that is checked later, on the same page, may be from a longer log.
    read = re.compile(r"Read (to|yester)day \d\d:\d\d: it may have grown since\.")
    expect(page.locator("[data-log=grown]")).to_contain_text(read)
    log = place.app.state.service.log
    size = len(place.ledger.tree)
    forged = signed(Checkpoint(log.name, size + 5, b"\7" * 32), log._private)

    def forge(route) -> None:
        route.fulfill(status=200, content_type="text/plain; charset=utf-8", body=forged)

    page.route("**/log/checkpoint", forge)
    tile = place.ledger.tree.tile(0, 0, min(size, 256)) + b"\7" * 32 * 5
    page.route("**/log/tile/**", lambda route: route.fulfill(status=200, body=tile))
    page.reload()
    alarm = page.locator("[data-log=fork]")
    expect(alarm).to_contain_text("The log was changed")
    red = alarm.evaluate("e => getComputedStyle(e).borderTopColor")
    assert red == "rgb(198, 40, 40)"
    with page.expect_download() as saved:
        alarm.get_by_role("button", name="save the evidence ↓").click()
    proof = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert proof["shown_now"] == forged
    assert proof["seen_before"] != forged
    page.unroute_all()
    page.reload()
    expect(page.locator("[data-log=fork]")).to_be_visible()  # it is not forgotten


def test_an_older_copy_of_the_log_is_told_and_is_no_alarm(visit, place) -> None:
    me = visit(accept_downloads=True)
    page = me.join()
    expect(page.locator("[data-log=new]")).to_be_visible()
    older = me.context.request.get(f"{place.origin}/log/checkpoint").text()
    me.bring(page, 1)
    switch(page, "Lend", 1).click()
    expect(page.get_by_text("1 is lent.")).to_be_visible()
    page.reload()
    expect(page.locator("[data-log=grown]")).to_be_visible()  # the control: it saw a longer one
    page.route("**/log/checkpoint", lambda route: route.fulfill(status=200, body=older))
    page.reload()
    told = page.locator("[data-log=older]")
    expect(told).to_contain_text("shows nothing about two histories")
    expect(page.get_by_role("alert")).to_have_count(0)
    with page.expect_download() as saved:
        page.get_by_role("button", name="save the evidence ↓").click()
    proof = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert proof["shown_now"] == older != proof["seen_before"]
    page.unroute_all()
    page.reload()
    expect(page.locator("[data-log=same]")).to_contain_text(
        "0 more than when this browser last looked"
    )
