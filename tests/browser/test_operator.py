"""The operator's page in a browser: every action, counts and times but never titles, 0 errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

import browsing
from browsing import Town, Visitor, cut, serious, town
from fabricated import made
from rescind.audits.finding import Finding
from rescind.ledger import accounts, tables
from rescind.ledger.agency import Extend as ExtendBy
from rescind.ledger.lending import TakeBack
from rescind.ledger.options import Options
from rescind.service import recovery
from rescind.service.callers import new_secret
from rescind.service.events import OPERATORS
from rescind.service.policy import Role
from rescind.service.static_files import static

pytestmark = pytest.mark.browser

LENDERS = 12
WIDE = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 375, "height": 800}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A service that makes no release by itself, so that a test decides."""
    calm = Options(people=50, hours=100_000, neighbours=10, min_count=2)
    monkeypatch.setattr(browsing, "OPTIONS", calm)
    monkeypatch.setattr(recovery, "MEMORY_KIB", 64)
    with town(tmp_path / "state", lenders=LENDERS) as one:
        yield one


def do(place: Town, operation: Any) -> Any:
    return place.ledger.submit(operation).result(30)


def take_back(place: Town, person: bytes, days_ago: float = 0) -> str:
    """Take one record back, some days ago; return the request's id."""
    item = int(place.ledger.live.of(person)[0])
    place.clock.by = -timedelta(days=days_ago)
    answer = do(place, TakeBack(person, "unshare", (item,)))
    place.clock.by = timedelta()
    return str(answer.body["request_id"])


def invited(place: Town, role: str) -> str:
    """Return the path that lets somebody in, once."""
    secret, digest = new_secret()
    until = place.clock() + timedelta(days=2)
    do(place, accounts.MakeToken(digest, "guest", f"{accounts.INVITED}{role}", (), until))
    return f"/operator#invite={secret}"


@pytest.fixture
def enter(visit: Callable[..., Visitor], place: Town) -> Callable[..., tuple[Visitor, Any]]:
    """Return a maker of operators who are signed in: the browser and the page."""

    def make(role: str = Role.OPERATOR, **given: Any) -> tuple[Visitor, Any]:
        me = visit(**{**WIDE, **given})
        me.context.set_default_timeout(60_000)
        page = me.open(invited(place, role))
        me.keys = me.passkey(page)  # type: ignore[attr-defined]
        page.get_by_role("button", name="Make a passkey").click()
        page.get_by_role("heading", name="Requests").wait_for()
        return me, page

    return make


def panel(page: Any, name: str) -> Any:
    """Return a panel by its heading."""
    return page.get_by_role("region", name=name, exact=True)


def figure(page: Any, where: str, name: str) -> Any:
    """Return a number by what it counts."""
    return panel(page, where).locator(".figures li").filter(has_text=name).locator("strong")


def confirm(page: Any, does: str) -> None:
    """Agree in the dialog, and wait until it has closed."""
    page.get_by_role("dialog").get_by_role("button", name=does).click()
    page.get_by_role("dialog").wait_for(state="detached")


def forgive(me: Visitor, status: int) -> None:
    """Take back what Chromium itself writes about an answer that a test provokes."""
    assert me.wrong
    assert all(f"status of {status}" in one for one in me.wrong), me.wrong
    me.wrong.clear()


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def releases(place: Town) -> int:
    with place.ledger.store.reading() as tx:
        return int(tx.scalar(select(func.count()).select_from(tables.release)))


def one_more(place: Town, before: int) -> bool:
    """Whether there is one release more than before; the page is told a moment before the row."""
    end = time.monotonic() + 10
    while releases(place) == before and time.monotonic() < end:
        time.sleep(0.05)
    return releases(place) == before + 1


