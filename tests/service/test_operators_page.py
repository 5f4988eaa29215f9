"""What the operator's page reads: open requests alone, what the caller may do, the last scan."""

from __future__ import annotations

from doors import House
from rescind.service.policy import SCOPES, Role


def test_only_open_requests_are_listed_if_asked(house: House) -> None:
    operator, person = house.operator(), house.person((1, 2, 3))
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})
    operator.post("/v1/operator/releases", {})
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2"]})
    everything = operator.get("/v1/operator/requests").json()["requests"]
    assert sorted(one["status"] for one in everything) == ["fulfilled", "in_progress"]
    waiting = operator.get("/v1/operator/requests?open=true").json()["requests"]
    assert [one["status"] for one in waiting] == ["in_progress"]


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


def test_the_page_itself_holds_nothing(house: House) -> None:
    anonymous, operator = house.caller(), house.operator()
    assert anonymous.get("/operator").text == operator.get("/operator").text
    assert anonymous.get("/v1/operator/overview").status_code == 401
