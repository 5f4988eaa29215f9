"""Errors over HTTP: `application/problem+json` (RFC 9457) that says what to do next.

A refusal of the ledger (`RescindError`) keeps its sentence; its class decides the status. Nothing
else reaches a caller: an unexpected error is told as a number, and the number finds the log line,
which names the place in the code and never a value.
"""

from __future__ import annotations

import json
import logging
import secrets
import traceback
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from math import ceil
from typing import Any

from starlette.responses import Response

from rescind.errors import ConsentError, DataError, RescindError
from rescind.ledger import errors

LOG = logging.getLogger("rescind.service")
MEDIA = "application/problem+json"
KIND = "urn:rescind:problem:"

AGAIN = "Send the same request again, with the same Idempotency-Key."
USED = "Check the code. If it was used, the person has left, has a passkey, or needs another code."
STATUS: dict[type[RescindError], tuple[int, str]] = {
    errors.CodeNotKnown: (404, USED),
    errors.NotThere: (404, "Check the address. What is not yours is answered the same way."),
    errors.VersionConflict: (412, "Read the loans again, then send it with the new ETag."),
    errors.StillRunning: (409, "Wait for the first answer, or send the same request again later."),
    errors.Ended: (409, "GET its status: it says what was done, and when."),
    errors.KeyReused: (422, "Use a new Idempotency-Key for another request."),
    errors.LogRemoved: (507, "The operator must stop the service and start it. " + AGAIN),
    errors.DiskFull: (507, "The operator must free disk space. " + AGAIN),
    errors.Closing: (503, AGAIN),
    errors.Busy: (503, AGAIN),
    DataError: (422, "Correct the request and send it again."),
    ConsentError: (409, "Read your loans, then ask for what is there."),
    RescindError: (400, "Correct the request and send it again."),
}
"""Status, and what to do next; the first class that fits counts."""
KINDS: dict[type[RescindError], str] = {
    errors.StillRunning: "still-running",
    errors.KeyReused: "key-reused",
    ConsentError: "not-allowed",
}
"""Refusals that share a status, and that a page must tell apart."""
WAIT_SECONDS = {429: 60, 503: 2, 507: 60}


class Problem(Exception):
    """A refusal that a caller can act on."""

    def __init__(
        self,
        status: int,
        detail: str,
        what_next: str,
        *,
        kind: str = "",
        item: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.next, self.item = status, detail, what_next, item
        self.kind = kind or HTTPStatus(status).phrase.lower().replace(" ", "-")
        self.headers = dict(headers or {})
        if status in WAIT_SECONDS:
            self.headers.setdefault("Retry-After", str(WAIT_SECONDS[status]))
        if status == 401:
            self.headers.setdefault("WWW-Authenticate", "Bearer")

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": KIND + self.kind,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "next": self.next,
        }
        if self.item is not None:
            body["item"] = self.item
        return Response(json.dumps(body), self.status, self.headers, MEDIA)

    def response_for_agents(self, fatal: bool = False) -> Response:
        body = {"code": str(self.status), "message": f"{self.detail} {self.next}", "fatal": fatal}
        return Response(json.dumps(body), self.status, self.headers, "application/json")