def test_an_operator_comes_in_goes_out_and_sees_no_titles(enter, place) -> None:
    take_back(place, min(place.people()))
    _, page = enter()
    assert "invite" not in page.url, "an invitation works once, and is not kept in sight"
    assert figure(page, "Health", "people").inner_text() == str(LENDERS)
    assert figure(page, "Requests", "open").inner_text() == "1"
    assert panel(page, "Requests").get_by_text("waiting", exact=True).is_visible()
    for one in page.locator("details").all():
        one.evaluate("element => { element.open = true }")
    words = page.locator("body").inner_text()
    assert not [title for title in place.ledger.catalogue.titles if title in words]
    assert not [one for one in place.people() if one.hex() in words]
    page.reload()
    page.get_by_role("heading", name="Requests").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_text("You have signed out.").wait_for()
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_role("heading", name="Requests").wait_for()


def test_strangers_and_people_get_no_numbers(visit, place) -> None:
    me = visit(**WIDE)
    me.join()
    page = me.open("/operator")
    page.get_by_text("You are signed in as a person.").wait_for()
    assert page.locator(".figures").count() == 0
    stranger = visit(**WIDE).open("/operator")
    stranger.get_by_text("for those who run it").wait_for()
    assert stranger.locator(".figures").count() == 0


def test_release_now_says_how_few_and_happens_once(enter, place) -> None:
    request = take_back(place, min(place.people()))
    _, page = enter()
    before = releases(place)
    panel(page, "Release").get_by_role("button", name="Release now").click()
    dialog = page.get_by_role("dialog")
    assert "1 of 50 people of the last one have other loans now" in dialog.inner_text()
    dialog.get_by_role("button", name="Release now").dblclick()
    dialog.wait_for(state="detached")
    page.get_by_text("A release was made.").wait_for()
    page.get_by_text("Nothing waits.").wait_for()
    assert one_more(place, before)
    assert place.ledger.reading.request(request).status == "fulfilled"
    assert figure(page, "Release", "in service").inner_text() == f"#{before + 1}"


def test_a_deadline_is_extended_with_a_reason(enter, place) -> None:
    request = take_back(place, min(place.people()), days_ago=29)
    before = place.ledger.reading.request(request).expected_by
    _, page = enter()
    assert figure(page, "Requests", "due in 7 days").inner_text() == "1"
    line = page.get_by_role("row").filter(has_text=request[:8]).inner_text()
    assert f"{before.day} {before:%b}" in line, "the day itself, not only how many are left"
    page.get_by_role("button", name=f"Extend request {request[:8]}").click()
    page.get_by_label("Days more").fill("61")
    page.get_by_label("Reason").fill("The archive answers slowly.")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    assert page.get_by_role("dialog").is_visible(), "61 days are more than allowed"
    page.get_by_label("Days more").fill("14")
    confirm(page, "Extend")
    told = page.get_by_text(f"Request {request[:8]} is now due")
    told.wait_for()
    assert "three months" not in told.inner_text()
    row = place.ledger.reading.request(request)
    assert row.expected_by - before == timedelta(days=14)
    assert row.reason == "The archive answers slowly."
    page.get_by_role("button", name=f"Extend request {request[:8]}").click()
    page.get_by_label("Days more").fill("60")
    page.get_by_label("Reason").fill("The archive answers slowly.")
    confirm(page, "Extend")
    page.get_by_text("Careful: that is more than three months after it was received").wait_for()


