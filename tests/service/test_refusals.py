"""Refusals: what they say, which headers every answer has, and how often one may call."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from authenticator import Authenticator
from doors import House, opened
from rescind.ledger.errors import Busy, Closing, DiskFull
from rescind.service import limits
from rescind.service.guard import LARGEST_BODY


def test_every_answer_has_the_headers(house: House) -> None:
    for path in ("/", "/healthz", "/nothing", "/v1/me"):
        headers = house.caller().get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_a_body_that_is_no_json_is_refused_also_where_none_is_asked_for(house: House) -> None:
    routes = [
        (route.path.replace("{id}", "x" * 8), method)
        for route in house.app.routes
        if isinstance(route, APIRoute) and route.body_field is None
        for method in (route.methods or set()) - {"GET", "HEAD"}
        if not route.openapi_extra  # it reads signed notes
    ]
    assert ("/v1/operator/releases", "POST") in routes
    told = {}
    for path, method in routes:
        caller = house.operator() if "/operator/" in path else house.person()
        headers = {"Idempotency-Key": secrets.token_hex(16), "Content-Type": "application/json"}
        sent = {"headers": headers, "content": b"{bad"}
        told[f"{method} {path}"] = caller.call(method, path, **sent).json()
    assert {one["status"] for one in told.values()} == {422}, told
    assert {one["detail"] for one in told.values()} == {"body: JSON decode error."}
    for body in (None, {}):
        assert house.operator().post("/v1/operator/releases", body).status_code != 422, "control"


def test_a_problem_says_what_to_do(house: House) -> None:
    answer = house.caller().get("/v1/me")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json()) == {"type", "title", "status", "detail", "next"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"sec-fetch-site": "none"}, 201),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "", "origin": "http://localhost:8000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://localhost:8000"}, 201),
        ({}, 403),
    ],
)
def test_changes_come_from_our_own_pages(house: House, headers, status) -> None:
    person = house.person()
    person.headers = {"sec-fetch-site": ""}

    async def send():
        import httpx

        from rescind.service.callers import COOKIE

        transport = httpx.ASGITransport(house.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as one:
            sent = {"cookie": f"{COOKIE}={person.secret}", "Idempotency-Key": "k" * 16, **headers}
            body = {"items": ["item-1"]}
            return await one.post("/v1/me/loans", json=body, headers=sent)

    assert house.runner.run(send()).status_code == status


def test_another_hosts_name_is_refused(house: House) -> None:
    assert house.caller().get("/healthz", headers={"host": "evil.example"}).status_code == 421
    assert house.caller().get("/healthz", headers={"host": "127.0.0.1:8000"}).status_code == 200


def test_bodies_are_json_and_small(house: House) -> None:
    person = house.person()
    key = {"Idempotency-Key": "k" * 16}
    form = person.call("POST", "/v1/me/loans", data={"items": "x"}, headers=key)
    assert form.status_code == 415
    large = b'{"items": ["' + b"x" * LARGEST_BODY + b'"]}'
    headers = {**key, "content-type": "application/json"}
    assert person.call("POST", "/v1/me/loans", content=large, headers=headers).status_code == 413

    async def parts():
        yield b'{"items": ["item-1"]}'

    answer = person.call("POST", "/v1/me/loans", content=parts(), headers=headers)
    assert answer.status_code == 411
    broken = person.call("POST", "/v1/me/loans", content=b"{", headers=headers)
    assert broken.status_code == 422
    assert person.post("/v1/me/loans", {"items": ["item-1"], "more": 1}).status_code == 422
    assert person.post("/v1/me/loans", {"items": []}).status_code == 422
    assert person.call("PUT", "/v1/me/loans", json={}).status_code == 405


@pytest.mark.parametrize(
    ("error", "status", "wait"), [(DiskFull, 507, True), (Busy, 503, True), (Closing, 503, True)]
)
def test_what_the_ledger_cannot_do_now_is_told(house: House, monkeypatch, error, status, wait):
    async def refuse(*_):
        raise error("no.")

    person = house.person()
    monkeypatch.setattr(house.service, "submit", refuse)
    answer = person.post("/v1/me/loans", {"items": ["item-1"]})
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) is wait


def test_a_failure_is_a_number_that_finds_the_log_line(house: House, monkeypatch, caplog) -> None:
    person = house.person((1, 2, 3))

    def fail(*_):
        raise RuntimeError(f"secret of {person.id.hex()}")

    monkeypatch.setattr(house.ledger.reading, "me", fail)
    with caplog.at_level(logging.ERROR):
        answer = person.get("/v1/me")
    assert answer.status_code == 500
    number = answer.json()["type"].rpartition("-")[2]
    assert number in caplog.text
    assert "test_refusals.py" in caplog.text
    assert "secret" not in answer.text + caplog.text
    assert person.id.hex() not in answer.text + caplog.text


@pytest.fixture
def limited(tmp_path: Path):
    with opened(tmp_path / "state", limits=True) as one:
        one.service.limits.clock = lambda: 0.0  # no window ends because a machine is slow
        yield one


def test_reading_is_limited_by_session(limited: House) -> None:
    person = limited.person((1,))
    answers = [person.get("/v1/me").status_code for _ in range(121)]
    assert answers.count(200) == 120
    assert answers[-1] == 429
    late = person.get("/v1/me")
    assert int(late.headers["retry-after"]) <= 61
    assert limited.person().get("/v1/me").status_code == 200  # another session
    assert limited.caller().get("/healthz").status_code == 200


def test_a_count_ends_and_is_thrown_away(limited: House) -> None:
    counts, person = limited.service.limits, limited.person((1,))
    assert [person.get("/v1/me").status_code for _ in range(121)][-1] == 429
    counts.clock = lambda: 59.0
    assert person.get("/v1/me").headers["retry-after"] == "1"
    counts.clock = lambda: 60.0
    assert person.get("/v1/me").status_code == 200
    kept = len(counts)
    for n in range(5):
        limited.caller(address=f"198.51.100.{n}").get("/v1/catalogue")
    assert len(counts) == kept + 5
    counts.clock = lambda: 240.0
    assert person.get("/v1/me").status_code == 200
    assert len(counts) == 1


def test_a_request_that_the_short_way_leaves_is_counted_once(limited: House) -> None:
    """It is let in before the short way looks at it, and goes on to the described route."""
    person = limited.person((1,))
    odd = [person.get("/v1/me/recommendations?k=0").status_code for _ in range(121)]
    assert odd == [422] * 120 + [429]


def test_signing_in_is_limited_by_address(limited: House) -> None:
    answers = [limited.caller().post("/v1/session/begin", {}, None).status_code for _ in range(11)]
    assert answers == [200] * 10 + [429]
    other = limited.caller(address="198.51.100.7")
    assert other.post("/v1/session/begin", {}, None).status_code == 200


def test_new_accounts_are_limited_by_address(limited: House) -> None:
    body = {"ceremony": "x", "credential": {}}
    answers = [
        limited.caller().post("/v1/account/finish", body, None).status_code for _ in range(6)
    ]
    assert answers == [422] * 5 + [429]


@pytest.mark.parametrize("guarded", [True, False], ids=["", "control: whole addresses"])
def test_addresses_of_one_ipv6_network_make_accounts_as_one(
    limited: House, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(limits, "network_of", str)
    made = []
    for n in range(1, 13):
        limited.service.limits.clock = lambda now=60.0 * n: now  # no more than one in a minute
        stranger = limited.caller(address=f"2001:db8:0:7::{n:x}")
        made.append(stranger.register(Authenticator()).status_code)
    assert made.count(201) == (5 if guarded else 12)
    other = limited.caller(address="2001:db8:0:8::1").register(Authenticator())
    assert other.status_code == 201


@pytest.mark.parametrize("most", [5, 7])
def test_an_office_makes_as_many_accounts_as_are_allowed(tmp_path: Path, most: int) -> None:
    """An account takes two calls and counts once. Seven is what `--accounts-per-hour` says."""
    more = {} if most == 5 else {"accounts": most}
    with opened(tmp_path / "state", limits=True, **more) as house:
        answers = []
        for minute in range(most + 1):  # the limit per minute holds nobody up
            house.service.limits.clock = lambda now=60.0 * minute: now
            answers.append(house.caller().register(Authenticator()).status_code)
        assert answers == [201] * most + [429]
        elsewhere = house.caller(address="198.51.100.7").register(Authenticator())
        assert elsewhere.status_code == 201


def test_a_request_to_erase_is_slowed_and_never_refused(limited: House, monkeypatch) -> None:
    monkeypatch.setitem(limits.RATES, "erase", limits.Rate(2, 60))
    slowed = []

    async def sleep(seconds):
        slowed.append(seconds)

    limited.service.limits.sleep = sleep
    person = limited.person((1, 2, 3, 4))
    for n in range(1, 5):
        answer = person.post("/v1/me/requests", {"kind": "erase", "items": [f"item-{n}"]})
        assert answer.status_code == 202
    assert slowed == [1.0, 1.0]


def test_behind_a_proxy_measures_need_their_scope(tmp_path) -> None:
    with opened(tmp_path / "state", behind_proxy=True) as house:
        refused = house.caller().get("/metrics")
        assert refused.status_code == 401
        assert refused.json()["next"] == "Send a token with the scope metrics."
        assert house.script("read", role="officer").get("/metrics").status_code == 403
        assert house.script("metrics", role="officer").get("/metrics").status_code == 200


def test_nothing_that_is_written_down_names_a_person_or_an_item(house: House, caplog) -> None:
    """Logs and measures, after a story with refusals and a failure."""
    with caplog.at_level(logging.DEBUG):
        person = house.person((17, 23, 29))
        person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-17"]})
        person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-17"]})
        person.post("/v1/me/loans", {"items": ["nowhere-to-be-found"]})
        person.get(f"/v1/me/requests/{'0' * 32}")
        person.get("/item-23")
        person.get("/v1/me/recommendations")
    measured = house.caller().get("/metrics").text
    assert "rescind_http_requests_total" in measured
    assert 'route="/v1/me/requests/{id}"' in measured
    ours = [one.getMessage() for one in caplog.records if not one.name.startswith("http")]
    for written in ("\n".join(ours), measured):
        for canary in ("item-17", "item-23", "nowhere", person.id.hex(), person.secret):
            assert canary not in written


LIST = {"kind": "erase"}


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("requests", {**LIST, "items": [""]}, "items.0: String should have at least 1 character."),
        ("requests", {"items": ["item-1"]}, "kind: Field required."),
        ("loans", {"items": ["x"], "lent": 1}, "lent: Extra inputs are not permitted."),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    house: House, path: str, body: dict, detail: str
) -> None:
    answer = house.person((1,)).post(f"/v1/me/{path}", body)
    assert (answer.status_code, answer.json()["detail"]) == (422, f"body.{detail}")
