"""What stands before and around every route: who calls, from where, how often, and how it ends."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rescind.errors import ConfigError, ConsentError, RescindError
from rescind.service import policy, problems
from rescind.service.callers import Caller, Sent
from rescind.service.policy import POLICY, Role, Rule
from rescind.service.problems import Problem
from rescind.service.static_files import filled, wants_page

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rescind.service.context import Service

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LARGEST_BODY = 1 << 20
"""Bytes. 5,000 items of 100 characters each fit."""
POLICY_OF_PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = (
    (b"content-security-policy", POLICY_OF_PAGES.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")
"""A year. Other names below ours are not ours to decide about."""
DEEPEST = 32
"""Lists and objects within each other, in a body."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
BRACKET = re.compile(rb"[\[\]{}]")
Plainly = Callable[[Request, "Service", Caller], Awaitable[Response | None]]
PLAINLY, ADMITTED = "plainly", "caller"
AGENTS = "/drp/"
"""Below it errors have the form of the Data Rights Protocol."""


class GuardedRoute(APIRoute):
    """A route that asks its line of the policy before anything is read from the request."""

    @property
    def plainly(self) -> Plainly | None:
        """What carries out requests that are as they should be, for hot routes (`Doors.at`)."""
        found: Plainly | None = getattr(self.endpoint, PLAINLY, None)
        return found

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        lines = {method: f"{method} {self.path_format}" for method in self.methods or ()}
        for line in lines.values():
            rule_of(line)

        async def guarded(request: Request) -> Response:
            if not hasattr(request.state, ADMITTED):  # `Frame` has let it in, and counted it
                rule = POLICY[lines[request.method]]
                service: Service = request.app.state.service
                request.state.caller = await admit(service, rule, request)
                await check_depth(rule, request)
            return await inner(request)

        return guarded


def rule_of(line: str) -> Rule:
    rule = POLICY.get(line)
    if rule is None:
        raise ConfigError(f"the route {line} has no line in policy.py. Add one.")
    return rule


def check_routes(app: FastAPI) -> None:
    """Refuse to start with a route that has no policy, or a policy that has no route."""
    bare = [route for route in app.routes if not isinstance(route, GuardedRoute)]
    if bare:
        raise ConfigError(f"routes without a guard: {[str(one) for one in bare]}.")
    found = {f"{m} {r.path_format}" for r in app.routes for m in r.methods}  # type: ignore[attr-defined]
    idle = set(POLICY) - found
    if idle:
        raise ConfigError(f"lines of policy.py without a route: {sorted(idle)}. Remove them.")


async def admit(service: Service, rule: Rule, request: Request) -> Caller:
    """Return who calls, or raise the problem that this request has."""
    headers = first_of(request)
    host = headers.get(b"host", b"").decode("latin-1")
    if host.rpartition(":")[0] not in service.hosts and host not in service.hosts:
        raise Problem(
            421, "This service has another name.", f"Use {service.settings.origin}.", kind="host"
        )
    caller = service.callers.of(headers)
    if request.method not in SAFE:
        _same_site(service, rule, headers)
        _body(rule, headers)
    address = request.client.host if request.client else ""
    person = caller.id if caller.role is Role.PERSON else b""
    await service.limits.take(rule.limit, caller.session, address, person)
    status = policy.verdict(rule, caller.role, caller.scopes)
    if status == 200 or (rule.scope == "metrics" and service.is_local(request)):
        return caller
    raise _refused(status, rule, caller, b"authorization" in headers)


def first_of(request: Request) -> Sent:
    """Return the headers of a request by name; the first one, where a name comes twice."""
    return dict(reversed(request.scope["headers"]))


def _refused(status: int, rule: Rule, caller: Caller, bearer: bool) -> Problem:
    """Say what is at fault; whoever sends a token knows the routes, so it is told about it."""
    if bearer and caller.role in (Role.OFFICER, Role.OPERATOR):
        return problems.scope_missing(rule.scope, caller.scopes)
    if status == 401:
        kind = "no-token" if rule.scope == "metrics" else "unauthorized"
        return problems.named("bad-token" if bearer and caller.role is Role.ANONYMOUS else kind)
    if status == 403:
        return Problem(403, "This token may not do that.", "Use the token of the right agent.")
    return problems.named("not-found")


def _same_site(service: Service, rule: Rule, headers: Sent) -> None:
    """Refuse changes that another site's page sends with our cookie."""
    if rule.signed or b"authorization" in headers:
        return
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin", b"")
    if site in {b"same-origin", b"none"}:
        return
    if site is None and origin.decode("latin-1") == service.settings.origin:
        return
    token = ", or with a bearer token" if rule.scope else ""
    raise Problem(
        403,
        "This change did not come from our own page.",
        f"Send it from {service.settings.origin} (the header Origin){token}.",
        kind="cross-site",
    )