def test_a_person_reads_why_it_takes_longer_on_the_page_that_is_open(visit, enter, place) -> None:
    me = visit()
    theirs = me.join()
    me.bring(theirs, 10, 11, 12)
    theirs.get_by_role("button", name="lend all", exact=True).click()
    theirs.get_by_text("3 are lent.").wait_for()
    theirs.get_by_role("button", name="take back", exact=False).first.click()
    asked = theirs.locator("[data-request]")
    asked.locator(".steps .done").nth(1).wait_for()
    assert theirs.locator("[data-delay]").count() == 0, "control: nobody has extended it"
    request = str(asked.get_attribute("data-request"))
    _, page = enter()
    page.get_by_role("button", name=f"Extend request {request[:8]}").click()
    page.get_by_label("Days more").fill("21")
    page.get_by_label("Reason").fill("The archive answers slowly.")
    confirm(page, "Extend")
    due = place.ledger.reading.request(request).expected_by
    told = theirs.locator("[data-delay]")
    told.wait_for()
    assert f"at the latest until {due.day} {due:%b}" in told.inner_text()
    assert "The archive answers slowly." in told.inner_text()
    do(place, ExtendBy(request, 7, "Nor does the backup."))
    theirs.reload()
    theirs.get_by_text("Nor does the backup.").wait_for()
    place.release()
    theirs.locator("[data-status=fulfilled]").wait_for()
    assert theirs.locator("[data-delay]").count() == 0, "it is done"


def test_a_generation_is_started_learns_and_is_served(enter, place) -> None:
    place.ledger.generations.nice = 0
    _, page = enter()
    assert panel(page, "Learning").get_by_text("No generation yet").is_visible()
    page.get_by_role("button", name="Start a generation").click()
    page.get_by_label("Recipe").select_option("Softmax")
    page.get_by_label("Rounds").fill("2")
    confirm(page, "Start")
    page.get_by_text("A generation of Softmax has begun.").wait_for()
    serve = panel(page, "Learning").get_by_role("button", name="Serve this generation")
    serve.wait_for(timeout=600_000)  # it trains, and trains again for its audit
    assert page.get_by_role("img", name=re.compile("over 2 rounds")).is_visible()
    serve.click()
    confirm(page, "Serve it")
    page.get_by_text("is served beside the release").wait_for()
    assert place.ledger.generations.served() is not None
    page.get_by_role("button", name="Serve the release alone").click()
    confirm(page, "Serve it")
    page.get_by_text("The release alone is served.").wait_for()
    assert place.ledger.generations.served() is None


def test_audits_show_their_controls(enter, place) -> None:
    judged = Finding(
        "audit", "PASS", 0.51, (0.45, 0.57), 0.5, 0.1, {"no-op": 0.93, "retrain": 0.5}, n=240
    )
    made(place.ledger, list(place.ledger.live.loans), judged)
    _, page = enter()
    row = panel(page, "Audits").get_by_role("row").nth(1).inner_text()
    assert "PASS" in row
    assert "0.51 beside no-op 0.93, retrain 0.50" in row
    assert "240" in row


def test_an_account_is_held(enter, place) -> None:
    person = min(place.people())
    me, page = enter()
    page.get_by_role("button", name="Hold an account").click()
    page.get_by_role("textbox", name="Account").fill("0" * 32)
    page.get_by_label("Reason").fill("Strange loans.")
    page.get_by_role("dialog").get_by_role("button", name="Hold the account").click()
    page.get_by_role("alert").wait_for()
    forgive(me, 404)
    assert len(place.ledger.live.of(person)) > 0
    page.get_by_role("textbox", name="Account").fill(person.hex())
    confirm(page, "Hold the account")
    page.get_by_text("The account is held").wait_for()
    assert len(place.ledger.live.of(person)) == 0


def test_a_scan_is_made_and_remembered(enter, place) -> None:
    _, page = enter()
    assert panel(page, "Store and keys").get_by_text("No scan yet").is_visible()
    page.get_by_role("button", name="Scan now").click()
    page.get_by_text("The scan found 0 records in the clear.").wait_for()
    page.reload()
    page.get_by_text("found them").wait_for()
    assert figure(page, "Store and keys", "last scan").inner_text() == "0 found"


def test_an_officer_reads_and_extends_and_is_offered_nothing_else(enter, place) -> None:
    request = take_back(place, min(place.people()))
    _, page = enter(Role.OFFICER)
    offered = {one.strip() for one in page.get_by_role("button").all_inner_texts()}
    assert offered == {"Sign out", "Extend"}
    page.get_by_role("button", name=f"Extend request {request[:8]}").click()
    page.get_by_label("Reason").fill("Holidays.")
    confirm(page, "Extend")
    page.get_by_text("is now due").wait_for()


