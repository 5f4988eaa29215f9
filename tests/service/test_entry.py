"""Entry: passkeys, sessions, recovery codes, invitations, tokens."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from authenticator import Authenticator
from doors import House
from rescind.ledger import accounts, tables
from rescind.service import recovery
from rescind.service.callers import COOKIE, new_secret


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Argon2id with little memory: its cost is not what these tests are about."""
    monkeypatch.setattr(recovery, "MEMORY_KIB", 64)


def test_a_passkey_makes_an_account_and_signs_in_again(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    joined = browser.register(device)
    assert joined.status_code == 201, joined.text
    cookie = joined.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    for word in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"):
        assert word in cookie
    assert "Domain" not in cookie
    assert len(set(joined.json()["recovery_codes"])) == 10
    assert browser.get("/v1/me").status_code == 200
    other = house.caller()
    assert other.sign_in(device).status_code == 200
    assert other.secret != browser.secret
    assert other.get("/v1/me").json()["lent"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": "https://evil.example"},
        {"verifies": False},
    ],
)
def test_a_passkey_of_another_site_or_without_a_check_is_refused(house: House, wrong) -> None:
    answer = house.caller().register(Authenticator(**wrong))
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("passkey")


def test_a_challenge_is_answered_once(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    browser.register(device)
    begun = browser.post("/v1/session/begin", {}, None).json()
    body = {"ceremony": begun["ceremony"], "credential": device.get(begun["options"])}
    assert browser.post("/v1/session/finish", body, None).status_code == 200
    assert browser.post("/v1/session/finish", body, None).status_code == 422


def test_a_signature_over_another_challenge_is_refused(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    browser.register(device)
    first = browser.post("/v1/session/begin", {}, None).json()
    second = browser.post("/v1/session/begin", {}, None).json()
    body = {"ceremony": second["ceremony"], "credential": device.get(first["options"])}
    assert browser.post("/v1/session/finish", body, None).status_code == 422


def test_a_copied_passkey_with_an_old_counter_is_refused(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    browser.register(device)
    browser.sign_in(device)
    device.counter = 0
    assert browser.sign_in(device).status_code == 422


def test_a_recovery_code_opens_the_account_once(house: House) -> None:
    browser = house.caller()
    codes = browser.register(Authenticator()).json()["recovery_codes"]
    lost = house.caller()
    typed = codes[3].lower().replace("-", " ")
    answer = lost.post("/v1/account/recover", {"code": typed}, None)
    assert answer.json() == {"role": "person", "codes_left": 9}
    assert lost.get("/v1/me").status_code == 200
    again = house.caller().post("/v1/account/recover", {"code": codes[3]}, None)
    assert again.status_code == 404
    assert "the person has left, has a passkey" in again.json()["next"]
    wrong = codes[4][:-1] + ("0" if codes[4][-1] != "0" else "1")
    assert house.caller().post("/v1/account/recover", {"code": wrong}, None).status_code == 404
    fresh = Authenticator()
    assert lost.register(fresh).status_code == 201
    assert house.caller().sign_in(fresh).status_code == 200


def test_adding_a_passkey_needs_a_confirmation(house: House) -> None:
    assert house.person(confirmed=False).post("/v1/account/begin", {}, None).status_code == 401


def test_confirming_begins_a_new_session_and_ends_the_old_one(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    browser.register(device)
    old = browser.secret
    assert browser.sign_in(device, "confirm").status_code == 200
    assert browser.secret != old
    assert house.caller(secret=old).get("/v1/me").status_code == 401
    assert browser.get("/v1/me").status_code == 200


def test_confirming_with_another_persons_passkey_is_refused(house: House) -> None:
    mine, yours = house.caller(), Authenticator()
    mine.register(Authenticator())
    house.caller().register(yours)
    assert mine.sign_in(yours, "confirm").status_code == 404


def test_sessions_end_when_idle_when_old_and_at_sign_out(house: House) -> None:
    browser = house.person()
    assert browser.get("/v1/me").status_code == 200
    for _ in range(5):  # in use: six days at a time are not idle
        house.clock.go(days=5.5)
        assert browser.get("/v1/me").status_code == 200
    house.clock.go(days=3)
    assert browser.get("/v1/me").status_code == 401  # older than 30 days
    idle = house.person()
    house.clock.go(days=7, seconds=1)
    assert idle.get("/v1/me").status_code == 401
    out = house.person()
    assert out.call("DELETE", "/v1/session").status_code == 200
    assert out.secret == ""
    with house.ledger.store.reading() as tx:
        kept = tx.execute(tables.session.select()).all()
    assert not [row for row in kept if row.person == out.id]


def test_a_session_is_kept_as_a_digest(house: House) -> None:
    browser = house.person()
    with house.ledger.store.reading() as tx:
        row = tx.execute(tables.session.select()).one()
    assert browser.secret.encode() not in b"".join(v for v in row if isinstance(v, bytes))


@pytest.mark.parametrize("role", ["operator", "officer"])
def test_an_operator_joins_by_invitation_once(house: House, role: str) -> None:
    text, digest = new_secret()
    until = house.clock() + timedelta(days=1)
    house.do(accounts.MakeToken(digest, "Ada", f"{accounts.INVITED}{role}", (), until))
    device, browser = Authenticator(), house.caller()
    joined = browser.register(device, invitation=text)
    assert joined.json() == {"role": role, "recovery_codes": []}
    assert browser.get("/v1/operator/overview").status_code == 200
    assert house.caller().post("/v1/account/begin", {"invitation": text}, None).status_code == 404
    again = house.caller()
    assert again.sign_in(device).json()["role"] == role
    assert house.caller(bearer=text).get("/v1/operator/overview").status_code == 401


def test_an_invitation_ends(house: House) -> None:
    text, digest = new_secret()
    until = house.clock() + timedelta(hours=1)
    house.do(accounts.MakeToken(digest, "Ada", f"{accounts.INVITED}operator", (), until))
    house.clock.go(hours=2)
    assert house.caller().post("/v1/account/begin", {"invitation": text}, None).status_code == 404


def test_a_token_has_its_scope_and_its_end(house: House) -> None:
    operator = house.operator()
    made = operator.post("/v1/operator/tokens", {"name": "cron", "scope": ["read"]})
    assert made.status_code == 201, made.text
    script = house.caller(bearer=made.json()["token"])
    assert script.get("/v1/operator/overview").status_code == 200
    narrow = script.post("/v1/operator/releases")
    assert narrow.status_code == 403
    assert "it has read" in narrow.json()["detail"]
    assert "scope release" in narrow.json()["next"]
    assert script.get("/v1/me").json()["next"] == "This is for people, not tokens."
    house.clock.go(days=31)
    ended = script.get("/v1/operator/overview")
    assert ended.status_code == 401
    assert "token is not known here" in ended.json()["detail"]
    assert "Nobody is signed in" in house.caller().get("/v1/me").json()["detail"]


def test_tokens_are_listed_and_revoked_but_not_made_by_tokens(house: House) -> None:
    operator, script = house.operator(), house.script("read")
    keeper = house.script("tokens", "read")
    made = operator.post("/v1/operator/tokens", {"name": "cron", "scope": ["read"]}).json()
    listed = keeper.get("/v1/operator/tokens").json()["tokens"]
    assert [(one["name"], one["scope"]) for one in listed][-1] == ("cron", ["read"])
    assert made["token"] not in json.dumps(listed)
    cron = house.caller(bearer=made["token"])
    assert cron.get("/v1/operator/overview").status_code == 200
    headers = {"Idempotency-Key": "k" * 16}
    path = f"/v1/operator/tokens/{listed[-1]['id']}"
    assert keeper.call("DELETE", path, headers=headers).json() == {"revoked": listed[-1]["id"]}
    assert cron.get("/v1/operator/overview").status_code == 401
    assert script.get("/v1/operator/overview").status_code == 200, "control: another one lives"
    body = {"name": "more", "scope": ["read"]}
    refused = keeper.post("/v1/operator/tokens", body)
    assert (refused.status_code, "passkey" in refused.json()["detail"]) == (403, True)


def test_a_token_gives_no_more_than_its_maker_has(house: House) -> None:
    script = house.script("read", "tokens")
    body = {"name": "more", "scope": ["release"]}
    assert script.post("/v1/operator/tokens", body).status_code == 422


def test_a_bearer_token_hides_the_cookie(house: House) -> None:
    person = house.person()
    answer = person.get("/v1/me", headers={"authorization": "Bearer nothing"})
    assert answer.status_code == 401


def test_a_demonstration_link_works_once(house: House) -> None:
    from rescind.service.callers import digest_of

    person = house.person().id
    house.service.entrances[digest_of("code")] = person
    browser = house.caller()
    assert browser.get("/v1/enter/code").status_code == 303
    assert browser.get("/v1/me").status_code == 200
    again = house.caller().get("/v1/enter/code")
    assert again.status_code == 404
    assert "works once" in again.text


def test_leaving_ends_sessions_and_passkeys(house: House) -> None:
    device, browser = Authenticator(), house.caller()
    browser.register(device)
    answer = browser.post("/v1/me/requests", {"kind": "leave"})
    assert answer.status_code == 202, answer.text
    assert browser.get("/v1/me").status_code == 401
    assert house.caller().sign_in(device).status_code == 404


def test_new_recovery_codes_void_the_old_ones(house: House) -> None:
    browser = house.caller()
    old = browser.register(Authenticator()).json()["recovery_codes"]
    key = "codes-" + "k" * 16
    made = browser.post("/v1/me/recovery-codes", {}, key)
    assert made.status_code == 201
    new = made.json()["recovery_codes"]
    assert len(set(new)) == 10
    assert not set(new) & set(old)
    again = browser.post("/v1/me/recovery-codes", {}, key)
    assert (again.json(), again.headers["Idempotent-Replay"]) == (made.json(), "true")
    for code in old[:2]:
        assert house.caller().post("/v1/account/recover", {"code": code}, None).status_code == 404
    used = house.caller().post("/v1/account/recover", {"code": new[0]}, None)  # the control
    assert (used.status_code, used.json()["codes_left"]) == (200, 9)
    house.clock.go(minutes=6)
    late = browser.post("/v1/me/recovery-codes", {})
    assert late.status_code == 401  # it needs a fresh confirmation


def test_a_token_is_told_again_to_whoever_repeats_the_request(house: House) -> None:
    operator, key = house.operator(), "token-" + "k" * 16
    asked = {"name": "cron", "scope": ["read"]}
    first, again = (operator.post("/v1/operator/tokens", asked, key) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replay"] == "true"
    other = operator.post("/v1/operator/tokens", asked)
    assert other.json()["token"] != first.json()["token"]  # the control: another key
