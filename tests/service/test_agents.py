"""The Data Rights Protocol 1.0: its conformance cases, and what agents cannot do."""

from __future__ import annotations

import base64
import ipaddress
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from doors import Agent, House
from rescind.ledger import tables
from rescind.proof import reaching
from rescind.service import chores

REQUESTS = "/drp/v1/data-rights-request"


def settle(house: House) -> None:
    """Carry out what was submitted without waiting."""
    chores.advance(house.service)


def ask(agent: Agent, action: str = "deletion", **more) -> dict:
    answer = agent.tell("POST", REQUESTS, agent.exercise(action, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


def status(agent: Agent, asked: dict) -> dict:
    return agent.get(f"{REQUESTS}/{asked['request_id']}").json()


# ------------------------------------------------------------------ 2.05 and 2.06: pairing


def test_a_signature_gets_a_token_that_works(house: House) -> None:
    agent = house.agent()
    assert agent.get("/drp/v1/agent/AGENT_ONE").json() == {}
    old = agent.bearer
    answer = agent.pair()
    assert set(answer.json()) == {"agent-id", "token"}
    assert answer.json()["agent-id"] == "AGENT_ONE"
    agent.bearer = answer.json()["token"]
    assert agent.get("/drp/v1/agent/AGENT_ONE").status_code == 200
    agent.bearer = old  # a new token ends the earlier one
    assert agent.get("/drp/v1/agent/AGENT_ONE").status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"agent-id": "AGENT_TWO"},
        {"business-id": "SOMEBODY_ELSE"},
        {"issued-at": "2030-01-01T00:00:00+00:00"},
        {"expires-at": "2020-01-01T00:00:00+00:00"},
        {"expires-at": "soon"},
    ],
)
def test_a_wrong_pairing_gets_403_and_no_body(house: House, changes) -> None:
    answer = house.agent().pair(**changes)
    assert (answer.status_code, answer.content) == (403, b"")


def test_a_pairing_signed_by_another_key_or_nobody_is_refused(house: House) -> None:
    agent = house.agent()
    path, message = "/drp/v1/agent/AGENT_ONE", agent.envelope()
    assert agent.tell("POST", path, message, Ed25519PrivateKey.generate()).status_code == 403
    assert agent.tell("POST", path, "not base64!").status_code == 403
    assert agent.tell("POST", "/drp/v1/agent/NOBODY", message).status_code == 403


def test_another_agents_information_is_forbidden(house: House) -> None:
    one, _ = house.agent("AGENT_ONE"), house.agent("AGENT_TWO")
    assert one.get("/drp/v1/agent/AGENT_TWO").status_code == 403


# ------------------------------------------------------------------ 2.01: exercising, 3.07: checks


def test_a_request_goes_open_need_user_verification_in_progress(house: House) -> None:
    agent, person = house.agent(), house.person((1, 2, 3))
    asked = ask(agent)
    assert asked["status"] == "open"
    assert {"request_id", "received_at", "expected_by"} <= set(asked)
    settle(house)
    waiting = status(agent, asked)
    assert (waiting["status"], waiting["reason"]) == ("in_progress", "need_user_verification")
    assert waiting["user_verification_url"].endswith(f"#confirm={asked['request_id']}")
    assert house.ledger.live.people == 1  # nothing is done without the person's word
    path = f"/v1/me/requests/{asked['request_id']}/confirm"
    answer = person.post(path, {})
    assert answer.status_code == 202, answer.text
    assert house.ledger.live.people == 0
    after = status(agent, asked)
    assert (after["status"], after.get("reason")) == ("in_progress", None)
    assert person.get("/v1/me").status_code == 401
    again = house.person().post(path, {})
    assert again.status_code == 404


def test_confirming_needs_a_fresh_passkey(house: House) -> None:
    agent, person = house.agent(), house.person((1,), confirmed=False)
    asked = ask(agent)
    settle(house)
    assert person.post(f"/v1/me/requests/{asked['request_id']}/confirm", {}).status_code == 401
    assert house.ledger.live.people == 1


