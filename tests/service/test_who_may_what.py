"""Every route, called by everybody, on what is theirs, another's and nobody's.

`EXPECTED` is the table of the specification, written here by hand. The matrix made from policy.py
must say the same, and so must the service when it is called.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from doors import Agent, Browser, House, opened
from rescind.errors import ConfigError
from rescind.ledger import accounts, agency
from rescind.ledger.jobs import EndJob, StartJob
from rescind.ledger.lending import TakeBack
from rescind.proof.notes import WITNESS, Key
from rescind.service import guard, recovery
from rescind.service.doors import Doors
from rescind.service.policy import EVERYBODY, POLICY, SCOPES, Role, verdict

ROLES = [role.value for role in Role]
FAR = "203.0.113.9"  # not this machine: /metrics is open to that
PASS = 200
EXPECTED: list[tuple[str, dict[str, int]]] = [
    # the first line that fits a route counts
    (r".* /v1/session/confirm|DELETE /v1/session", {"anonymous": 401, "agent": 404}),
    (r".* /v1/(account|session)/|GET /v1/session", {}),
    (
        r"GET (/|/operator|/check.html|/openapi.json|/(health|ready)z"
        r"|/v1/(catalogue|keys|enter/.*)|/(r|log|static)/.*)$",
        {},
    ),
    (r"POST /log/(cosignatures|rebuilt)$", {}),
    (r".* /v1/me", {"anonymous": 401, "agent": 404, "officer": 404, "operator": 404}),
    (r".* /v1/release", {"anonymous": 401, "agent": 401, "officer": 401}),
    (r".* /v1/events", {"anonymous": 401, "agent": 404}),
    (r"POST /drp/v1/agent/", {}),
    (r".* /drp/", {"anonymous": 401, "person": 403, "officer": 403, "operator": 403}),
    (
        r".* /v1/operator/(tokens|sum)",
        {"anonymous": 401, "person": 404, "agent": 404, "officer": 404},
    ),
    (r"GET (/v1/operator/|/metrics)", {"anonymous": 401, "person": 404, "agent": 404}),
    (r".* /v1/operator/.*/extend", {"anonymous": 401, "person": 404, "agent": 404}),
    (r".* /v1/operator/", {"anonymous": 401, "person": 404, "agent": 404, "officer": 404}),
]


def expected(line: str, role: str) -> int:
    """What the specification says; a route that it does not name is an error of this test."""
    for pattern, refused in EXPECTED:
        if re.match(pattern, line):
            return refused.get(role, PASS)
    raise AssertionError(f"{line} is not in the specification's table")


def generated() -> dict[tuple[str, str], int]:
    """The matrix that policy.py gives."""
    return {
        (line, role.value): verdict(rule, role, SCOPES.get(role, frozenset()))
        for line, rule in POLICY.items()
        for role in Role
    }


def unexpected() -> list[str]:
    """Cells of the policy that the specification does not have."""
    return [f"{line} as {role}: {got}" for (line, role), got in generated().items()
            if got != expected(line, role)]  # fmt: skip


def test_the_policy_says_what_the_specification_says() -> None:
    assert unexpected() == []


def test_a_loosened_policy_is_found(monkeypatch) -> None:
    for line in ("GET /v1/operator/overview", "GET /v1/me/loans", "GET /v1/release"):
        monkeypatch.setitem(POLICY, line, replace(POLICY[line], who=frozenset(EVERYBODY), scope=""))
        assert any(cell.startswith(line) for cell in unexpected())


def test_a_route_without_a_policy_does_not_start() -> None:
    with pytest.raises(ConfigError, match="no line in policy"):
        Doors().at("GET /v1/forgotten")(lambda: None)


def test_a_policy_without_a_route_does_not_start(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(POLICY, "GET /v1/gone", POLICY["GET /v1/me"])
    with pytest.raises(ConfigError, match="without a route"), opened(tmp_path / "state"):
        pass


# ------------------------------------------------------------------ calling all of it


@dataclass
class Village:
    """A service with two people, two agents, an officer and an operator."""

    house: House

    def __post_init__(self) -> None:
        self.first, self.second = self.house.agent("AGENT_ONE"), self.house.agent("AGENT_TWO")
        self.known: dict[str, Browser] = {}
        self.requests: dict[bytes, dict[str, Any]] = {}
        self.neighbour = self.house.person((0, 1, 2))

    def caller(self, role: str, line: str) -> Browser:
        """Somebody of this role; somebody new where the call ends what they have."""
        if role == Role.AGENT:
            return replace_address(self.first)
        if line in ENDS:
            return replace_address(self._new(role))
        if role not in self.known:
            self.known[role] = replace_address(self._new(role))
        return self.known[role]

    def _new(self, role: str) -> Browser:
        if role == Role.PERSON:
            return self.house.person((0, 1, 2, 3, 4, 5))
        return self.house.caller() if role == Role.ANONYMOUS else self.house.operator(role)

    def request_of(self, person: Browser) -> dict[str, Any]:
        if person.id not in self.requests:
            answer = self.house.do(TakeBack(person.id, "unshare", (0,)))
            self.requests[person.id] = dict(answer.body)
        return self.requests[person.id]

    def waiting(self, agent: Agent) -> str:
        """A request of an agent that waits for its person's word."""
        asked = self.house.do(agency.Ask(agent.name, agency.LEAVE))
        self.house.do(agency.Advance())
        return str(asked.body["request_id"])

    def witness(self) -> str:
        """A witness that is known."""
        key = Key("silo-0", secrets.token_bytes(32), WITNESS)
        self.house.service.log.witnesses.admit(key, None)
        return key.id.hex()

    def token(self) -> str:
        """A token of somebody."""
        digest = secrets.token_bytes(32)
        until = self.house.clock() + timedelta(days=1)
        self.house.do(accounts.MakeToken(digest, "x", Role.OFFICER, ("read",), until))
        return accounts.token_name(digest)

    def job(self) -> str:
        """A generation that has ended."""
        begun = str(self.house.do(StartJob("FedShare", 1, lambda *_: None)).body["job"])
        self.house.do(EndJob(begun, "failed"))
        return begun


