"""A person lends, looks, takes back and leaves; each change has one effect."""

from __future__ import annotations

import csv
import hmac
import io
import json

import pytest

from doors import House
from rescind.proof.changes import statement
from rescind.service.limits import PROBES

LOANS = ("item-1", "item-3", "item-5", "item-7", "item-9", "item-11")


def test_lending_is_acknowledged_with_what_opens_the_logs_entry(house: House) -> None:
    person = house.person()
    answer = person.post("/v1/me/loans", {"items": ["item-3", "item-1"]})
    assert answer.status_code == 201, answer.text
    told = answer.json()["acknowledgement"]
    said = statement("lend", ["item-1", "item-3"], house.clock().isoformat(), told["seq"])
    digest = hmac.digest(bytes.fromhex(told["opening"]), said, "sha256")
    assert told["entry"] == "01" + digest.hex()
    assert house.ledger.reading.entries(told["leaf"], 1) == [bytes.fromhex(told["entry"])]
    shown = person.get("/v1/me/loans")
    assert [one["id"] for one in shown.json()["items"]] == ["item-1", "item-3"]
    assert shown.json()["items"][0]["title"] == "Title of 1"
    assert person.get("/v1/me").json()["lent"] == 2


def test_a_repeated_key_gets_the_recorded_answer(house: House) -> None:
    person, key = house.person(), "a" * 16
    first = person.post("/v1/me/loans", {"items": list(LOANS)}, key)
    again = person.post("/v1/me/loans", {"items": list(LOANS)}, key)
    assert "Idempotent-Replay" not in first.headers
    assert again.headers["Idempotent-Replay"] == "true"
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    other = person.post("/v1/me/loans", {"items": ["item-2"]}, key)
    assert other.status_code == 422
    elsewhere = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]}, key)
    assert elsewhere.status_code == 422
    assert person.get("/v1/me").json()["lent"] == len(LOANS)


def test_a_repeated_take_back_says_how_far_it_is(house: House) -> None:
    person, key = house.person((1, 3, 5)), "c" * 16
    wish = {"kind": "erase", "items": ["item-3"]}
    first = person.post("/v1/me/requests", wish, key)
    again = person.post("/v1/me/requests", wish, key)
    assert again.headers["Idempotent-Replay"] == "true"
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.json()["level"] == "L1"
    assert again.json()["steps"].keys() == {"hidden", "erased", "summed"}
    house.ledger.releases.make(house.ledger)
    later = person.post("/v1/me/requests", wish, key).json()
    assert (later["status"], later["level"]) == ("fulfilled", "L3")
    now = person.get(f"/v1/me/requests/{later['request_id']}").json()
    assert later["steps"] == now["steps"]
    assert later["steps"].keys() > again.json()["steps"].keys(), "control: it went on meanwhile"
    for name in ("receipt_key", "link"):
        assert later[name] == first.json()[name]


def test_a_replayed_answer_names_the_records_that_the_request_named(house: House) -> None:
    person, key = house.person((1, 2, 3, 12)), "r" * 20
    wish = {"kind": "erase", "items": ["item-12", "item-2"]}
    for _ in range(2):
        told = person.post("/v1/me/requests", wish, key).json()
        assert told["acknowledgement"]["items"] == ["item-2", "item-12"]
    wish, key = {"kind": "erase", "items": "everything"}, "s" * 20
    first, again = (person.post("/v1/me/requests", wish, key).json() for _ in range(2))
    assert first["acknowledgement"]["items"] == ["item-1", "item-3"]
    assert "items" not in again["acknowledgement"], "the ledger keeps no items"


@pytest.mark.parametrize("key", [None, "short", "x" * 65, "with spaces in it"])
def test_a_change_needs_a_key(house: House, key) -> None:
    answer = house.person().post("/v1/me/loans", {"items": ["item-1"]}, key)
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["detail"]