def test_a_persons_code_needs_no_further_word(house: House) -> None:
    agent, person = house.agent(), house.person((1, 2, 3))
    code = person.post("/v1/me/codes", {}).json()["token"]
    asked = ask(agent, **{"rescind-code": code})
    settle(house)
    assert status(agent, asked)["status"] == "in_progress"
    assert "reason" not in status(agent, asked)
    assert house.ledger.live.people == 0
    assert person.get("/v1/me").status_code == 401
    second = ask(agent, note="2", **{"rescind-code": code})  # a code is used once
    settle(house)
    assert status(agent, second)["reason"] == "need_user_verification"


def test_access_is_fulfilled_with_a_link_to_everything(house: House) -> None:
    agent, person = house.agent(), house.person((4, 5))
    asked = ask(agent, "access")
    settle(house)
    answer = person.post(f"/v1/me/requests/{asked['request_id']}/confirm", {})
    assert answer.status_code == 200
    told = status(agent, asked)
    assert told["status"] == "fulfilled"
    link = told["results_url"].removeprefix("http://localhost:8000")
    found = house.caller().get(link).json()
    assert [one["id"] for one in found["loans"]] == ["item-4", "item-5"]
    none = person.get(f"/v1/me/requests/{asked['request_id']}/receipt")
    assert none.status_code == 404
    assert none.json()["detail"] == "This request is fulfilled: no receipt belongs to it."


def test_the_same_message_twice_is_one_request(house: House) -> None:
    agent = house.agent()
    text = agent.signed(agent.exercise())
    first, again = (agent.tell("POST", REQUESTS, text).json() for _ in range(2))
    assert first["request_id"] == again["request_id"]
    slash = agent.tell("POST", REQUESTS + "/", agent.exercise(nonce=1))
    assert slash.status_code == 200


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"agent-id": "AGENT_TWO"}, 403),
        ({"business-id": "ANOTHER"}, 403),
        ({"issued-at": "2030-01-01T00:00:00Z"}, 403),
        ({"expires-at": "2020-01-01T00:00:00Z"}, 400),
        ({"expires-at": "2027-01-01T00:00:00Z"}, 400),
        ({"exercise": ["deletion"]}, 400),
        ({"drp.version": "0.5"}, 400),
        ({"regime": "unknown"}, 400),
        ({"status_callback": "http://plain.example"}, 400),
        ({"rescind-code": 7}, 400),
    ],
)
def test_errors_have_the_protocols_form(house: House, changes, code) -> None:
    agent = house.agent()
    answer = agent.tell("POST", REQUESTS, {**agent.exercise(), **changes})
    assert answer.status_code == code
    told = answer.json()
    assert (told["code"], told["fatal"]) == (str(code), True)
    assert told["message"]


def test_a_message_is_base64_then_signature_then_json(house: House) -> None:
    agent = house.agent()
    for text, code in (
        ("???", 403),
        (base64.b64encode(b"short").decode(), 403),
        (agent.signed(agent.exercise(), Ed25519PrivateKey.generate()), 403),
        (agent.signed([1]), 400),
    ):
        assert agent.tell("POST", REQUESTS, text).status_code == code


def test_one_agents_message_cannot_be_sent_by_another(house: House) -> None:
    one, two = house.agent("AGENT_ONE"), house.agent("AGENT_TWO")
    assert two.tell("POST", REQUESTS, one.signed(one.exercise())).status_code == 403


# ------------------------------------------------------------------ 2.02, 2.04: status and revoking


def test_only_its_agent_sees_a_request(house: House) -> None:
    one, two = house.agent("AGENT_ONE"), house.agent("AGENT_TWO")
    asked = ask(one)
    path = f"{REQUESTS}/{asked['request_id']}"
    assert two.get(path).status_code == 403
    assert two.tell("DELETE", path, {"reason": "mine"}).status_code == 403
    assert one.get(f"{REQUESTS}/unknown").status_code == 403
    assert house.caller().get(path).status_code == 401