def replace_address(browser: Any) -> Any:
    return replace(browser, address=FAR)


BODIES: dict[str, Callable[[], Any]] = {
    "POST /v1/account/begin": dict,
    "POST /v1/account/finish": lambda: {"ceremony": "x", "credential": {}},
    "POST /v1/account/recover": lambda: {"code": "00000-00000-00000"},
    "POST /v1/session/begin": dict,
    "POST /v1/session/finish": lambda: {"ceremony": "x", "credential": {}},
    "POST /v1/session/confirm": lambda: {"ceremony": "x", "credential": {}},
    "POST /v1/me/loans": lambda: {"items": ["item-7"]},
    "POST /v1/me/contribution": lambda: {
        "device": "0" * 32,
        "minus": {"items": [], "weight": 0},
        "plus": {"items": ["item-30"], "weight": 4096},
    },
    "POST /v1/me/requests": lambda: {"kind": "unshare", "items": ["item-1"]},
    "POST /v1/me/requests/{id}/confirm": dict,
    "POST /v1/me/codes": dict,
    "POST /v1/me/recovery-codes": dict,
    "POST /v1/operator/requests/{id}/extend": lambda: {"days": 3, "reason": "away"},
    "POST /v1/operator/releases": dict,
    "POST /v1/operator/jobs": lambda: {"recipe": "no such recipe"},
    "POST /v1/operator/serving": lambda: {"generation": None},
    "POST /v1/operator/people/{id}/quarantine": lambda: {"reason": "cheats"},
    "POST /v1/operator/scan": dict,
    "POST /v1/operator/witnesses": lambda: {"key": "no key"},
    "POST /v1/operator/agents": lambda: {"id": "OTHER", "name": "x", "verify_key": "0" * 64},
    "POST /v1/operator/tokens": lambda: {"name": "x", "scope": ["read"]},
}
INSIDE = {
    "POST /v1/account/finish": {422},
    "POST /v1/account/recover": {404},
    "POST /v1/session/finish": {422},
    "POST /v1/session/confirm": {422},
    "GET /v1/enter/{code}": {404},
    "GET /r/{link}/receipt": {404},
    "GET /r/{link}/proof": {404},
    "GET /r/{link}/export": {404},
    "GET /v1/me/requests/{id}/receipt": {404},
    "GET /v1/me/requests/{id}/proof": {404},
    "POST /v1/operator/jobs": {400},
    "POST /v1/operator/witnesses": {400},
    "POST /log/cosignatures": {422},
    "POST /log/rebuilt": {422},
    "GET /v1/operator/sum": {404},
    "GET /v1/release/{digest}": {404},
    "GET /static/{digest}/{path}": {404},
    "GET /log/roster/{name}": {404},
}
"""Routes that this test cannot bring to success: how they answer somebody who was let in."""
ENDS = {
    "DELETE /v1/session",
    "POST /v1/me/requests/{id}/confirm",
    "POST /v1/me/requests",
    "POST /v1/me/contribution",
}
"""Routes after which a caller has to be made anew."""
NOBODYS = secrets.token_hex(16)