def test_another_tab_that_was_first_is_noticed(house: House) -> None:
    person = house.person((1, 2, 3))
    tag = person.get("/v1/me/loans").headers["ETag"]
    body, match = {"items": ["item-9"]}, {"If-Match": tag}
    first = person.post("/v1/me/loans", body, headers=match)
    assert first.status_code == 201
    late = person.post("/v1/me/loans", {"items": ["item-10"]}, headers=match)
    assert late.status_code == 412
    assert person.get("/v1/me/loans").headers["ETag"] == first.headers["ETag"] != tag


def test_loans_come_in_pages(house: House) -> None:
    person = house.person(tuple(range(10)))
    seen, cursor = [], None
    while True:
        page = person.get(
            "/v1/me/loans", params={"limit": 4, **({"cursor": cursor} if cursor else {})}
        )
        seen += [one["id"] for one in page.json()["items"]]
        cursor = page.json()["next"]
        if cursor is None:
            break
    assert seen == [f"item-{n}" for n in range(10)]
    assert person.get("/v1/me/loans", params={"cursor": "what"}).status_code == 400


def test_the_catalogue_is_read_once(house: House) -> None:
    first = house.caller().get("/v1/catalogue")
    assert first.json()["total"] == 40
    again = house.caller().get("/v1/catalogue", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_taking_back_what_is_not_lent_names_the_item(house: House) -> None:
    person = house.person((1, 2))
    answer = person.post("/v1/me/requests", {"kind": "erase", "items": ["item-5"]})
    assert answer.status_code == 409
    assert answer.json()["item"] == "item-5"


def test_taking_back_is_done_with_the_answer(house: House) -> None:
    person = house.person((1, 2, 3))
    answer = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2"]})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["status"] == "in_progress"
    assert told["level"] == "L1"
    assert set(told["steps"]) == {"hidden", "erased", "summed"}
    assert "next release" in told["processing_details"]
    assert house.ledger.live.of(person.id).tolist() == [1, 3]
    one = person.get(f"/v1/me/requests/{told['request_id']}").json()
    assert (one["kind"], one["n"], one["receipt"]) == ("unshare", 1, False)
    assert person.get(f"/v1/me/requests/{told['request_id']}/receipt").status_code == 404
    listed = person.get("/v1/me/requests").json()["requests"]
    assert [row["request_id"] for row in listed] == [told["request_id"]]
    assert house.caller().get(told["link"]).json()["status"] == "in_progress"
    assert house.caller().get(told["link"] + "x").status_code == 404


def test_a_person_is_told_why_it_takes_longer_and_until_when(house: House) -> None:
    person, officer = house.person((1, 2, 3)), house.operator("officer")
    told = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2"]}).json()
    one, due = f"/v1/me/requests/{told['request_id']}", told["expected_by"]
    assert person.get(one).json()["delay"] is None
    path = f"/v1/operator/requests/{told['request_id']}/extend"
    assert officer.post(path, {"days": 5, "reason": "many requests"}).status_code == 200
    for later in (person.get(one).json(), house.caller().get(told["link"]).json()):
        assert (later["delay"], later["expected_by"] > due) == ("many requests", True)
    house.release(house.operator(), "a" * 32)
    assert person.get(one).json()["delay"] is None, "it is done"
    late = officer.post(path, {"days": 5, "reason": "again"})
    assert (late.status_code, late.json()["detail"]) == (
        409, "this request is fulfilled: it needs no more time.",
    )  # fmt: skip
    assert "loans" not in late.text, "an officer has none"


def test_a_link_ends_after_60_days(house: House) -> None:
    told = house.person((1,)).post("/v1/me/requests", {"kind": "erase", "items": ["item-1"]}).json()
    house.clock.go(days=61)
    assert house.caller().get(told["link"]).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "leave"},
        {"kind": "erase", "items": "everything"},
        {"kind": "unshare", "items": "everything"},
    ],
)
def test_everything_and_leaving_need_a_fresh_confirmation(house: House, body) -> None:
    person = house.person((1, 2))
    house.clock.go(minutes=6)
    answer = person.post("/v1/me/requests", body)
    assert answer.status_code == 401
    assert answer.json()["type"].endswith("confirm-first")
    assert house.ledger.live.of(person.id).tolist() == [1, 2]
    some = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})
    assert some.status_code == 202


