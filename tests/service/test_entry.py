"""Entry: passkeys, sessions, recovery codes, invitations, tokens."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from authenticator import Authenticator
from doors import Browser, House, opened
from rescind.ledger import accounts, tables
from rescind.service import recovery
from rescind.service.callers import COOKIE, invite, new_secret
from rescind.service.import_users import BringIn
from rescind.service.policy import Role, SignUp


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


def begun_with(browser: Browser, code: str) -> dict[str, Any]:
    """Type a code, make a passkey on the device, and stop before it is registered."""
    begun = browser.post("/v1/account/begin", {"code": code}, None).json()
    made = Authenticator().create(begun["options"])
    return {"ceremony": begun["ceremony"], "credential": made}


def finished(browser: Browser, body: dict[str, Any]) -> Any:
    return browser.post("/v1/account/finish", body, None)


def codes_of_somebody(house: House) -> list[str]:
    codes: list[str] = house.caller().register(Authenticator()).json()["recovery_codes"]
    return codes


def test_a_code_is_spent_by_the_passkey_and_not_before(house: House) -> None:
    code = codes_of_somebody(house)[3]
    lost = house.caller()
    for _ in range(2):  # the dialog is cancelled, twice
        assert lost.post("/v1/account/begin", {"code": code}, None).status_code == 200
    assert lost.secret == "", "nobody is signed in yet"
    assert lost.get("/v1/me").status_code == 401
    device = Authenticator()
    joined = lost.register(device, code=code.lower().replace("-", " "))
    assert joined.json() == {"role": "person", "recovery_codes": [], "codes_left": 9}
    assert lost.get("/v1/me").status_code == 200
    assert house.caller().sign_in(device).status_code == 200
    again = house.caller().post("/v1/account/begin", {"code": code}, None)
    assert again.status_code == 404, "it works once"
    assert "the person has left, has a passkey" in again.json()["next"]
    assert house.ledger.reading.overview()["people"] == 1, "no second account"


def test_a_code_that_is_used_in_two_browsers_at_once_lets_one_in(house: House) -> None:
    codes = codes_of_somebody(house)
    one, two, other = (house.caller() for _ in range(3))
    first, second = begun_with(one, codes[0]), begun_with(two, codes[0])
    third = begun_with(other, codes[1])
    assert finished(two, second).status_code == 201
    late = finished(one, first)
    assert (late.status_code, one.secret) == (404, "")
    assert "was used before" in late.json()["detail"]
    assert finished(two, second).status_code == 422, "a challenge is answered once"
    assert finished(other, third).status_code == 201, "control: another code"
    with house.ledger.store.reading() as tx:
        rows = tx.execute(tables.credential.select()).all()
    assert sum(row.kind == "passkey" for row in rows) == 3, "none of whoever came too late"


def test_a_code_that_ends_meanwhile_lets_nobody_in(house: House) -> None:
    """New codes were made, or the person left, between the code and the passkey."""
    browser = house.caller()
    codes = browser.register(Authenticator()).json()["recovery_codes"]
    lost = house.caller()
    begun = begun_with(lost, codes[0])
    fresh = browser.post("/v1/me/recovery-codes", {}).json()["recovery_codes"]
    assert finished(lost, begun).status_code == 404
    begun = begun_with(lost, fresh[0])
    assert browser.post("/v1/me/requests", {"kind": "leave"}).status_code == 202
    assert finished(lost, begun).status_code == 404
    assert lost.secret == ""


def test_a_disk_that_fails_at_the_passkey_leaves_the_code(house: House, monkeypatch) -> None:
    """Code and passkey are one step: what fails after the code is spent takes it back."""
    code, lost = codes_of_somebody(house)[0], house.caller()
    begun = begun_with(lost, code)
    with monkeypatch.context() as patch:
        patch.setattr(accounts.Passkey, "write", lambda *_: 1 / 0)
        assert finished(lost, begun).status_code == 500
    assert lost.secret == ""
    assert lost.register(Authenticator(), code=code).status_code == 201


def test_the_last_code_brings_ten_new_ones(house: House) -> None:
    text = recovery.new_text()
    house.do(BringIn(recovery.kept(text), (0, 1)))
    joined = house.caller().register(Authenticator(), code=text)
    new = joined.json()["recovery_codes"]
    assert (joined.status_code, len(set(new))) == (201, 10)
    with house.ledger.store.reading() as tx:
        rows = tx.execute(tables.credential.select()).all()
    assert sum(row.kind == "recovery" for row in rows) == 10
    assert house.caller().post("/v1/account/begin", {"code": text}, None).status_code == 404
    again = house.caller().register(Authenticator(), code=new[7]).json()  # the control
    assert (again["codes_left"], again["recovery_codes"]) == (9, [])


def test_a_wrong_code_and_two_ways_in_at_once_are_refused(house: House) -> None:
    code = codes_of_somebody(house)[0]
    wrong = code[:-1] + ("0" if code[-1] != "0" else "1")
    for body, status in (({"code": wrong}, 404), ({"code": code, "invitation": "x"}, 422)):
        answer = house.caller().post("/v1/account/begin", body, None)
        assert answer.status_code == status
    assert "Send one of them" in answer.json()["next"]
    assert house.caller().register(Authenticator(), code=code).status_code == 201, "control"


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


@pytest.mark.parametrize("sign_up", SignUp)
def test_where_people_are_invited_an_invitation_makes_one_account(
    tmp_path: Path, sign_up: SignUp
) -> None:
    with opened(tmp_path / "state", sign_up=sign_up) as house:
        stranger = house.caller().post("/v1/account/begin", {}, None)
        assert stranger.status_code == (200 if sign_up is SignUp.OPEN else 403), "control: open"
        text = invite(house.ledger, "a person", Role.PERSON)
        begun = [
            house.caller().post("/v1/account/begin", {"invitation": text}, None).json()
            for _ in range(2)
        ]
        made = []
        for one in begun:
            body = {
                "ceremony": one["ceremony"],
                "credential": Authenticator().create(one["options"]),
            }
            made.append(house.caller().post("/v1/account/finish", body, None))
        assert [one.status_code for one in made] == [201, 404]
        assert made[0].json()["role"] == Role.PERSON
        assert len(made[0].json()["recovery_codes"]) == 10
        again = house.caller().post("/v1/account/begin", {"invitation": text}, None)
        assert again.status_code == 404


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