def path_for(village: Village, line: str, caller: Browser, role: str, owner: str) -> str:
    """Fill an address with an id that is the caller's, another's, or nobody's."""
    path = line.split(" ")[1]
    if "{" not in path:
        return path
    if owner == "unknown":
        long = 16 if "/jobs/" in path else 8 if "/witnesses/" in path else 32
        nobodys = NOBODYS[:long]
        return re.sub(r"\{\w+\}", nobodys.upper() if "agent/" in path else nobodys, path)
    if path.startswith("/log/"):
        return path.replace("{path}", f"0/000.p/{min(len(village.house.ledger.tree), 255)}")
    if "agent/" in path:
        return path.replace("{id}", "AGENT_ONE" if owner == "own" else "AGENT_TWO")
    if path.startswith("/drp/"):
        agent = village.first if owner == "own" else village.second
        return path.replace("{id}", village.waiting(agent))
    if path.startswith("/v1/operator/jobs"):
        return path.replace("{id}", village.job())
    if path.startswith("/v1/operator/witnesses"):
        return path.replace("{id}", village.witness())
    if path.startswith("/v1/operator/tokens"):
        return path.replace("{id}", village.token())
    if path.startswith("/v1/operator/people"):
        return path.replace("{id}", village.house.person().id.hex())
    mine = owner == "own" and role == Role.PERSON
    person = caller if mine else village.neighbour
    if path.endswith("/confirm") and owner == "own":
        return path.replace("{id}", village.waiting(village.first))
    made = village.request_of(person)
    path = path.replace("{link}", made["link"].removeprefix("/r/"))
    return path.replace("{id}", made["request_id"]).replace("{digest}", "0" * 64)


def call(village: Village, line: str, role: str, owner: str) -> tuple[int, str]:
    """Call a route once, as a role, on an id of this owner."""
    method = line.split(" ", maxsplit=1)[0]
    caller = village.caller(role, line)
    path = path_for(village, line, caller, role, owner)
    if POLICY[line].signed:
        agent = village.first
        about = agent.exercise() if method != "DELETE" else {"reason": "no"}
        body = agent.signed(about | ({"agent-id": path[14:]} if "/agent/" in path else {}))
        answer = caller.call(method, path, content=body, headers={"content-type": "text/plain"})
        if line == "POST /drp/v1/agent/{id}" and answer.status_code == 200:
            village.first.bearer = answer.json()["token"]
        return answer.status_code, answer.text
    if line == "GET /v1/events":
        return village.house.runner.run(_first_line(village, caller))
    headers = {"Idempotency-Key": secrets.token_hex(16)} if method != "GET" else {}
    more = {"json": BODIES[line]()} if method == "POST" else {}
    answer = caller.call(method, path, headers=headers, **more)
    return answer.status_code, answer.text


