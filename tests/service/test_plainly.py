"""Plain requests take the short way; all others are told the same as on the long way."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from doors import House
from rescind.service import people, plainly

KEY = "0123456789abcdef"
LOANS, REQUESTS, LISTS = "/v1/me/loans", "/v1/me/requests", "/v1/me/recommendations"
JSON = {"content-type": "application/json", "idempotency-key": KEY}
ODD: tuple[tuple[str, str, bytes | None, dict[str, str]], ...] = (
    ("POST", LOANS, b'{"items": []}', JSON),
    ("POST", LOANS, b'{"items": ["nothing like it"]}', JSON),
    ("POST", LOANS, b'{"items": [""]}', JSON),
    ("POST", LOANS, b'{"items": [1]}', JSON),
    ("POST", LOANS, b'{"items": "1"}', JSON),
    ("POST", LOANS, b'{"items": ["1"], "more": 1}', JSON),
    ("POST", LOANS, b'{"items": ["\\ud800"]}', JSON),
    ("POST", LOANS, b'["1"]', JSON),
    ("POST", LOANS, b"{", JSON),
    ("POST", LOANS, b"", JSON),
    ("POST", LOANS, b'{"items": ["1"]}', {"content-type": "application/json"}),
    ("POST", LOANS, b'{"items": ["1"]}', {**JSON, "idempotency-key": "short"}),
    ("POST", LOANS, b'{"items": ["1"]}', {**JSON, "if-match": '"77"'}),
    ("POST", LOANS, b'{"items": ["1"]}', {**JSON, "if-match": "no version"}),
    ("POST", REQUESTS, b"{}", JSON),
    ("POST", REQUESTS, b'{"kind": "unshare"}', JSON),
    ("POST", REQUESTS, b'{"kind": "erase", "items": null}', JSON),
    ("POST", REQUESTS, b'{"kind": "lose", "items": ["1"]}', JSON),
    ("POST", REQUESTS, b'{"kind": ["erase"], "items": ["1"]}', JSON),
    ("POST", REQUESTS, b'{"kind": "erase", "items": "all"}', JSON),
    ("POST", REQUESTS, b'{"kind": "erase", "items": ["39"]}', JSON),
    ("POST", REQUESTS, b'{"kind": "erase", "items": ["1"], "receipt_key": "00"}', JSON),
    ("GET", f"{LISTS}?k=0", None, {}),
    ("GET", f"{LISTS}?k=101", None, {}),
    ("GET", f"{LISTS}?k=twenty", None, {}),
    ("GET", f"{LISTS}?k=%32", None, {}),
)


def names(house: House, text: bytes | None) -> bytes | None:
    """Put ids of the catalogue for the numbers in a body."""
    ids = house.ledger.catalogue.ids
    for n in (1, 39):
        text = text.replace(f'"{n}"'.encode(), f'"{ids[n]}"'.encode()) if text else text
    return text


async def never(*_: Any) -> None:
    """The long way for everything."""


def test_whatever_is_odd_is_told_in_the_same_words(house: House, monkeypatch) -> None:
    short = [answer(house, *case) for case in ODD]
    handlers = (people.lend, people.take_back, people.recommendations)
    ways = [getattr(handler, "plainly") for handler in handlers]  # noqa: B009
    assert all(ways), "the routes have no short way"
    for name in ("lending", "taking_back"):
        monkeypatch.setattr(plainly, name, never)
    monkeypatch.setattr(plainly, "list_length", lambda _: None)
    long = [answer(house, *case) for case in ODD]
    for case, one, other in zip(ODD, short, long, strict=True):
        assert one == other, case
    assert {status for status, _ in short} == {200, 400, 409, 412, 422}


def answer(house: House, method: str, path: str, body: bytes | None, headers: Any) -> Any:
    caller = house.person(tuple(range(8)))
    given = {"content": names(house, body)} if body is not None else {}
    told = caller.call(method, path, headers=headers, **given)
    return told.status_code, told.text


def test_a_plain_request_takes_the_short_way(house: House, monkeypatch) -> None:
    person, ids = house.person(tuple(range(8))), house.ledger.catalogue.ids

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("FastAPI was asked")

    monkeypatch.setattr("fastapi.routing.solve_dependencies", fail)
    assert person.post(LOANS, {"items": [ids[20]]}).status_code == 201
    assert person.post(LOANS, {"items": [ids[20]]}, headers={"If-Match": '"2"'}).status_code == 200
    assert person.post(REQUESTS, {"kind": "unshare", "items": [ids[20]]}).status_code == 202
    assert person.post(REQUESTS, {"kind": "erase", "items": "everything"}).status_code == 202
    assert person.get(f"{LISTS}?k=5").status_code == 200
    assert person.get(LISTS).status_code == 200
    # The control: the long way is noticed.
    assert person.post(LOANS, {"items": []}).status_code == 500


@pytest.mark.parametrize("twice", [True, False])
def test_the_same_key_has_one_effect_on_either_way(house: House, monkeypatch, twice: bool) -> None:
    person, ids = house.person(), house.ledger.catalogue.ids
    first = person.post(LOANS, {"items": [ids[3]]}, key=KEY)
    if not twice:
        monkeypatch.setattr(plainly, "lending", never)
    again = person.post(LOANS, {"items": [ids[3]]}, key=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotent-replay"] == "true"
    assert again.json() == first.json()


def test_lists_are_those_of_the_longer_way(house: House, monkeypatch) -> None:
    """A list from arrays is the list from lines, to the letter."""
    for n in range(12):
        house.person(tuple(range(n, n + 9)))
    house.ledger.releases.make(house.ledger)
    readers = [house.person(tuple(range(first, first + 7))) for first in (0, 9, 20)]
    queries = list(itertools.product(readers, (f"{LISTS}?k=3", LISTS)))
    short = [reader.get(query).text for reader, query in queries]
    monkeypatch.setattr(type(house.ledger.releases), "reasoned", lambda *_: None)
    assert [reader.get(query).text for reader, query in queries] == short
    assert any('"share"' in one for one in short)