def test_an_ended_session_is_told_and_mended(enter, place) -> None:
    me, page = enter()
    until(lambda: place.app.state.service.events.listeners > 0)
    place.clock.by = timedelta(days=40)
    place.app.state.service.events.publish(OPERATORS, "loans", {})  # so the page reads again
    page.get_by_text("Your session has ended.").wait_for()
    forgive(me, 401)
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_role("heading", name="Requests").wait_for()


DAY = 86_400_000
OPEN = {"status": "in_progress", "reason": None, "received_at": "2026-11-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("row", "released", "days", "word"),
    [
        ({}, "2026-10-31", 1, "waiting"),
        ({}, "2026-10-31", 24, "urgent"),
        ({}, "2026-10-31", 30, "late"),
        ({}, "2026-11-02", 3, "stuck"),
        ({"release": 2}, "2026-11-04", 3, "its receipt is being written"),
        ({"reason": "need_user_verification"}, "2026-11-02", 3, "waits for the person"),
        ({"status": "fulfilled"}, "2026-11-02", 40, "fulfilled"),
    ],
)
def test_what_a_request_waits_for(visit, row, released, days, word) -> None:
    page = visit().open("/operator")
    given = {**OPEN, "expected_by": "2026-12-01T00:00:00Z", **row}
    current = released and {"made_at": f"{released}T00:00:00Z"}
    found = page.evaluate(
        f"""async ([row, current, days]) => {{
            const {{ standing }} = await import('/static/{static().digest}/operator_state.js')
            return standing(row, current, Date.parse(row.received_at) + days * {DAY})
        }}""",
        [given, current, days],
    )
    assert found["word"] == word
    assert (found["tone"] == "bad") is (word in {"urgent", "late", "stuck"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_nobody_is_kept_out(enter, place, size, scheme) -> None:
    take_back(place, min(place.people()), days_ago=16)
    made(place.ledger, list(place.ledger.live.loans))
    _, page = enter(**size, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True)
    for one in page.locator("details").all():
        one.evaluate("element => { element.open = true }")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
    page.get_by_role("button", name="Hold an account").click()
    assert serious(page) == []
    page.get_by_role("dialog").evaluate("e => { e.querySelector('label').remove() }")
    assert any("label" in one for one in serious(page)), "the control: a field without a name"


def test_the_keyboard_alone_is_enough(enter, place) -> None:
    _, page = enter()
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    button = panel(page, "Release").get_by_role("button", name="Release now")
    for _ in range(30):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    assert button.evaluate("element => element === document.activeElement")
    assert button.evaluate("e => getComputedStyle(e).outlineStyle") == "solid", "it shows"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.evaluate("element => element.contains(document.activeElement)")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert button.evaluate("element => element === document.activeElement"), "back where it was"
    before = releases(place)
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("A release was made.").wait_for()
    assert one_more(place, before)


def test_tables_are_stacked_on_a_phone_and_nothing_is_cut(enter, place) -> None:
    take_back(place, min(place.people()), days_ago=16)
    controls = {"no-op": 0.93, "retrain": 0.5}
    judged = Finding("audit", "PASS", 0.51, (0.45, 0.57), 0.5, 0.1, controls, n=240)
    made(place.ledger, list(place.ledger.live.loans), judged)
    _, page = enter(**PHONE)
    for one in page.locator("details").all():
        one.evaluate("element => { element.open = true }")
    assert cut(page) == []
    named = "getComputedStyle(document.querySelector('.stacked td'), '::before').content"
    assert page.evaluate(named) == '"request"', "each cell names its column"
    page.evaluate("document.querySelectorAll('.stacked').forEach(e => e.className = '')")
    assert "Open requests" in cut(page), "control"