def test_what_waits_can_be_revoked_and_what_is_erased_cannot(house: House) -> None:
    agent, person = house.agent(), house.person((1,))
    asked = ask(agent)
    settle(house)
    path = f"{REQUESTS}/{asked['request_id']}"
    unsigned = agent.tell("DELETE", path, {"reason": "no"}, Ed25519PrivateKey.generate())
    assert unsigned.status_code == 403
    assert agent.tell("DELETE", path, {"reason": "no"}).json()["status"] == "revoked"
    assert status(agent, asked)["status"] == "revoked"
    assert person.post(f"/v1/me/requests/{asked['request_id']}/confirm", {}).status_code == 404
    second = ask(agent, note="2")
    settle(house)
    person.post(f"/v1/me/requests/{second['request_id']}/confirm", {})
    late = agent.tell("DELETE", f"{REQUESTS}/{second['request_id']}", {"reason": "no"})
    assert late.status_code == 409
    assert late.json()["code"] == "409"


def test_nobodys_word_for_14_days_is_denied(house: House) -> None:
    agent = house.agent()
    asked = ask(agent)
    settle(house)
    house.clock.go(days=14)
    settle(house)
    assert status(agent, asked)["reason"] == "need_user_verification"
    house.clock.go(minutes=1)
    settle(house)
    told = status(agent, asked)
    assert (told["status"], told["reason"]) == ("denied", "insuf_verification")


# ------------------------------------------------------------------ 2.03: callbacks


def test_an_agent_is_told_every_state_once_and_again_if_it_was_away(house: House) -> None:
    agent, sent, answers = house.agent(), [], [False, True, True]
    asked = ask(agent, status_callback="https://agent.example/update")
    settle(house)
    told: dict = {}

    def send(url, body):
        sent.append((url, body["status"], body.get("reason")))
        return answers.pop(0)

    chores.tell_agents(house.service, told, send)
    chores.tell_agents(house.service, told, send)  # too early
    house.clock.go(minutes=3)
    chores.tell_agents(house.service, told, send)
    chores.tell_agents(house.service, told, send)  # nothing new
    agent.tell("DELETE", f"{REQUESTS}/{asked['request_id']}", {"reason": "no"})
    chores.tell_agents(house.service, told, send)
    waiting = ("https://agent.example/update", "in_progress", "need_user_verification")
    assert sent == [waiting, waiting, ("https://agent.example/update", "revoked", None)]
    with house.ledger.store.reading() as tx:
        assert tx.execute(tables.request.select()).one().callback_due is None


def test_an_agent_that_is_away_for_a_week_is_not_called_any_more(house: House) -> None:
    agent = house.agent()
    ask(agent, status_callback="https://agent.example/update")
    settle(house)
    tries = 0

    def send(*_):
        nonlocal tries
        tries += 1
        return False

    for _ in range(24 * 9):
        chores.tell_agents(house.service, {}, send)
        house.clock.go(hours=1)
    assert 8 < tries < 25


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"])
def test_private_addresses_are_not_called(monkeypatch, address) -> None:
    family = ipaddress.ip_address(address).version
    monkeypatch.setattr(
        reaching.socket, "getaddrinfo", lambda *_, **__: [(family, 1, 6, "", (address, 443))]
    )
    assert reaching.public_address("agent.example", 443) is None
    assert chores.send_status("https://agent.example/x", {}) is False


def test_a_public_address_is_called_and_a_plain_one_is_not(monkeypatch) -> None:
    monkeypatch.setattr(
        reaching.socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("93.184.215.14", 443))]
    )
    assert reaching.public_address("agent.example", 443) == "93.184.215.14"
    assert chores.send_status("http://agent.example/x", {}) is False
    assert chores.send_status("https://agent.example:bad/x", {}) is False
    pauses = [chores.pause_after(n) for n in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == timedelta(days=1)


def test_a_code_ends(house: House) -> None:
    agent, person = house.agent(), house.person((1,))
    code = person.post("/v1/me/codes", {}).json()["token"]
    house.clock.go(days=8)
    asked = ask(agent, **{"rescind-code": code})
    settle(house)
    assert status(agent, asked)["reason"] == "need_user_verification"
    assert house.ledger.live.people == 1