def _body(rule: Rule, headers: Sent) -> None:
    length = headers.get(b"content-length")
    if length is None and b"transfer-encoding" in headers:
        raise Problem(411, "The body has no stated length.", "Send Content-Length.")
    if int(length or 0) > LARGEST_BODY:
        raise Problem(413, f"The body is larger than {LARGEST_BODY} bytes.", "Send it in parts.")
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    wanted = "text/plain" if rule.signed else "application/json"
    if int(length or 0) and kind != wanted:
        raise Problem(415, f"The body is {kind or 'of no type'}.", f"Send {wanted}.")


async def check_depth(rule: Rule, request: Request) -> None:
    """Refuse JSON that is nested so deeply that reading it could use up the stack."""
    if request.method in SAFE or rule.signed:
        return
    body = await request.body()
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    # Brackets within a text are none, unless each character has several bytes.
    bare, depth = body if b"\0" in body else TEXT.sub(b"", body), 0
    for bracket in BRACKET.findall(bare):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            text = f"The body is nested deeper than {DEEPEST} levels."
            raise Problem(422, text, "Send it flat; GET /openapi.json describes it.")


class Frame:
    """The outermost layer: headers of every answer, counts, and a problem for what failed."""

    def __init__(self, app: ASGIApp, service: Service, hot: Sequence[GuardedRoute] = ()) -> None:
        """hot: routes that may answer here, without the layers of FastAPI; their paths are fixed"""
        self.app, self.service = app, service
        self._headers = (*HEADERS, HSTS) if service.settings.encrypted else HEADERS
        lines = [(method, one.path_format, one) for one in hot for method in one.methods or ()]
        self._hot = {(m, path): (one, POLICY[f"{m} {path}"]) for m, path, one in lines}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message["headers"]
                message["headers"] = [*given, *self._headers]
                if not any(name == b"cache-control" for name, _ in given):
                    message["headers"].append((b"cache-control", b"no-store"))
                seconds = time.perf_counter() - start
                route = getattr(scope.get("route"), "path_format", "")
                self.service.measures.request(scope["method"], route, status, seconds)
            await send(message)

        try:
            if (hot := self._hot.get((scope["method"], scope["path"]))) is not None:
                request = Request(scope, receive)
                if (answer := await self._plainly(request, *hot)) is not None:
                    await answer(scope, receive, framed)
                    return
                receive = _again(await request.body(), receive)
            await self.app(scope, receive, framed)
        except ClientDisconnect:  # nobody is there any more to be told
            return
        except Exception as error:
            if status:  # the answer has begun, so the connection can only be cut
                problems.of(error)
                raise ConnectionError("an answer broke off") from None
            await _render(self.service, error, Request(scope))(scope, receive, framed)

    async def _plainly(self, request: Request, route: GuardedRoute, rule: Rule) -> Response | None:
        """Answer a request that is as it should be; None: the described route has to look."""
        request.scope["route"] = route
        request.state.caller = caller = await admit(self.service, rule, request)
        await check_depth(rule, request)
        assert route.plainly is not None
        return await route.plainly(request, self.service, caller)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already once more."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return waiting.pop() if waiting else await receive()

    return given


def _render(service: Service, error: Exception, request: Request) -> Response:
    """Return a refusal as the caller expects it. A log names no item, but the answer does."""
    problem = problems.of(error)
    if isinstance(error, ConsentError) and error.item is not None:
        problem.item = service.ledger.catalogue.ids[error.item]
    if request.url.path.startswith(AGENTS):
        return problem.response_for_agents(fatal=problem.status in {400, 403, 422})
    if request.method == "GET" and wants_page(request):
        return _as_page(service, problem)
    return problem.response()


def _as_page(service: Service, problem: Problem) -> Response:
    """Show a refusal to somebody who followed a link or typed an address. It asks no database."""
    start = f"{service.settings.origin}/" if problem.kind == "host" else "/"
    parts = {"detail": problem.detail, "next": problem.next, "start": start}
    text = filled("problem.html", service.settings.warnings, **parts)
    headers = {**problem.headers, "Vary": "Accept"}
    return Response(text, problem.status, headers, "text/html")


def handle_problems(app: FastAPI) -> None:
    """Turn refusals of every kind into problems."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = problems.of_validation(error.errors())
        elif isinstance(error, HTTPException):
            error = _of_http(error)
        return _render(request.app.state.service, error, request)

    for kind in (Problem, RescindError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def _of_http(error: HTTPException) -> Problem:
    """Starlette's own refusals: no such route, no such method, a body that is not JSON."""
    if error.status_code == 404:
        return problems.named("not-found")
    next_step = "GET /openapi.json describes every route."
    return Problem(error.status_code, str(error.detail), next_step, headers=error.headers)
