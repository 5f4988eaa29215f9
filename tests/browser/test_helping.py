"""What stays in a browser is counted in the sum only if the person says so, and leaves exactly."""

from __future__ import annotations

import json

import pytest

from rescind.ledger.lending import Lend, TakeBack

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser
MINE = range(30, 36)


def switch(page):
    return page.get_by_role("switch", name="Help the model with what stays here")


def kept(place, person) -> set[str]:
    ids = place.ledger.catalogue.ids
    return {ids[n] for n in place.ledger.reading.kept_part(person).items.tolist()}


def films(*numbers: int) -> set[str]:
    return {f"film-{n}" for n in numbers}


def test_it_is_off_until_somebody_turns_it_on_and_leaves_no_trace(visit, place) -> None:
    me = visit()
    page = me.join()
    before = place.ledger.live.digest()
    sent: list[dict] = []
    page.on("request", lambda one: sent.append(one) if one.method == "POST" else None)
    me.bring(page, *MINE)
    expect(switch(page)).not_to_be_checked()
    expect(page.locator("[data-help=off]")).to_contain_text("leaves this browser")
    expect(page.locator("[data-help=off]")).to_contain_text("can read the list while it is on")
    page.reload()
    expect(switch(page)).not_to_be_checked()
    assert sent == []
    assert kept(place, me.person) == set()

    switch(page).click()
    expect(page.locator("[data-help=on]")).to_contain_text("6 records are counted in the sum")
    expect(switch(page)).to_be_checked()
    assert kept(place, me.person) == films(*MINE)
    assert place.lent(me.person) == set()
    (one,) = sent
    body = json.loads(one.post_data)
    assert body["minus"] == {"items": [], "weight": 0}
    assert (set(body["plus"]["items"]), body["plus"]["weight"]) == (films(*MINE), 1672)
    expect(page.locator(".record .is-helping")).to_have_count(6)
    page.reload()
    expect(switch(page)).to_be_checked()  # the ledger says so

    switch(page).click()
    expect(page.locator("[data-help=off]")).to_be_visible()
    expect(page.locator("[data-request] .steps .done")).to_have_count(2)
    assert kept(place, me.person) == set()
    assert place.ledger.live.digest() == before
    switch(page).click()  # what it stopped counting may be counted again
    expect(page.locator("[data-help=on]")).to_contain_text("6 records")


def test_what_is_added_lent_deleted_or_taken_back_is_followed(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, *MINE)
    switch(page).click()
    expect(page.locator("[data-help=on]")).to_contain_text("6 records")
    me.bring(page, 40)
    expect(page.locator("[data-help=on]")).to_contain_text("7 records")
    assert kept(place, me.person) == films(*MINE, 40)
    page.get_by_role("button", name="Take back The Film of 30 (1980)").click()
    expect(page.locator("[data-help=on]")).to_contain_text("6 records")
    page.get_by_role("button", name="Delete The Film of 31 (1981) from this device").click()
    expect(page.locator("[data-help=on]")).to_contain_text("5 records")
    page.get_by_label("Find").fill("film of 32")
    page.get_by_role("button", name="lend these 1").click()
    expect(page.locator("[data-help=on]")).to_contain_text("4 records")
    assert place.lent(me.person) == films(32)
    assert kept(place, me.person) == films(33, 34, 35, 40)
    page.get_by_label("Find").fill("")
    page.get_by_role("button", name="Take back The Film of 32 (1982)").click()
    expect(page.get_by_text("0 are lent.")).to_be_visible()
    me.bring(page, 41)  # a look at what stays: what was taken back stays out
    expect(page.locator("[data-help=on]")).to_contain_text("5 records")
    assert kept(place, me.person) == films(33, 34, 35, 40, 41)


def test_one_browser_helps_at_a_time(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, *MINE)
    switch(page).click()
    expect(page.locator("[data-help=on]")).to_be_visible()
    cookies = me.context.cookies()
    other = visit()
    other.context.add_cookies(cookies)
    there = other.open()
    elsewhere = there.locator("[data-help=elsewhere]")
    expect(elsewhere).to_contain_text("Another browser of yours helps with 6 records")
    expect(switch(there)).to_be_disabled()
    elsewhere.get_by_role("button", name="take those 6 back").click()
    expect(page.locator("[data-help=off]")).to_be_visible()
    assert kept(place, me.person) == set()


def test_leaving_takes_it_along_and_the_receipt_covers_it(visit, place) -> None:
    me = visit()
    page = me.join()
    before = place.ledger.live.digest()
    me.bring(page, *MINE)
    switch(page).click()
    expect(page.locator("[data-help=on]")).to_be_visible()
    page.get_by_role("button", name="leave", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Everything that we have of you (6 records)")
    page.get_by_role("button", name="Leave, and confirm with my passkey").click()
    page.get_by_role("heading", name="You have left").wait_for()
    assert place.ledger.live.digest() == before
    place.release()
    link = page.locator("a.digest").inner_text()
    page.goto(link)
    page.get_by_role("button", name="check it here").click()
    expect(page.locator("[data-checked=true]")).to_contain_text("the 6 records that you took back")


def test_what_is_lent_and_taken_back_elsewhere_does_not_come_back(visit, place) -> None:
    """The browser that helps is away meanwhile, so it only sees that the sum lost a record."""
    me = visit()
    page = me.join()
    me.bring(page, *MINE)
    switch(page).click()
    expect(page.locator("[data-help=on]")).to_contain_text("6 records")
    page.goto("about:blank")
    place.ledger.submit(Lend(me.person, (30,))).result(30)
    place.ledger.submit(TakeBack(me.person, "unshare", (30,))).result(30)
    page.goto(place.origin)
    expect(page.locator("[data-help=on]")).to_contain_text("5 records")
    me.bring(page, 42)  # a look at what stays
    expect(page.locator("[data-help=on]")).to_contain_text("6 records")
    assert kept(place, me.person) == films(31, 32, 33, 34, 35, 42)
