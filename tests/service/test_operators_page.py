"""What the operator's page reads: open requests alone, what the caller may do, the last scan."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

from doors import House, opened
from rescind.errors import DataError
from rescind.service.policy import SCOPES, Role


def test_only_open_requests_are_listed_if_asked(house: House) -> None:
    operator, person = house.operator(), house.person((1, 2, 3))
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})
    house.release(operator)
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2"]})
    everything = operator.get("/v1/operator/requests").json()["requests"]
    assert sorted(one["status"] for one in everything) == ["fulfilled", "in_progress"]
    waiting = operator.get("/v1/operator/requests?open=true").json()["requests"]
    assert [one["status"] for one in waiting] == ["in_progress"]


def test_a_release_is_asked_for_and_looked_at(house: House, monkeypatch) -> None:
    operator, begin = house.operator(), threading.Event()
    real = house.ledger.releases.make
    assert operator.get("/v1/operator/releases").json()["asked"] is None

    def slowly(ledger) -> object:
        assert begin.wait(60)
        return real(ledger)

    monkeypatch.setattr(house.ledger.releases, "make", slowly)
    answer = operator.post("/v1/operator/releases", {})  # it comes before the release is made
    assert (answer.status_code, answer.json()["look"]) == (202, "/v1/operator/releases")
    assert operator.get("/v1/operator/releases").json()["asked"] == {"state": "making"}
    begin.set()
    house.runner.run(house.service.release_now.settled())
    found = operator.get("/v1/operator/releases").json()
    assert (found["asked"]["state"], found["asked"]["number"]) == ("made", 1)
    assert [one["number"] for one in found["releases"]] == [1]


def test_a_release_that_failed_says_why(house: House, monkeypatch) -> None:
    def fail(_: object) -> None:
        raise DataError("the sum is not that of the loans.")

    monkeypatch.setattr(house.ledger.releases, "make", fail)
    operator = house.operator()
    assert house.release(operator).status_code == 202
    asked = operator.get("/v1/operator/releases").json()["asked"]
    assert (asked["state"], asked["why"]) == ("failed", "the sum is not that of the loans.")


def test_the_overview_says_what_its_reader_may_do(house: House) -> None:
    for role in (Role.OPERATOR, Role.OFFICER):
        may = house.operator(role).get("/v1/operator/overview").json()["may"]
        assert may == sorted(SCOPES[role])
    script = house.script("read").get("/v1/operator/overview").json()
    assert script["may"] == ["read"]


def test_the_last_scan_is_remembered(house: House) -> None:
    house.person((2, 3, 7, 11, 18, 19, 24, 31, 32, 38))
    operator = house.operator()
    assert operator.get("/v1/operator/storage").json()["scan"] is None
    found = operator.post("/v1/operator/scan", {}).json()
    assert found["found"] == 0
    assert found["planted"] > 0
    assert operator.get("/v1/operator/storage").json()["scan"] == found


def test_the_last_scan_outlives_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as house:
        house.person((2, 3, 7, 11, 18, 19, 24, 31, 32, 38))
        found = house.operator().post("/v1/operator/scan", {}).json()
        second = house.operator().post("/v1/operator/scan", {}).json()
        assert second["at"] >= found["at"]
    with opened(tmp_path / "state") as house:
        assert house.operator().get("/v1/operator/storage").json()["scan"] == second


def test_items_in_a_row_are_no_false_alarm_and_records_in_the_clear_are_found(
    house: House,
) -> None:
    """Page numbers of the database look like items 0 to 11; those of the second person do not."""
    house.person(tuple(range(12)))
    operator, mine = house.operator(), (2, 3, 7, 11, 18, 19, 24, 31, 32, 38)
    alone = operator.post("/v1/operator/scan", {}).json()
    assert (alone["looked_for"], alone["found"]) == (0, 0)
    house.person(mine)
    both = operator.post("/v1/operator/scan", {}).json()
    assert (both["looked_for"], both["found"]) == (1, 0)
    (house.ledger.state / "left.npy").write_bytes(struct.pack(f"<{len(mine)}i", *mine))
    assert operator.post("/v1/operator/scan", {}).json()["found"] == 1


def test_the_page_itself_holds_nothing(house: House) -> None:
    anonymous, operator = house.caller(), house.operator()
    assert anonymous.get("/operator").text == operator.get("/operator").text
    assert anonymous.get("/v1/operator/overview").status_code == 401