NAMED: dict[str, tuple[int, str, str]] = {
    "unauthorized": (401, "Nobody is signed in.", "Sign in with a passkey, then send this again."),
    "no-token": (401, "No token came with this.", "Send a token with the scope metrics."),
    # What does not exist and what is not yours get one answer: nobody can tell them apart.
    "not-found": (
        404,
        "There is nothing here for you.",
        "Check the address. What is not yours is answered the same way.",
    ),
    "one-way-in": (
        422,
        "invitation and code: an invitation makes a new account, a code opens one that is there.",
        "Send one of them.",
    ),
    "forbidden": (
        403,
        "New accounts need an invitation here.",
        "Ask whoever runs this service for one, or sign in to the account that you have.",
    ),
    "used-link": (
        404,
        "This link opens nothing, or no longer.",
        "It works once: go on in the window that opened it, or start the demonstration again.",
    ),
    "confirm-first": (
        401,
        "This needs a fresh confirmation with your passkey.",
        "POST /v1/session/begin, then /v1/session/confirm, then send this again within 5 minutes.",
    ),
    "bad-token": (
        401,
        "This token is not known here: it was mistyped, has ended, or was revoked.",
        "Make another one: rescind tokens make SCOPES, or POST /v1/operator/tokens as an operator.",
    ),
    "passkey-needed": (
        403,
        "A token cannot make a token: this needs an operator's passkey.",
        "Sign in at /operator, or stop the service and give: rescind tokens make SCOPES.",
    ),
    "items-missing": (
        422,
        "items is missing: nothing was taken back.",
        'Name them, such as "items": ["50", "172"], or say "items": "everything".',
    ),
}
"""Refusals that need no more words, by their kind."""


def named(kind: str) -> Problem:
    return Problem(*NAMED[kind], kind=kind)


def scope_missing(needed: str, scopes: Collection[str]) -> Problem:
    """A token that is known, and may do other things."""
    return Problem(
        403,
        f"This token may not do that: it has {', '.join(sorted(scopes)) or 'no scope'}.",
        f"Use a token with the scope {needed}." if needed else "This is for people, not tokens.",
        kind="scope-missing",
    )


def too_many(seconds: int) -> Problem:
    headers = {"Retry-After": str(max(1, seconds))}
    wait = f"Wait {seconds} s, then send it again."
    return Problem(429, "Too many requests from here.", wait, headers=headers)


def too_many_today(most: int, seconds: int) -> Problem:
    """The changes that one person may make in a day are spent."""
    return Problem(
        429,
        f"You made {most} changes since yesterday, which is the limit of a day.",
        f"Wait {ceil(seconds / 3600)} h. Taking back still works, slowly: take back all at once.",
        kind="day-spent",
        headers={"Retry-After": str(seconds)},
    )


def too_much_open(what: str) -> Problem:
    """Somebody holds as much open at once as they may."""
    end = "End some of them, or wait until they have ended."
    return Problem(429, f"Too many {what} are open.", end, headers={"Retry-After": "10"})


def of(error: Exception) -> Problem:
    """Return the problem of a refusal; for anything else a number that finds the log line."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RescindError):
        return _of_refusal(error)
    number = secrets.token_hex(4)
    LOG.error("problem %s: %s at %s", number, type(error).__name__, _place(error))
    return Problem(
        500,
        f"Something failed here. Its number is {number}.",
        f"{AGAIN} If it stays, tell the operator the number.",
        kind=f"failed-{number}",
    )


def _of_refusal(error: RescindError) -> Problem:
    status, what_next = next(say for kind, say in STATUS.items() if isinstance(error, kind))
    kind = next((kind for one, kind in KINDS.items() if isinstance(error, one)), "")
    return Problem(status, str(error), what_next, kind=kind)


def _place(error: Exception) -> str:
    """Where it failed: files and lines, no values and no message, which might hold an id."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{one.filename.rpartition('/')[2]}:{one.lineno}" for one in reversed(frames))


def of_validation(wrong: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem of a request that does not fit its description.

    A missing or short Idempotency-Key is 400; anything else 422. Values are not repeated.
    """
    first = wrong[0] if wrong else {"loc": (), "msg": "it does not fit", "type": ""}
    place = _field(first)
    if "idempotency-key" in place.lower():
        return Problem(
            400,
            "Idempotency-Key is missing, or not 16 to 64 letters and digits.",
            "Send a new random key with every change, and the same key when you repeat it.",
            kind="idempotency-key",
        )
    what = f"{place}: {first['msg']}."
    return Problem(422, what, "Correct the request; GET /openapi.json describes it.")


def _field(error: Mapping[str, Any]) -> str:
    """Return the field as the caller wrote it: a part with [ ] is the library's name of a type."""
    parts = [str(part) for part in error["loc"] if "[" not in str(part)]
    return ".".join(parts) or "body"