@pytest.mark.parametrize("kind", ["unshare", "erase"])
def test_a_forgotten_field_takes_nothing_back(house: House, kind: str) -> None:
    person = house.person((1, 2))
    for body in ({"kind": kind}, {"kind": kind, "items": None}):
        answer = person.post("/v1/me/requests", body)
        assert answer.status_code == 422
        assert '"items": "everything"' in answer.json()["next"]
    assert house.ledger.live.of(person.id).tolist() == [1, 2]
    # The control: said in full, it is done.
    said = person.post("/v1/me/requests", {"kind": kind, "items": "everything"})
    assert (said.status_code, said.json()["n"]) == (202, 2)


def test_after_leaving_the_link_is_all_that_is_left(house: House) -> None:
    person = house.person((1, 2, 3))
    told = person.post("/v1/me/requests", {"kind": "leave"}).json()
    assert person.get("/v1/me").status_code == 401
    assert house.caller().get(told["link"]).json()["kind"] == "leave"
    assert house.ledger.live.people == 0


def test_an_export_holds_everything(house: House) -> None:
    person = house.person((1, 2))
    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-1"]})
    found = person.get("/v1/me/export").json()
    assert [one["id"] for one in found["loans"]] == ["item-2"]
    assert [one["kind"] for one in found["history"]] == ["join", "lend", "unshare"]
    assert len(found["requests"]) == 1
    table = person.get("/v1/me/export", params={"form": "csv"})
    assert table.headers["content-type"].startswith("text/csv")
    assert list(csv.DictReader(io.StringIO(table.text))) == found["loans"]


def test_no_title_runs_as_a_formula_in_a_spreadsheet(house: House) -> None:
    names = house.ledger.catalogue
    names.titles = ("=cmd|'/c calc'!A1", "@SUM(1)", "+1", "-1", *names.titles[4:])
    person = house.person((0, 1, 2, 3, 4))
    exact = [one["title"] for one in person.get("/v1/me/export").json()["loans"]]
    assert exact == list(names.titles[:5]), "control: as it was before"
    table = person.get("/v1/me/export", params={"form": "csv"}).text
    shown = [one["title"] for one in csv.DictReader(io.StringIO(table))]
    assert shown == [f"'{one}" for one in exact[:4]] + exact[4:]


def test_whoever_tries_many_sets_of_loans_gets_the_last_list(house: House) -> None:
    person = house.person((0, 1, 2, 3, 4, 5))
    for n in range(6, 6 + PROBES - 1):
        assert person.get("/v1/me/recommendations").json()["limited"] is False
        person.post("/v1/me/loans", {"items": [f"item-{n}"]})
    last = person.get("/v1/me/recommendations").json()
    assert last["limited"] is False
    person.post("/v1/me/loans", {"items": ["item-39"]})
    probe = person.get("/v1/me/recommendations").json()
    assert probe["limited"] is True
    assert probe["items"] == last["items"]
    taken = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-5"]})
    assert taken.status_code == 202
    after = person.get("/v1/me/recommendations").json()
    assert after["limited"] is True
    assert "item-5" not in json.dumps([one["because"] for one in after["items"]])


def test_a_quarantined_account_is_out_of_the_sum(house: House) -> None:
    person, operator = house.person((1, 2, 3)), house.operator()
    path = f"/v1/operator/people/{person.id.hex()}/quarantine"
    assert operator.post(path, {"reason": "cheats"}).json() == {"state": "quarantined", "n": 3}
    assert house.ledger.live.people == 0
    assert person.post("/v1/me/loans", {"items": ["item-1"]}).status_code == 409
    assert person.post("/v1/me/requests", {"kind": "leave"}).status_code == 202


def test_few_loans_get_what_is_popular(house: House) -> None:
    found = house.person((1, 2)).get("/v1/me/recommendations?k=3").json()
    assert found["kind"] == "popular"
    assert len(found["items"]) <= 3
    assert not {"item-1", "item-2"} & {one["id"] for one in found["items"]}