async def _first_line(village: Village, caller: Browser) -> tuple[int, str]:
    """Open the stream of events and hang up after its first line."""
    from streams import opened_stream

    async with opened_stream(caller, "/v1/events") as stream:
        return stream.status, ""


def fits(line: str, role: str, owner: str, status: int) -> bool:
    """Whether an answer is the one that the table promises."""
    promised = generated()[line, role]
    if promised != PASS:
        return status == promised
    known = "{" in line and owner != "own"
    if known and line.startswith(("GET /v1/me", "POST /v1/me")):
        return status == 404
    if known and "/drp/" in line:
        return status == 403
    if owner == "unknown" and "{" in line:
        return status == 404
    return status in INSIDE.get(line, set()) or status < 400


@pytest.fixture(scope="module")
def village(tmp_path_factory) -> Iterator[Village]:
    patch = pytest.MonkeyPatch()
    patch.setattr(recovery, "MEMORY_KIB", 64)
    with patch.context(), opened(tmp_path_factory.mktemp("village") / "state") as house:
        yield Village(house)


@pytest.mark.parametrize("role", ROLES)
def test_every_route_answers_every_role_as_the_table_says(village: Village, role: str) -> None:
    wrong = []
    for line in POLICY:
        for owner in ("own", "foreign", "unknown") if "{" in line else ("own",):
            status, text = call(village, line, role, owner)
            if not fits(line, role, owner, status):
                wrong.append(f"{line} as {role} on {owner}: {status} {text[:200]}")
    assert wrong == []


def test_a_guard_that_lets_in_is_found(village: Village, monkeypatch) -> None:
    """The control: without the verdict the same calls find it."""
    monkeypatch.setattr(guard.policy, "verdict", lambda *_: 200)
    wrong = [
        line
        for line in ("GET /v1/me", "GET /v1/operator/overview", "GET /v1/release")
        if not fits(line, "anonymous", "own", call(village, line, "anonymous", "own")[0])
    ]
    assert len(wrong) >= 2


def test_what_is_not_there_and_what_is_anothers_get_the_same_answer(village: Village) -> None:
    mine, other = village.house.person((0, 1)), village.house.person((0, 1))
    theirs = village.request_of(other)["request_id"]
    answers = [mine.get(f"/v1/me/requests/{one}") for one in (theirs, NOBODYS)]
    assert answers[0].status_code == answers[1].status_code == 404
    assert answers[0].content == answers[1].content


def test_measures_are_open_to_this_machine_and_closed_elsewhere(village: Village) -> None:
    near, far = village.house.caller(), village.house.caller(address=FAR)
    assert near.get("/metrics").status_code == 200
    assert far.get("/metrics").status_code == 401
    script = replace_address(village.house.script("metrics", role="officer"))
    assert script.get("/metrics").status_code == 200
    assert script.get("/v1/operator/overview").status_code == 403


def test_every_change_needs_an_idempotency_key(village: Village) -> None:
    lines = [line for line, rule in POLICY.items() if rule.once]
    assert len(lines) >= 15
    without_rule = {
        line
        for line, rule in POLICY.items()
        if not line.startswith("GET") and not rule.once and not rule.signed
    }
    # a challenge, a code and an invitation are used once; a session ends once
    assert all(re.match(r".* /v1/(account|session)", line) for line in without_rule), without_rule
    for line in lines:
        role = "person" if "/v1/me" in line else "operator"
        caller = village.caller(role, line)
        path = path_for(village, line, caller, role, "own")
        method = line.split(" ", maxsplit=1)[0]
        more = {"json": BODIES[line]()} if method == "POST" else {}
        answer = caller.call(method, path, **more)
        assert answer.status_code == 400, (line, answer.text)
        assert "Idempotency-Key" in answer.text, line
        short = caller.call(method, path, headers={"Idempotency-Key": "short"}, **more)
        assert short.status_code == 400, (line, short.text)
