"""Answers: JSON without a detour, and what the OpenAPI file says about each route's refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.responses import Response

from rescind.ledger.batch import Answer
from rescind.service.bodies import AgentError, ProblemBody
from rescind.service.callers import COOKIE
from rescind.service.policy import POLICY, Role
from rescind.service.problems import MEDIA

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
COOKIE_SECONDS = 30 * 24 * 3600


def reply(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(_compact(body), status, headers, "application/json")


def told(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    """Return what an operation answered, marked if it was recorded before."""
    more = dict(headers or {})
    if answer.replayed:
        more["Idempotent-Replay"] = "true"
    return Response(answer.text, answer.status, more, "application/json")


def signed_in(body: Mapping[str, Any], secret: str, status: int = 200) -> Response:
    cookie = f"{COOKIE}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict"
    return reply(body, status, {"Set-Cookie": f"{cookie}; Max-Age={COOKIE_SECONDS}"})


def signed_out() -> Response:
    gone = f"{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"
    return reply({"signed_out": True}, headers={"Set-Cookie": gone})


def moment(at: datetime | None) -> str | None:
    """Return a time as 2026-11-15T21:04:07.031Z."""
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_WORDS = {
    400: "A setting or the Idempotency-Key is wrong.",
    401: "Nobody is signed in, or a confirmation is needed.",
    403: "Another site's page sent it, it is another agent's, or the token has other scopes.",
    404: "Not there, or not yours.",
    409: "The ledger does not allow it, or the first request still runs.",
    411: "No stated length.",
    412: "The loans have changed.",
    413: "Too large.",
    415: "Not the expected kind of body.",
    421: "Another host's name.",
    422: "The request does not fit its description.",
    429: "Too many requests.",
    503: "The service is ending or busy.",
    507: "The disk is full.",
}


def refusals(method: str, path: str) -> dict[int | str, dict[str, Any]]:
    """Return the refusals that a route may answer, for the OpenAPI file."""
    rule = POLICY.get(f"{method} {path}")
    if rule is None:  # the guard says so
        return {}
    statuses = {421, 422}
    if rule.limit not in {"none", "erase"}:
        statuses.add(429)
    if Role.ANONYMOUS not in rule.who:
        statuses |= {401, 403, rule.denied}
    if "{" in path:
        statuses.add(404)
    if method == "GET" and rule.limit != "none":
        statuses |= {400, 503}
    if method != "GET":
        statuses |= {400, 403, 411, 413, 415, 503, 507}
    if rule.once or rule.signed:
        statuses |= {404, 409}
    if rule.once:
        statuses.add(412)
    if rule.limit in {"sign-in", "account"}:
        statuses |= {401, 404, 409}
    if path.startswith("/drp/"):
        return {
            status: {"model": AgentError, "description": _WORDS[status]}
            for status in sorted(statuses)
        }
    schema = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}
    return {
        status: {"description": _WORDS[status], "content": {MEDIA: {"schema": schema}}}
        for status in sorted(statuses)
    }


def for_spreadsheets(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row of CSV whose texts no spreadsheet takes for a formula."""
    return {k: f"'{v}" if v.startswith(("=", "+", "-", "@")) else v for k, v in row.items()}
