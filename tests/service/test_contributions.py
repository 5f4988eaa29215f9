"""A browser sends what it keeps: who may, how much, how often, and what is told."""

from __future__ import annotations

import hmac
import logging
from typing import Any

import pytest

from doors import House, opened
from rescind.methods.additive._live_sum import weight_of
from rescind.proof.changes import statement

PATH, DEVICE = "/v1/me/contribution", "5" * 32


def difference(old: list[str], new: list[str], **more: Any) -> dict[str, Any]:
    """Return the body that an honest browser sends."""
    parts = {"minus": old, "plus": new}
    sent = {
        name: {"items": items, "weight": weight_of(len(items))} for name, items in parts.items()
    }
    return {"device": DEVICE, **sent, **more}


def test_what_stays_is_counted_and_acknowledged_and_can_be_read(house: House) -> None:
    person = house.person()
    assert person.get(PATH).json() == {"items": [], "device": None}
    before = house.ledger.live.digest()
    answer = person.post(PATH, difference([], ["item-4", "item-2"]))
    assert answer.status_code == 201, answer.text
    told = answer.json()["acknowledgement"]
    said = statement("contribute", ["item-2", "item-4"], house.clock().isoformat(), told["seq"])
    assert told["entry"] == "01" + hmac.digest(bytes.fromhex(told["opening"]), said, "sha256").hex()
    assert person.get(PATH).json() == {"items": ["item-2", "item-4"], "device": DEVICE}
    assert person.get("/v1/me").json()["kept"] == 2
    assert person.get("/v1/me/loans").json()["total"] == 0
    exported = person.get("/v1/me/export").json()["contribution"]
    assert [one["id"] for one in exported] == ["item-2", "item-4"]
    assert house.ledger.live.digest() != before

    back = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-2", "item-4"]})
    assert (back.status_code, back.json()["n"]) == (202, 2)
    assert house.ledger.live.digest() == before
    assert person.get(PATH).json() == {"items": [], "device": None}
    house.ledger.releases.make()
    status = person.get(f"/v1/me/requests/{back.json()['request_id']}").json()
    assert (status["status"], status["level"], status["receipt"]) == ("fulfilled", "L3", True)


def weighing(weight: float) -> dict[str, Any]:
    """Return a difference of one item that claims another weight than 4096."""
    return difference([], ["item-1"], plus={"items": ["item-1"], "weight": weight})


REFUSED = {
    "too heavy": (422, "plus has the weight", weighing(4095)),
    "below nothing": (422, "plus.weight", weighing(-1)),
    "too many": (422, "plus.items", difference([], [f"item-{n}" for n in range(5_001)])),
    "stale": (412, "holds 0", difference(["item-9"], ["item-1"])),
    "lent": (409, "this item is lent", difference([], ["item-3"])),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_one_person_cannot_have_is_refused_in_words(house: House, why: str, caplog) -> None:
    person = house.person((3,))
    before = house.ledger.live.digest()
    status, words, body = REFUSED[why]
    with caplog.at_level(logging.DEBUG):
        answer = person.post(PATH, body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in answer.json()["detail"]
    assert answer.json()["next"]
    assert house.ledger.live.digest() == before
    assert "item-" not in caplog.text
    assert person.post(PATH, difference([], ["item-1"])).status_code == 201  # the control


def test_differences_are_limited_and_erasing_is_not(tmp_path) -> None:
    with opened(tmp_path / "state", limits=True) as house:
        person = house.person()
        answers = [person.post(PATH, difference([], [f"item-{n}"])) for n in range(31)]
        assert {one.status_code for one in answers[1:30]} == {412}
        assert answers[30].status_code == 429
        assert int(answers[30].headers["Retry-After"]) > 0
        back = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-0"]})
        assert back.status_code == 202
