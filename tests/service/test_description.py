"""The OpenAPI file is the service's own, and the service answers nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import checks
from schemathesis.core.failures import FailureGroup

from doors import Browser, House, opened
from rescind.service import recovery
from rescind.service.app import description
from rescind.service.callers import COOKIE
from rescind.service.guard import GuardedRoute
from rescind.service.plain import DESCRIPTION, text_of
from rescind.service.policy import POLICY

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
"""No server error, and no answer that the description does not have."""
STREAMS = ("/v1/events",)


def test_the_committed_description_is_the_services_own() -> None:
    assert DESCRIPTION.read_text(encoding="utf-8") == text_of(description()), (
        "run: python -m rescind.service.describe"
    )


def test_every_route_is_described_with_its_refusals() -> None:
    paths = description()["paths"]
    for line, rule in POLICY.items():
        method, path = line.split(" ")
        if path in {"/static/{digest}/{path}", "/v1/enter/{code}", "/drp/v1/data-rights-request/"}:
            continue
        told = paths[path][method.lower()]["responses"]
        if "anonymous" not in rule.who:
            assert {"401", str(rule.denied)} <= set(told), line
        if rule.once:
            assert {"400", "409", "412", "422", "507"} <= set(told), line


def test_a_changed_route_would_be_noticed(monkeypatch) -> None:
    """The control: the comparison sees a route more."""
    from rescind.service import plain

    before = text_of(description())
    monkeypatch.setitem(POLICY, "GET /v1/more", POLICY["GET /healthz"])
    more = plain.Doors()
    more.at("GET /v1/more")(plain.healthz)
    monkeypatch.setattr("rescind.service.app.ROUTERS", (plain.router, more))
    assert text_of(description()) != before
    assert all(isinstance(route, GuardedRoute) for route in more.routes)


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Iterator[House]:
    patch = pytest.MonkeyPatch()
    patch.setattr(recovery, "MEMORY_KIB", 64)
    with patch.context(), opened(tmp_path_factory.mktemp("schema") / "state") as one:
        yield one


class Fuzzing:
    """Sends made-up requests to every operation: as a person, an operator, an agent, nobody."""

    def __init__(self, house: House, examples: int) -> None:
        self.house, self.examples, self.sent = house, examples, 0
        self.wrong: list[str] = []
        self.roles: list[Callable[[], Browser]] = [
            lambda: house.person(tuple(range(8))),
            house.operator,
            house.caller,
            lambda: house.agent("FUZZ"),
        ]
        self.callers = [make() for make in self.roles]

    def send(self, case: Any) -> None:
        """Send one request and check its answer."""
        place = self.sent % len(self.callers)
        answer = case.call(headers=self.headers(place))
        self.check(case, answer, place)

    def headers(self, place: int) -> dict[str, str]:
        """Return what this caller sends with a request."""
        self.sent += 1
        caller = self.callers[place]
        headers = {"host": "localhost:8000", "sec-fetch-site": "same-origin"}
        if caller.bearer:
            headers["authorization"] = f"Bearer {caller.bearer}"
        elif caller.secret:
            headers["cookie"] = f"{COOKIE}={caller.secret}"
        return headers

    def check(self, case: Any, answer: Any, place: int) -> None:
        """Note an answer that the description does not have."""
        if answer.status_code == 401:  # it may have signed itself out, or left
            self.callers[place] = self.roles[place]()
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as failure:
            told = "; ".join(str(one) for one in failure.exceptions)
            self.wrong.append(f"{case.method} {case.path} {answer.status_code}: {told}")

    def all(self, only: str | None = None) -> None:
        """Go through all operations, or those of one path."""
        schema = schemathesis.openapi.from_asgi("/openapi.json", self.house.app, **ASKING)
        chosen = schema.include(path=only) if only else schema.exclude(path=STREAMS)
        for found in chosen.get_all_operations():
            examine = hypothesis.given(case=found.ok().as_strategy())(self.send_one)
            hypothesis.settings(
                max_examples=self.examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )(examine)()

    @property
    def send_one(self) -> Callable[..., None]:
        def one(case: Any) -> None:
            self.send(case)

        return one


ASKING = {"headers": {"host": "localhost:8000"}}


def test_made_up_requests_get_documented_answers(house: House) -> None:
    fuzzing = Fuzzing(house, 1)
    fuzzing.all()
    assert fuzzing.sent >= 50
    assert fuzzing.wrong == []


@pytest.mark.service
def test_many_made_up_requests_get_documented_answers(house: House) -> None:
    fuzzing = Fuzzing(house, 12)
    fuzzing.all()
    assert fuzzing.sent >= 300
    assert fuzzing.wrong == []


def test_an_undocumented_answer_is_found(house: House, monkeypatch) -> None:
    """The control: a route that fails, and one that answers with another status."""

    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(house.ledger.reading, "overview", fail)
    fuzzing = Fuzzing(house, 8)
    fuzzing.callers, fuzzing.roles = fuzzing.callers[1:2], fuzzing.roles[1:2]
    fuzzing.all("/v1/operator/overview")
    assert any("/v1/operator/overview 500" in one for one in fuzzing.wrong)


def test_the_page_shows_the_routes_of_now() -> None:
    from rescind.service.describe import written

    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m rescind.service.describe docs/service.md"


def test_the_description_says_how_a_caller_is_known() -> None:
    told = description()
    assert set(told["components"]["securitySchemes"]) == {"session", "token"}
    ways = {
        "/v1/me": [{"session": []}],
        "/v1/operator/requests": [{"session": []}, {"token": []}],
        "/drp/v1/agent/{id}": [{"token": []}],
        "/v1/catalogue": [],
    }
    assert {path: told["paths"][path]["get"]["security"] for path in ways} == ways
